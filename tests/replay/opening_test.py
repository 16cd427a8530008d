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
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.specs import tensor_spec

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import opening
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import sequences
from rlds2reverb.trajectories import specs
from tests import golden
from tests import recordings
from tests import testing
from tests.replay.local import cuts
from tests.replay.server import processes

_LENGTHS = (4, 3, 5)


def _data():
  return golden.stacked(cuts.episodes_of(_LENGTHS))


def _first_values(buffer, count=60):
  """Returns what the first frames of some items show."""
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

  def check_local(self, buffer, expected=None):
    self.assertIsInstance(buffer, replay_buffer.EpisodesReplayBuffer)
    shown = [
        float(item.observation[0, 0])
        for item in cuts.items_of(
            buffer.as_dataset(4, single_deterministic_pass=True)
        )
    ]
    self.assertEqual(shown, sorted(expected or _EXPECTED))

  def test_a_data_set(self):
    self.check_local(opening.open_replay_buffer(_data()))
    buffer = opening.open_replay_buffer(
        _data(), windows_lib.Windows(3, 2, 'tile')
    )
    self.check_local(buffer, {0.0, 2.0, 100.0, 102.0, 200.0, 202.0, 204.0})

  def test_a_directory(self):
    path = self.path('data')
    episodes = [
        {
            'steps': [
                golden.step_of(episode, t)
                for t in range(golden.length_of(episode))
            ]
        }
        for episode in cuts.episodes_of(_LENGTHS)
    ]
    recordings.write(episodes, path)
    self.check_local(opening.open_replay_buffer(path))
    with self.assertRaises(ValueError):
      opening.open_replay_buffer(path, split='test')

  def test_prepared_frames(self):
    path = self.path('frames')
    opening.open_replay_buffer(_data(), directory=path)
    self.check_local(opening.open_replay_buffer(path))
    with self.assertRaisesRegex(ValueError, 'without a server'):
      opening.open_replay_buffer(path, reverb_server=True)

  def test_a_checkpoint(self):
    path = self.path('checkpoint')
    table = items_lib.TableItems('pairs')
    write.write_reverb_checkpoint(_data(), path, table)
    self.check_local(opening.open_replay_buffer(path))
    self.check_local(opening.open_replay_buffer(path, table_name='pairs'))
    served = opening.open_replay_buffer(path, reverb_server=True)
    self.assertEqual(_first_values(served, 200), _EXPECTED)
    for server in True, False:
      with self.assertRaisesRegex(ValueError, 'none.*pairs|pairs.*none'):
        opening.open_replay_buffer(
            path, reverb_server=server, table_name='none'
        )

  def test_a_checkpoint_of_overlapping_sequences(self):
    path = self.path('checkpoint')
    write.write_reverb_checkpoint(
        sequences.convert_rlds_to_sequences(_data(), windows_lib.Windows(2)),
        path,
        items_lib.TableItems('parts'),
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        "Table 'parts' of the checkpoint .* has parts of episodes.*"
        'reverb_server=True',
    ):
      opening.open_replay_buffer(path)

  def test_a_checkpoint_of_several_tables(self):
    path = self.path('checkpoint')
    tables = [
        items_lib.TableItems('pairs'),
        items_lib.TableItems('triples', windows_lib.Windows(3)),
    ]
    write.write_reverb_checkpoint(_data(), path, tables)
    for server in True, False:
      with self.assertRaisesRegex(ValueError, "'pairs', 'triples'.*table_name"):
        opening.open_replay_buffer(path, reverb_server=server)
    served = opening.open_replay_buffer(
        path, windows_lib.Windows(3), reverb_server=True, table_name='triples'
    )
    self.assertEqual(served.get_table_info().current_size, 2 + 1 + 3)
    self.check_local(
        opening.open_replay_buffer(
            path, windows_lib.Windows(3), table_name='triples'
        ),
        {0.0, 1.0, 100.0, 200.0, 201.0, 202.0},
    )

  def test_a_server_of_its_own(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.
    buffer = opening.open_replay_buffer(_data(), reverb_server=True)
    self.assertIsInstance(buffer, reverb_replay_buffer.ReverbReplayBuffer)
    self.assertEqual(buffer.get_table_info().current_size, len(_EXPECTED))
    self.assertEqual(_first_values(buffer, 200), _EXPECTED)
    address = buffer.py_client.server_address
    del buffer
    gc.collect()
    # It has stopped with its replay buffer.
    with self.assertRaises((reverb.errors.ReverbError, RuntimeError)):
      reverb.Client(address).server_info(timeout=2)

  def test_a_server_lasts_as_long_as_its_batches(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.
    buffer = opening.open_replay_buffer(_data(), reverb_server=True, timeout=2)
    held = weakref.ref(buffer)
    iterator = iter(buffer.as_dataset(4).map(lambda frames, _: frames))
    del buffer
    gc.collect()
    for _ in range(1000):  # More than were sampled in advance.
      self.assertEqual(next(iterator).reward.shape, [4, 2])
    del iterator
    gc.collect()
    self.assertIsNone(held())

  def test_a_server_of_its_own_that_is_closed(self):
    buffer = opening.open_replay_buffer(_data(), reverb_server=True, timeout=1)
    iterator = iter(buffer.as_dataset(4, 2))
    next(iterator)
    address = buffer.py_client.server_address
    buffer.close()
    buffer.close()
    self.assertIsNone(buffer.local_server)
    with self.assertRaisesRegex(tf.errors.UnknownError, address):
      while True:
        next(iterator)
    with self.assertRaisesRegex(ConnectionError, address):
      buffer.num_frames()

  @pytest.mark.long
  def test_nothing_is_said_at_the_end_of_a_process(self):
    script = (
        'from rlds2reverb.replay import opening;'
        ' from tests.replay import opening_test;'
        ' buffer = opening.open_replay_buffer('
        'opening_test._data(), reverb_server=True);'
        ' dataset = buffer.as_dataset(4, 2); iterator = iter(dataset);'
        ' next(iterator)'
    )
    done = subprocess.run(
        processes.command(script),
        check=True,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
        },
    )
    self.assertNotIn('Exception ignored', done.stderr)
    self.assertNotIn('Traceback', done.stderr)
    self.assertIn('Shutting down replay server', done.stderr)

  def test_a_table_of_another_kind(self):
    buffer = opening.open_replay_buffer(
        _data(),
        reverb_server=True,
        priority=lambda frames: frames.reward[0],
        reverb_table=reverb.Table(
            'best',
            sampler=reverb.selectors.MaxHeap(),
            remover=reverb.selectors.Fifo(),
            max_size=100,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=tensor_spec.add_outer_dim(
                specs.create_trajectory_data_spec(_data())
            ),
        ),
    )
    self.assertEqual(_first_values(buffer, 20), {203.0})

  def test_an_address(self):
    path = self.path('checkpoint')
    write.write_reverb_checkpoint(_data(), path, items_lib.TableItems('pairs'))
    server = serve.restore_reverb_server(path)
    address = f'localhost:{server.port}'
    try:
      for name in None, 'pairs':
        buffer = opening.open_replay_buffer(
            None, reverb_server=address, table_name=name
        )
        self.assertEqual(_first_values(buffer, 200), _EXPECTED)
      with self.assertRaisesRegex(ValueError, 'none'):
        opening.open_replay_buffer(
            None, reverb_server=address, table_name='none'
        )
      for kwargs in dict(seed=1), dict(reverb_table=object()):
        with self.assertRaisesRegex(ValueError, 'its own data and tables'):
          opening.open_replay_buffer(None, reverb_server=address, **kwargs)
      with self.assertRaisesRegex(ValueError, 'its own data and tables'):
        opening.open_replay_buffer(_data(), reverb_server=address)
    finally:
      server.stop()

  def test_a_number_in_place_of_windows(self):
    for data, server in (_data(), False), (_data(), True), (None, 'host:1'):
      with self.assertRaisesRegex(ValueError, 'must be Windows.* but are 2'):
        opening.open_replay_buffer(data, 2, reverb_server=server)

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, 'There must be data'):
      opening.open_replay_buffer(None)
    with self.assertRaisesRegex(ValueError, 'reverb_server=True'):
      opening.open_replay_buffer(_data(), reverb_table=object())
    unsigned = testing.make_table()
    with self.assertRaisesRegex(ValueError, 'has no signature'):
      opening.open_replay_buffer(
          _data(), reverb_server=True, reverb_table=unsigned
      )
    with self.assertRaisesRegex(ValueError, "table_name is 'mine'"):
      opening.open_replay_buffer(_data(), table_name='mine')
    checkpoint = self.path('checkpoint')
    write.write_reverb_checkpoint(
        _data(), checkpoint, items_lib.TableItems('items')
    )
    with self.assertRaisesRegex(ValueError, "'options'.* must be left out"):
      opening.open_replay_buffer(
          checkpoint,
          reverb_server=True,
          options=options_lib.ConversionOptions(),
      )
    with self.assertRaises(FileNotFoundError):
      opening.open_replay_buffer(self.path('none'))
    with self.assertRaisesRegex(ValueError, 'fewer than 9 frames'):
      opening.open_replay_buffer(_data(), windows_lib.Windows(9))
    broken = cuts.episodes_of([3])
    broken[0]['is_last'][:] = False
    for server in True, False:
      with self.assertRaises(tf.errors.InvalidArgumentError):
        opening.open_replay_buffer(golden.stacked(broken), reverb_server=server)


if __name__ == '__main__':
  tf.test.main()
