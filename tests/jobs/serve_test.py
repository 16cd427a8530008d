"""Tests of serving a data set."""

import os
import signal
import socket

from absl.testing import absltest
import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import serve
from rlds2reverb.jobs import server_status
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import usage
from rlds2reverb.replay import items
from tests.jobs import data_sets

_TABLE = items.TableItems('pairs')


class ServeTest(absltest.TestCase):

  def _source(self):
    return sources.make_source(
        data_sets.numbered(
            os.path.join(self.create_tempdir().full_path, 'data'), [3, 5]
        )
    )

  def test_a_data_set_and_then_the_checkpoint_of_the_server(self):
    source = self._source()
    root = os.path.join(self.create_tempdir().full_path, 'root')
    tables = [_TABLE, items.TableItems('whole', None)]
    server = serve.serve_source(source, tables, checkpoint_root=root)
    try:
      sizes = {
          name: status.size
          for name, status in server_status.ask(server).items()
      }
      self.assertEqual(sizes, {'pairs': 2 + 4, 'whole': 2})
      client = server.localhost_client()
      (sample,) = client.sample('whole', emit_timesteps=False)
      # An observation is the number of the episode, and that of the step.
      observation = sample.data[1]
      episode = int(observation[0, 0])
      np.testing.assert_array_equal(
          observation, [[episode, step] for step in range([3, 5][episode])]
      )
      key = int(np.ravel(sample.info.key)[0])
      client.mutate_priorities('whole', deletes=[key])
      client.checkpoint()
    finally:
      server.stop()
    server = serve.serve_source(source, tables, checkpoint_root=root)
    try:
      self.assertEqual(server_status.ask(server)['whole'].size, 1)
    finally:
      server.stop()

  def test_a_port_in_use_is_refused_before_anything_is_read(self):
    with socket.socket() as other:
      other.bind(('', 0))
      other.listen()
      port = other.getsockname()[1]
      # There is no such data set either, but the port comes first.
      with self.assertRaisesRegex(ValueError, f'Port {port} is in use'):
        serve.serve_source(sources.Source('no data set'), [_TABLE], port=port)

  def test_an_empty_table_is_refused(self):
    table = items.TableItems('long', windows_lib.Windows(6))
    with self.assertRaisesRegex(
        ValueError, "'long' would have no items.*longest episode has 5"
    ):
      serve.serve_source(self._source(), [_TABLE, table])
    server = serve.serve_source(self._source(), [table], allow_empty=True)
    self.addCleanup(server.stop)
    self.assertEqual(server_status.ask(server)['long'].size, 0)

  def test_signals(self):
    before = signal.getsignal(signal.SIGTERM)
    with usage.StopSignals() as signals:
      signals.hold()
      os.kill(os.getpid(), signal.SIGTERM)
      signals.wait()
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)
    with self.assertRaises(KeyboardInterrupt):
      with usage.StopSignals():
        os.kill(os.getpid(), signal.SIGTERM)
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)


if __name__ == '__main__':
  absltest.main()
