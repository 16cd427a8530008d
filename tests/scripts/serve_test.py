"""Tests of the program that serves a replay buffer, run as a user runs it."""

import os
import re
import signal
import socket

from absl.testing import absltest
import numpy as np
import pytest
import reverb

from rlds2reverb.datasets import loading
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import write
from tests.jobs import data_sets
from tests.scripts import programs


class ServeTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = self.create_tempdir().full_path
    self._data = data_sets.numbered(f'{self._folder}/data', [3, 5])

  def _start(self, *args):
    """Starts the program; returns it, and the port that it prints."""
    server = programs.start(
        'serve', *args, BUILD_WORKING_DIRECTORY=self._folder
    )
    self.addCleanup(server.stdout.close)
    self.addCleanup(server.wait)
    self.addCleanup(server.kill)
    line = server.stdout.readline()
    self.assertRegex(line, r'^Serving at localhost:\d+$')
    return server, int(re.search(r'\d+$', line)[0])

  def _stop(self, server, number):
    """Stops the program with a signal; returns what it has printed."""
    server.send_signal(number)
    printed = server.stdout.read()
    self.assertEqual(server.wait(30), 0)
    self.assertEndsWith(printed, 'Stopped.\n')
    return printed

  @pytest.mark.long
  def test_a_data_set_stopped_with_a_last_checkpoint(self):
    flags = [
        '--dataset=data',
        '--sequence_length=3',
        '--table=threes',
        '--checkpoint_root=root',
        '--checkpoint_at_end',
    ]
    server, port = self._start(*flags)
    # So the program listens, and says the rest.
    client = reverb.Client(f'localhost:{port}')
    self.assertEqual(client.server_info(30)['threes'].current_size, 1 + 3)
    (sample,) = client.sample('threes', emit_timesteps=False)
    client.mutate_priorities(
        'threes', deletes=[int(np.ravel(sample.info.key)[0])]
    )
    printed = self._stop(server, signal.SIGINT)
    self.assertStartsWith(printed, '  table threes: 4 items\n')
    self.assertIn(
        f'port {port} of all interfaces, without authentication', printed
    )
    (name,) = os.listdir(f'{self._folder}/root')
    self.assertIn(f'Checkpoint: {self._folder}/root/{name}', printed)

    server, _ = self._start(*flags[:-1])
    self.assertStartsWith(
        self._stop(server, signal.SIGTERM), '  table threes: 3 items\n'
    )

  @pytest.mark.long
  def test_after_a_crash_it_goes_on_from_the_last_of_many_checkpoints(self):
    flags = [
        '--dataset=data',
        '--table=pairs',
        '--checkpoint_root=root',
        '--checkpoint_minutes=0.01',
    ]
    server, port = self._start(*flags)
    client = reverb.Client(f'localhost:{port}')
    (sample,) = client.sample('pairs', emit_timesteps=False)
    client.mutate_priorities(
        'pairs', deletes=[int(np.ravel(sample.info.key)[0])]
    )
    # One of the next two checkpoints was begun when the item was gone.
    seen = 0
    for line in server.stdout:
      seen += line.startswith('Checkpoint: ')
      if seen == 3:
        break
    server.kill()
    server.wait()
    server, _ = self._start(*flags)
    printed = self._stop(server, signal.SIGTERM)
    self.assertStartsWith(printed, '  table pairs: 5 items\n')

  @pytest.mark.long
  def test_a_checkpoint_on_a_port(self):
    write.write_reverb_checkpoint(
        loading.load_episodes(self._data),
        f'{self._folder}/checkpoint',
        items.TableItems('pairs'),
    )
    with socket.socket() as other:
      other.bind(('', 0))
      other.listen()
      port = other.getsockname()[1]
      args = ('--checkpoint_dir=checkpoint', f'--port={port}')
      result = programs.run(
          'serve', *args, BUILD_WORKING_DIRECTORY=self._folder
      )
      self.assertEqual(result.returncode, 1)
      self.assertIn(f'Port {port} is in use.', result.stderr)
      self.assertNotIn('Traceback', result.stderr)
    server, found = self._start(*args)
    self.assertEqual(found, port)
    printed = self._stop(server, signal.SIGTERM)
    self.assertStartsWith(printed, '  table pairs: 6 items\n')


if __name__ == '__main__':
  absltest.main()
