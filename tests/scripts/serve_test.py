"""Tests of the program that serves a replay buffer, run as a user runs it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

from absl.testing import absltest
import numpy as np
import portpicker
import pytest
import reverb

from rlds2reverb.datasets import loading
from rlds2reverb.jobs import serve
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write
from tests.jobs import data_sets
from tests.scripts import in_process
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
    """Stops the program with a signal; returns its output."""
    server.send_signal(number)
    printed = server.stdout.read()
    self.assertEqual(server.wait(30), 0)
    self.assertEndsWith(printed, 'Stopped.\n')
    return printed

  def test_unit_and_compose_file_of_the_manual_are_valid(self):
    yaml = pytest.importorskip('yaml')
    with open('docs/serving.md', encoding='utf-8') as f:
      (unit,) = re.findall(r'```ini\n(.*?)```', f.read(), re.DOTALL)
    with open('docs/compose.yaml', encoding='utf-8') as f:
      command = yaml.safe_load(f)['services']['replay']['command']
    help_text = programs.run('serve', '--help').stdout
    for text in unit, command:
      used = re.findall(r' (--\w+)', text)
      self.assertLen(used, 7)
      for flag in used:
        self.assertRegex(
            help_text, rf'(?m)^  --(\[no\])?{flag.removeprefix("--")}:'
        )
    path = os.path.join(self._folder, 'replay.service')
    with open(path, 'w', encoding='utf-8') as f:
      # The program itself may be anywhere.
      f.write(unit.replace('/opt/replay/bin/rlds2reverb-serve', sys.executable))
    if shutil.which('systemd-analyze'):
      subprocess.run(['systemd-analyze', 'verify', path], check=True)

  @pytest.mark.long
  def test_a_data_set_through_a_crash_to_its_end(self):
    pytest.importorskip('prometheus_client')
    metrics_port = portpicker.pick_unused_port()
    flags = [
        '--dataset=data',
        '--sequence_length=3',
        '--table=threes',
        '--checkpoint_root=root',
        '--checkpoint_minutes=0.01',
        '--keep_checkpoints=3',
        f'--metrics_port={metrics_port}',
    ]
    server, port = self._start(*flags)
    client = reverb.Client(f'localhost:{port}')
    self.assertEqual(client.server_info(30)['threes'].current_size, 1 + 3)
    self.assertLen(list(client.sample('threes', 8)), 8)
    (sample,) = client.sample('threes', emit_timesteps=False)
    key = int(np.ravel(sample.info.key)[0])
    client.mutate_priorities('threes', deletes=[key])
    metrics = _scrape(metrics_port)
    for name, count in (
        ('items', 3),
        ('inserted_items_total', 4),
        ('removed_items_total', 1),
        ('sampled_items_total', 9),
        ('blocks_samples', 0),
    ):
      self.assertEqual(metrics[f'reverb_table_{name}{{table="threes"}}'], count)
    result = programs.run(
        'status', f'--server_address=localhost:{port}', '--json'
    )
    status = json.loads(result.stdout)['tables']['threes']
    self.assertEqual([status[one] for one in ('size', 'sampled')], [3, 9])
    # One of the next two checkpoints was begun when the item was gone.
    written = 0
    for line in server.stdout:
      written += line.startswith('Checkpoint: ')
      metrics = _scrape(metrics_port)
      if written > 2 and metrics['reverb_checkpoints'] == 3:
        break
    self.assertLess(metrics['reverb_checkpoint_age_seconds'], 60)
    # Two servers would remove each other's checkpoints.
    second = programs.run('serve', *flags, BUILD_WORKING_DIRECTORY=self._folder)
    self.assertEqual(second.returncode, 1)
    self.assertEndsWith(
        second.stderr, f'Another process is writing {self._folder}/root.\n'
    )
    server.kill()
    server.wait()
    server, port = self._start(
        *flags[:4], '--keep_checkpoints=3', '--checkpoint_at_end'
    )
    printed = self._stop(server, signal.SIGINT)
    self.assertStartsWith(printed, '  table threes: 3 items\n')
    self.assertIn(f'port {port} of all interfaces, without', printed)
    (name,) = os.listdir(f'{self._folder}/root')
    self.assertIn(f'Checkpoint: {self._folder}/root/{name}', printed)
    self.assertBetween(len(os.listdir(f'{self._folder}/root.kept')), 2, 3)

  @pytest.mark.long
  def test_signals_to_the_group_while_checkpoints_are_written(self):
    root = os.path.join(self._folder, 'root')
    checkpoints = serve.KeptCheckpoints(root, 2)
    for number in signal.SIGTERM, signal.SIGINT:
      server, port = self._start(
          '--dataset=data',
          '--table=pairs',
          '--checkpoint_root=root',
          '--checkpoint_minutes=0.01',
          '--keep_checkpoints=2',
      )
      client = reverb.Client(f'localhost:{port}')
      samples = client.sample('pairs', 10**6)  # A client at work.
      next(samples)
      while not server.stdout.readline().startswith('Checkpoint: '):
        pass
      start = time.monotonic()
      os.killpg(server.pid, number)
      printed = server.stdout.read()
      self.assertEqual(server.wait(10), 0)
      self.assertLess(time.monotonic() - start, 10)
      self.assertEndsWith(printed, 'Stopped.\n')
      paths = checkpoints.paths()
      self.assertBetween(len(paths), 1, 3)
      for path in paths:
        self.assertLen(records.read_index(path).items, 6)

  @pytest.mark.long
  def test_stop_signal_that_raises_another_error_during_start(self):
    program = """
