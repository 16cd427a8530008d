"""Tests of reading episodes back from checkpoints."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import episodes
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from tests import golden
from tests import reverb_testing
from tests.replay.checkpoint import checkpoints


def _read(path, table=reverb_testing.TABLE):
  found = episodes.read_checkpoint_episodes(path, table)
  return [episode['steps'] for episode in found.as_numpy_iterator()]


def _table(*windows, name=reverb_testing.TABLE):
  return items.TableItems(name, windows_lib.Windows(*windows))


class EpisodesTest(checkpoints.CheckpointTestCase):

  def check_same(self, read, expected):
    """Asserts that the episodes are the same, in any order."""
    self.assertLen(read, len(expected))
    by_first = lambda steps: np.ravel(steps['reward'])[0]
    for steps, other in zip(
        sorted(read, key=by_first), sorted(expected, key=by_first)
    ):
      # A terminal step has a discount of 0 in its frame.
      discount = np.where(
          other['is_terminal'], 0, np.reshape(other['discount'], [-1])
      )
      golden.assert_frames_equal(
          self, [steps], [{**other, 'discount': discount.astype(np.float32)}]
      )

  def test_nested_fields_of_every_dtype(self):
    rng = np.random.default_rng(0)
    expected = golden.random_episodes(rng, 30, nested_fields=True)
    # One step makes no item of two.
    expected = [each for each in expected if golden.length_of(each) > 1]
    # Chunks of 3 steps, so that an episode has several, which items share.
    path = self.write(expected, chunk_length=3)
    self.check_same(_read(path), expected)

  def test_short_episodes(self):
    expected = checkpoints.episodes([2, 1, 3, 5, 1, 1, 4])
    for table, settings in (
        (_table(3, 1, 'pad'), {'one_episode_chunks': True}),
        (_table(2, 1, 'cross'), {'chunk_length': 4}),
    ):
      path = self.write(expected, table, **settings)
      self.check_same(_read(path), expected)
    found = episodes.read_checkpoint_episodes(path, reverb_testing.TABLE)
    (batch,) = episode_dataset.batches_of(found).as_numpy_iterator()
    self.assertAllEqual(batch.row_splits, [0, 2, 3, 6, 11, 12, 13, 17])

  def test_checkpoints_of_servers_and_merges_are_read(self):
    expected = checkpoints.episodes([30, 7, 120])
    other = _table(50, name=checkpoints.OTHER)
    path = self.write(expected, [checkpoints.PAIRS, other])
    served = self.serve(path).checkpoint()
    merged = self.new()
    merge.merge_reverb_checkpoints([path], merged)
    for one in (path, served, merged):
      self.check_same(_read(one), expected)
      # Only the longest episode makes items of 50 steps.
      self.check_same(_read(one, checkpoints.OTHER), expected[2:])

  def test_frames_that_are_missing(self):
    # Items of two steps, each in separate chunks. The middle one is removed.
    path = self.write(checkpoints.episodes([6]), _table(2, 2), chunk_length=2)
    client = self.serve(path)
    keys = [
        int(np.ravel(sample.info.key)[0])
        for sample in client.sample(
            reverb_testing.TABLE, 50, emit_timesteps=False
        )
        if sample.data[1][0, 0] == 2
    ]
    client.mutate_priorities(reverb_testing.TABLE, deletes=keys[:1])
    read = _read(client.checkpoint())
    self.assertCountEqual(
        [steps['observation'][:, 0].tolist() for steps in read],
        [[0, 1], [4, 5]],
    )

  def test_unreadable_checkpoints(self):
    path = self.write(checkpoints.episodes([5]))
    with self.assertRaisesRegex(ValueError, "no table 'no', only"):
      episodes.read_checkpoint_episodes(path, 'no')
    with self.assertRaisesRegex(FileNotFoundError, 'not a complete'):
      episodes.read_checkpoint_episodes(self.new(), 'no')
    tables = [
        table.replace(b'next_step_type', b'next_step_tYpe')
        for batch in records.read_records(path, records.TABLES)
        for table in batch
    ]
    other = self.write(checkpoints.episodes([5]))
    checkpoints.rewrite(other, 'tables.tfrecord', tables)
    with self.assertRaisesRegex(ValueError, f'{other} is not of trajectories'):
      _read(other)
    checkpoints.rewrite(path, 'items.tfrecord', [b'no item'])
    with self.assertRaises((records.CheckpointError, tf.errors.OpError)):
      _read(path)


if __name__ == '__main__':
  tf.test.main()
