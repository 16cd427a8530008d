"""Tests of what checkpoints merge to, and which do not merge."""

import os

from absl.testing import parameterized
import reverb
import tensorflow as tf

from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.trajectories import rules as rules_lib
from tests import golden
from tests import testing
from tests.replay.checkpoint import checkpoints


class MergeTest(checkpoints.CheckpointTestCase):

  def test_order_of_merged_checkpoints(self):
    parts = [checkpoints.episodes([150, 40], base) for base in (0, 5000, 9000)]
    paths = [
        self.write(
            part,
            reverb_tables=[checkpoints.once(reverb.selectors.Fifo())],
        )
        for part in parts
    ]
    merged = self.new()
    # Not in the order in which they were written, and one through a server.
    paths[1] = self.serve(paths[1]).checkpoint()
    merge.merge_reverb_checkpoints([paths[2], paths[0], paths[1]], merged)
    second = self.serve(self.serve(merged).checkpoint())
    self.assertEqual(
        checkpoints.take_rewards(second),
        checkpoints.pairs(parts[2] + parts[0] + parts[1]),
    )

  def test_shards_that_count_from_0_alike(self):
    first = checkpoints.episodes([5, 9])
    second = checkpoints.episodes([5, 9], base=400)
    paths = [self.write(part, identity='data') for part in (first, second)]
    merged = self.new()
    with self.assertRaisesRegex(
        ValueError, 'under an identity of its own, or with an episode_id'
    ) as raised:
      merge.merge_reverb_checkpoints(paths, merged)
    self.assertIn(paths[1], str(raised.exception))
    self.assertEmpty(os.listdir(os.path.dirname(merged)))
    other = self.write(second, identity='data, second shard')
    counts = merge.merge_reverb_checkpoints([paths[0], other], merged)
    self.assertEqual(counts, {testing.TABLE: 4 + 8 + 4 + 8})
    self.assertCountEqual(
        checkpoints.take_rewards(self.serve_once(merged)),
        checkpoints.pairs(first + second),
    )

  @parameterized.parameters(([5, 9], [5, 9, 3]), ([5], [5]), ([5, 9, 200], [5]))
  def test_the_same_episodes_merge(self, lengths, other_lengths):
    paths = [
        self.write(checkpoints.episodes(each), identity='data')
        for each in (lengths, other_lengths)
    ]
    # As a server writes the same: in other bytes, with other dates.
    paths[1] = self.serve(paths[1]).checkpoint()
    merged = self.new()
    counts = merge.merge_reverb_checkpoints(paths, merged)
    longest = max(lengths, other_lengths, key=len)
    self.assertEqual(counts, {testing.TABLE: sum(longest) - len(longest)})
    self.assertCountEqual(
        checkpoints.take_rewards(self.serve_once(merged)),
        checkpoints.pairs(checkpoints.episodes(longest)),
    )

  def test_into_a_checkpoint_that_is_there(self):
    episodes = checkpoints.episodes([4, 3, 5])
    one, other = (
        self.write(episodes[begin:end], identity=f'from {begin}')
        for begin, end in ((0, 2), (2, 3))
    )
    with self.assertRaises(FileExistsError):
      merge.merge_reverb_checkpoints([one, other], one)
    # A second time changes nothing.
    for _ in range(2):
      counts = merge.merge_reverb_checkpoints([one, other], one, overwrite=True)
      self.assertEqual(counts, {testing.TABLE: 9})
    self.assertCountEqual(
        checkpoints.take_rewards(self.serve_once(one)),
        checkpoints.pairs(episodes),
    )
    # Nothing but a checkpoint is replaced.
    folder = self.create_tempdir()
    folder.create_file('mine')
    with self.assertRaisesRegex(FileNotFoundError, 'not a whole Reverb'):
      merge.merge_reverb_checkpoints(
          [one, other], folder.full_path, overwrite=True
      )

  def test_what_does_not_merge(self):
    episodes = checkpoints.episodes([9])
    spec = checkpoints.signature(golden.stacked(episodes))
    pairs = self.write(episodes, identity='data', chunk_length=4)
    for others, message in (
        ([], 'must be a checkpoint'),
        (
            [self.write(episodes, identity='data', chunk_length=8)],
            'or with another chunk_length',
        ),
        (
            [self.write(episodes, items.TableItems(checkpoints.OTHER))],
            f'the same tables.*{checkpoints.OTHER}',
        ),
        (
            [
                self.write(
                    episodes, reverb_tables=[testing.make_table(signature=spec)]
                )
            ],
            f'{testing.TABLE!r} differs',
        ),
    ):
      merged = self.new()
      with self.assertRaisesRegex(ValueError, message):
        merge.merge_reverb_checkpoints(others and [pairs, *others], merged)
      self.assertEmpty(os.listdir(os.path.dirname(merged)))

  def test_another_terminal_discount_is_other_data(self):
    episodes = checkpoints.episodes([5])
    paths = [
        self.write(
            episodes,
            identity='data',
            rules=rules_lib.ConversionRules(terminal_discount=where),
        )
        for where in ('step', 'transition')
    ]
    counts = merge.merge_reverb_checkpoints(paths, self.new())
    self.assertEqual(counts, {testing.TABLE: 8})


if __name__ == '__main__':
  tf.test.main()