import os, signal
from unittest import mock
from rlds2reverb.jobs import usage
from scripts import serve

def start(unused_checkpoints):
  try:
    os.kill(os.getpid(), signal.SIGTERM)
  except KeyboardInterrupt as error:
    raise RuntimeError('As C++ may do.') from error

with mock.patch.object(serve, '_start', start):
  usage.run(serve.main)
"""
    result = subprocess.run(
        [sys.executable, '-c', program],
        env=programs.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(result.returncode, 130)
    self.assertEqual(result.stdout, 'Stopped before the server was ready.\n')
    self.assertNotIn('Traceback', result.stderr)

  @pytest.mark.long
  def test_a_checkpoint_on_a_port(self):
    write.write_reverb_checkpoint(
        loading.load_episodes(self._data),
        f'{self._folder}/checkpoint',
        items.TableItems('pairs'),
    )
    port = portpicker.pick_unused_port()
    args = ('--checkpoint_dir=checkpoint', f'--port={port}')
    server, actual = self._start(*args)
    self.assertEqual(actual, port)
    printed = self._stop(server, signal.SIGTERM)
    self.assertStartsWith(printed, '  table pairs: 6 items\n')

  @pytest.mark.long
  def test_flags_override_settings_of_tables(self):
    ratio = reverb.rate_limiters.SampleToInsertRatio
    write.write_reverb_checkpoint(
        loading.load_episodes(self._data),
        f'{self._folder}/checkpoint',
        [items.TableItems('pairs'), items.TableItems('other')],
        reverb_tables=[
            reverb.Table(
                'pairs',
                reverb.selectors.MaxHeap(),
                reverb.selectors.Lifo(),
                max_size=10,
                rate_limiter=ratio(4.0, 2, 8.0),
                max_times_sampled=7,
            ),
            reverb.Table(
                'other',
                reverb.selectors.Prioritized(0.25),
                reverb.selectors.Fifo(),
                max_size=20,
                rate_limiter=ratio(4.0, 2, 8.0),
            ),
        ],
    )
    args = ['--checkpoint_dir=checkpoint', '--checkpoint_root=root']
    server, port = self._start(
        *args,
        '--max_size=500',
        '--max_size=pairs=300',
        '--sampler=pairs=prioritized:0.5',
        '--max_times_sampled=other=1',
        '--rate_limiter=other=min_size:3',
        '--checkpoint_at_end',
    )
    infos = reverb.Client(f'localhost:{port}').server_info(30)
    pairs, other = infos['pairs'], infos['other']
    self.assertEqual([pairs.max_size, other.max_size], [300, 500])
    self.assertEqual(pairs.sampler_options.prioritized.priority_exponent, 0.5)
    self.assertEqual(other.sampler_options.prioritized.priority_exponent, 0.25)
    self.assertTrue(pairs.remover_options.lifo)
    self.assertEqual([pairs.max_times_sampled, other.max_times_sampled], [7, 1])
    limits = pairs.rate_limiter_info
    # By the definition of SampleToInsertRatio: 4 * 2 -/+ 8.
    self.assertEqual(
        [limits.samples_per_insert, limits.min_size_to_sample], [4, 2]
    )
    self.assertEqual([limits.min_diff, limits.max_diff], [0, 16])
    self.assertEqual(other.rate_limiter_info.min_size_to_sample, 3)
    self.assertEqual([pairs.current_size, other.current_size], [6, 6])
    self._stop(server, signal.SIGTERM)
    # A checkpoint in the root, too.
    server, port = self._start(
        *args, '--sampler=max_heap', '--rate_limiter=queue:400'
    )
    infos = reverb.Client(f'localhost:{port}').server_info(30)
    for info in infos['pairs'], infos['other']:
      self.assertEqual(info.current_size, 6)
      self.assertFalse(info.sampler_options.heap.min_heap)
      self.assertEqual(info.sampler_options.WhichOneof('distribution'), 'heap')
      self.assertEqual(info.rate_limiter_info.max_diff, 400)
    self.assertEqual(infos['pairs'].max_size, 300)
    self._stop(server, signal.SIGTERM)

  @pytest.mark.long
  def test_overrides_that_are_not_valid(self):
    write.write_reverb_checkpoint(
        loading.load_episodes(self._data),
        f'{self._folder}/checkpoint',
        items.TableItems('pairs'),
    )
    invalid = (
        ('--max_size=pairs=5', 1, 'max_size is 5, and the data has 6'),
        ('--sampler=piars=fifo', 1, 'piars'),
        ('--max_size=0', 2, '--max_size=0 is not valid: expected an integer'),
        ('--sampler=prioritized', 2, 'prioritized takes 1 value after a colon'),
        ('--rate_limiter=mni_size:3', 2, 'expected one of min_size, queue'),
    )
    results = in_process.run(
        'serve',
        [['--checkpoint_dir=checkpoint', flag] for flag, *_ in invalid],
        BUILD_WORKING_DIRECTORY=self._folder,
    )
    for (flag, code, message), result in zip(invalid, results, strict=True):
      self.assertEqual(result.code, code, flag)
      self.assertIn(message, result.stderr)
      self.assertNotIn('Traceback', result.stderr)


def _scrape(port):
  """Returns the metrics on a port, by name with labels."""
  url = f'http://localhost:{port}/metrics'
  with urllib.request.urlopen(url) as response:
    lines = response.read().decode().splitlines()
  return {
      name: float(value)
      for name, _, value in (
          line.rpartition(' ') for line in lines if not line.startswith('#')
      )
  }


if __name__ == '__main__':
  absltest.main()
