"""Tests of replay buffers that are opened on recorded data."""

import gc
import os
import subprocess
import sys
import weakref

from absl.testing import parameterized
import pytest
import reverb
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import opening
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import sequences
from tests import golden
from tests import recordings
from tests import reverb_testing
from tests.replay.local import replay_testing

_LENGTHS = (4, 3, 5)
_PAIRS = items_lib.TableItems('pairs')


def _data():
  return golden.stacked(replay_testing.episodes_of(_LENGTHS))


def _first_values(buffer, count=60):
  """Returns the observations of the first frames of some items."""
  dataset = buffer.as_dataset(num_steps=None).take(count)
  return {
      float(frames.observation[0, 0])
      for frames, _ in dataset.as_numpy_iterator()
  }


# The pairs of frames.
_EXPECTED = {0.0, 1.0, 2.0, 100.0, 101.0, 200.0, 201.0, 202.0, 203.0}


class OpeningTest(parameterized.TestCase, tf.test.TestCase):

  def path(self, name):
    return os.path.join(self.create_tempdir().full_path, name)

  def open(self, *args, **kwargs):
    buffer = opening.open_replay_buffer(*args, **kwargs)
    self.addCleanup(buffer.close)
    return buffer

  def write(self, *tables, data=None):
    path = self.path('checkpoint')
    write.write_reverb_checkpoint(data or _data(), path, tables or _PAIRS)
    return path

  def check(self, buffer, expected):
    actual = _first_values(buffer, 100)
    self.assertEqual(sorted(actual), sorted(expected))

  def test_a_directory_and_prepared_frames(self):
    path, frames = self.path('data'), self.path('frames')
    steps = lambda episode: [
        golden.step_of(episode, t) for t in range(golden.length_of(episode))
    ]
    episodes = replay_testing.episodes_of(_LENGTHS)
    recordings.write([{'steps': steps(each)} for each in episodes], path)
    tiled = windows_lib.Windows(3, 2, 'tile')
    expected = {0.0, 2.0, 100.0, 102.0, 200.0, 202.0, 204.0}
    self.check(self.open(path, tiled, directory=frames), expected)
    self.check(self.open(frames), expected)
    with self.assertRaisesRegex(ValueError, 'without a server'):
      self.open(frames, reverb_server=True)
    with self.assertRaises(ValueError):
      self.open(path, split='test')

  def test_checkpoints(self):
    windows = windows_lib.Windows(3)
    path = self.write(_PAIRS, items_lib.TableItems('triples', windows))
    for server in True, False:
      for kwargs in {}, {'table_name': 'none'}:
        with self.assertRaisesRegex(ValueError, "'pairs', 'triples'|none"):
          self.open(path, reverb_server=server, **kwargs)
      buffer = self.open(
          path, windows, reverb_server=server, table_name='triples'
      )
      self.check(buffer, {0.0, 1.0, 100.0, 200.0, 201.0, 202.0})
    with self.assertRaisesRegex(ValueError, "'options'.* cannot be given"):
      options = options_lib.ConversionOptions()
      self.open(path, reverb_server=True, options=options)
    windows = windows_lib.Windows(2)
    overlapping = sequences.convert_rlds_to_sequences(_data(), windows)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        "Table 'pairs' of the checkpoint .* has incomplete episodes.*"
        'reverb_server=True',
    ):
      self.open(self.write(data=overlapping))

  def test_a_server_lasts_as_long_as_its_batches(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.
    buffer = opening.open_replay_buffer(_data(), reverb_server=True, timeout=2)
    held, address = weakref.ref(buffer), buffer.py_client.server_address
    iterator = iter(buffer.as_dataset(4).map(lambda frames, _: frames))
    del buffer
    gc.collect()
    for _ in range(1000):  # More than were sampled in advance.
      self.assertEqual(next(iterator).reward.shape, [4, 2])
    del iterator
    gc.collect()
    self.assertIsNone(held())
    # It has stopped with its replay buffer.
    with self.assertRaises((reverb.errors.ReverbError, RuntimeError)):
      reverb.Client(address).server_info(timeout=2)

  def test_close_stops_the_server_of_the_buffer(self):
    buffer = opening.open_replay_buffer(_data(), reverb_server=True, timeout=1)
    iterator = iter(buffer.as_dataset(4, 2))
    next(iterator)
    address = buffer.py_client.server_address
    buffer.close()
    self.assertIsNone(buffer.local_server)
    with self.assertRaisesRegex(tf.errors.UnknownError, address):
      while True:
        next(iterator)
    with self.assertRaisesRegex(ConnectionError, address):
      buffer.num_frames()

  @pytest.mark.long
  def test_process_exits_without_output(self):
    script = (
        'from tests.replay import opening_test as t;'
        ' buffer = t.opening.open_replay_buffer(t._data(), reverb_server=True);'
        ' iterator = iter(buffer.as_dataset(4, 2)); next(iterator)'
    )
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, '-c', script],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, 'PYTHONPATH': path},
    )
    self.assertNotRegex(done.stderr, 'Exception ignored|Traceback')
    self.assertIn('Shutting down replay server', done.stderr)

  def test_an_address_and_a_table_of_another_kind(self):
    table = reverb_testing.make_table(
        signature=reverb_testing.signature_of(_data())
    )
    buffer = self.open(
        _data(),
        reverb_server=True,
        reverb_table=table,
        priority=lambda frames: frames.reward[0],
    )
    self.assertEqual(buffer.get_table_info().max_size, 1000)
    # It gives its items in their order.
    self.assertEqual(_first_values(buffer, 2), {0.0, 1.0})
    server = serve.restore_reverb_server(self.write())
    self.addCleanup(server.stop)
    address = f'localhost:{server.port}'
    self.check(self.open(None, reverb_server=address), _EXPECTED)
    with self.assertRaisesRegex(ValueError, 'none'):
      self.open(None, reverb_server=address, table_name='none')
    for data, kwargs in (
        (None, dict(seed=1)),
        (None, dict(reverb_table=object())),
        (None, dict(priority=2.0)),
        (None, dict(split='test')),
        (_data(), {}),
    ):
      with self.assertRaisesRegex(ValueError, 'has its own data and tables'):
        self.open(data, reverb_server=address, **kwargs)
    server.stop()
    with self.assertRaisesRegex(ConnectionError, address):
      self.open(None, reverb_server=address, timeout=1)

  def test_invalid_arguments_raise(self):
    wide = windows_lib.Windows(9)
    unsigned = dict(
        reverb_server=True, reverb_table=reverb_testing.make_table()
    )
    for args, kwargs, message in (
        ([None], {}, 'Either data must be given'),
        ([_data()], dict(reverb_table=object()), 'reverb_server=True'),
        ([_data()], unsigned, 'is not of trajectories: None'),
        ([_data()], dict(table_name='mine'), "table_name is 'mine'"),
        ([_data(), wide], {}, 'fewer than 9 frames'),
        ([_data(), 2], {}, 'must be Windows.* but are 2'),
        ([None, 2], dict(reverb_server='host:1'), 'must be Windows'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.open(*args, **kwargs)
    with self.assertRaises(FileNotFoundError):
      self.open(self.path('none'))
    broken = replay_testing.episodes_of([3])
    broken[0]['is_last'][:] = False
    for server in True, False:
      with self.assertRaises(tf.errors.InvalidArgumentError):
        self.open(golden.stacked(broken), reverb_server=server)


if __name__ == '__main__':
  tf.test.main()
