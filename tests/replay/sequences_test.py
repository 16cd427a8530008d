"""Tests that sequences are what the observers write, and can be written."""

import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.replay import bulk
from rlds2reverb.replay import checkpoint
from rlds2reverb.replay import items
from rlds2reverb.replay import push
from rlds2reverb.trajectories import sequences
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_SETTINGS = tuple(
    (f'{end}_{length}_{stride}', length, stride, end)
    for length, stride, end in (
        (1, 1, 'drop'), (2, 1, 'drop'), (3, 2, 'drop'), (2, 1, 'pad'),
        (5, 3, 'pad'), (5, 1, 'tile'), (3, 2, 'tile'), (2, 1, 'cross'),
        (4, 3, 'cross'),
    )
)


def _data():
  episodes = golden.random_episodes(
      np.random.default_rng(5), 12, nested_fields=True
  )
  return golden.stacked(episodes)


def _columns(sequence):
  return tuple(
      (leaf.dtype.str, leaf.shape, testing.bytes_of(leaf))
      for leaf in tf.nest.flatten(sequence)
  )


def _observer(client, length, stride, end):
  if end == 'cross':
    return reverb_utils.ReverbTrajectorySequenceObserver(
        client, testing.TABLE, length, stride
    )
  return reverb_utils.ReverbAddTrajectoryObserver(
      client,
      testing.TABLE,
      length,
      stride,
      pad_end_of_episodes=end != 'drop',
      tile_end_of_episodes=end == 'tile',
  )


class SequencesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*_SETTINGS)
  def test_observers_write_these(self, length, stride, end):
    data = _data()
    found = sequences.convert_rlds_to_sequences(
        data, length, stride, end_of_episode=end
    )
    with testing.reverb_server(specs.create_trajectory_data_spec(data)) as client:
      observer = _observer(client, length, stride, end)
      push.push_rlds_to_reverb(data, observer, method='observer')
      written = testing.contents(client).items
      observer.close()
    self.assertNotEmpty(written)
    self.assertEqual(
        list(map(_columns, found.as_numpy_iterator())),
        [columns for _, columns in written],
    )

  @parameterized.parameters('overlap', 'repeat_last', 'tile')
  def test_written_as_they_are(self, end):
    data = _data()
    found = sequences.convert_rlds_to_sequences(
        data, 4, 3, end_of_episode=end
    )
    table = items.TableItems(testing.TABLE, priority=3.0)
    directory = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    checkpoint.write_reverb_checkpoint(
        found,
        directory,
        table,
        reverb_tables=[testing.make_table()],
    )
    with testing.reverb_server(specs.create_trajectory_data_spec(data)) as client:
      counts = bulk.write_rlds_to_reverb(found, client, table)
      written = testing.contents(client).items
    server = checkpoint.restore_reverb_server(directory)
    restored = testing.contents(server.localhost_client()).items
    server.stop()
    expected = [
        (3.0, _columns(sequence)) for sequence in found.as_numpy_iterator()
    ]
    self.assertNotEmpty(expected)
    self.assertEqual(written, expected)
    self.assertEqual(restored, expected)
    self.assertEqual(counts, {testing.TABLE: len(expected)})

  def test_settings_that_do_not_go_with_sequences(self):
    found = sequences.convert_rlds_to_sequences(_data(), 4)
    with self.assertRaisesRegex(ValueError, 'priority and nothing else'):
      bulk.write_rlds_to_reverb(
          found, 'localhost:1', items.TableItems(testing.TABLE, 3)
      )
    with self.assertRaisesRegex(ValueError, 'written as they are'):
      bulk.write_rlds_to_reverb(
          found,
          'localhost:1',
          items.TableItems(testing.TABLE),
          invalid_episodes='skip',
      )


if __name__ == '__main__':
  tf.test.main()
