"""Tests of what checkpoints merge to, and which do not merge."""

import os

import reverb
import tensorflow as tf

from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.trajectories import rules as rules_lib
from tests import golden
from tests import testing
from tests.replay.checkpoint import checkpoints

_OPTIONS = {'identity': 'data', 'one_episode_chunks': True}


class MergeTest(checkpoints.CheckpointTestCase):

  def test_order_of_merged_checkpoints(self):
    episodes = checkpoints.episodes([150, 40] * 3)
    parts = episodes[:2], episodes[2:4], episodes[4:]
    once = [checkpoints.once(reverb.selectors.Fifo)]
    paths = [self.write(part, reverb_tables=once) for part in parts]
    merged = self.new()
    # Not in the order in which they were written, and one through a server.
    paths[1] = self.serve(paths[1]).checkpoint()
    merge.merge_reverb_checkpoints([paths[2], paths[0], paths[1]], merged)
    second = self.serve(self.serve(merged).checkpoint())
    self.assertEqual(
        testing.take_rewards(second),
        testing.pairs(parts[2] + parts[0] + parts[1]),
    )

  def test_the_same_episodes_merge(self):
    longest = [5, 9, 200]
    paths = [
        self.write(checkpoints.episodes(each), **_OPTIONS)
        for each in ([5, 9], longest)
    ]
    # As a server writes the same: in other bytes, with other dates.
    paths[1] = self.serve(paths[1]).checkpoint()
    # Into one that is there; a second time changes nothing.
    with self.assertRaises(FileExistsError):
      merge.merge_reverb_checkpoints(paths, paths[0])
    for _ in range(2):
      counts = merge.merge_reverb_checkpoints(paths, paths[0], overwrite=True)
      self.assertEqual(counts, {testing.TABLE: sum(longest) - len(longest)})
    self.assertCountEqual(
        testing.take_rewards(self.serve_once(paths[0])),
        testing.pairs(checkpoints.episodes(longest)),
    )
    # Nothing but a checkpoint is replaced.
    folder = self.create_tempdir()
    folder.create_file('mine')
    with self.assertRaisesRegex(FileNotFoundError, 'not a whole Reverb'):
      merge.merge_reverb_checkpoints(paths, folder.full_path, overwrite=True)

  def test_other_data(self):
    episodes = checkpoints.episodes([9])
    table = testing.make_table(
        signature=testing.signature_of(golden.stacked(episodes))
    )
    pairs = self.write(episodes, chunk_length=4, **_OPTIONS)
    write = lambda **kwargs: self.write(episodes, **_OPTIONS, **kwargs)
    merged = self.new()
    for others, message in (
        ([], 'must be a checkpoint'),
        ([write(chunk_length=8)], 'or with another chunk_length'),
        (
            [self.write(checkpoints.episodes([1, 9])[1:], **_OPTIONS)],
            'under an identity of its own, or with an episode_id',
        ),
        (
            [write(tables=items.TableItems(checkpoints.OTHER))],
            f"the same tables, but(?s:.*)'{checkpoints.OTHER}'",
        ),
        ([write(reverb_tables=[table])], 'the same tables'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        merge.merge_reverb_checkpoints(others and [pairs, *others], merged)
      self.assertEmpty(os.listdir(os.path.dirname(merged)))
    # Frames that differ have other keys, also under one identity.
    rules = rules_lib.ConversionRules(terminal_discount='transition')
    for other in (write(rules=rules), self.write(episodes, identity='other')):
      counts = merge.merge_reverb_checkpoints([pairs, other], self.new())
      self.assertEqual(counts, {testing.TABLE: 16})


if __name__ == '__main__':
  tf.test.main()
