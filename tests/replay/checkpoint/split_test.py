"""Tests of checkpoints that are split, and of the servers of their parts."""

import os

from absl.testing import absltest
import reverb

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import resharding
from rlds2reverb.replay.checkpoint import serve
from tests import testing
from tests.replay.checkpoint import checkpoints

_EPISODES = checkpoints.episodes([5, 3, 4, 1, 150])
_PAIRS = checkpoints.pairs(_EPISODES)
_OTHER = items.TableItems(checkpoints.OTHER, windows_lib.Windows(3))


class SplitTest(checkpoints.CheckpointTestCase):

  def _write(self):
    settings = checkpoints.once(reverb.selectors.Fifo())
    return self.write(
        _EPISODES, [checkpoints.PAIRS, _OTHER], reverb_tables=[settings]
    )

  def test_each_part_has_its_share_in_order(self):
    parts = [self.new(str(i)) for i in range(3)]
    whole = self._write()
    counts = resharding.split_reverb_checkpoint(whole, parts)
    # 158 pairs, and 154 items of three frames.
    self.assertEqual(
        [list(count.values()) for count in counts],
        [[53, 52], [53, 51], [52, 51]],
    )
    rewards = [checkpoints.take_rewards(self.serve(part)) for part in parts]
    self.assertEqual(rewards, [_PAIRS[:53], _PAIRS[53:106], _PAIRS[106:]])
    # Only the chunks at the two borders are there twice.
    num_chunks, *of_parts = (
        len(checkpoints.records_of(path, records.CHUNKS))
        for path in (whole, *parts)
    )
    self.assertLessEqual(sum(of_parts), num_chunks + 4)

  def test_servers_of_the_parts(self):
    whole = self._write()
    parts = [self.new(str(i)) for i in range(2)]
    resharding.split_reverb_checkpoint(whole, parts)
    rewards = [checkpoints.take_rewards(self.serve(part)) for part in parts]
    self.assertEqual(rewards, [_PAIRS[:79], _PAIRS[79:]])

  def test_more_parts_than_items(self):
    path = self.write(checkpoints.episodes([3]))
    parts = [self.new(str(i)) for i in range(3)]
    counts = resharding.split_reverb_checkpoint(path, parts)
    self.assertEqual([count[testing.TABLE] for count in counts], [1, 1, 0])
    server = serve.restore_reverb_server(parts[2])
    self.addCleanup(server.stop)
    self.assertEqual(testing.size(server.localhost_client()), 0)

  def test_a_damaged_checkpoint_leaves_nothing(self):
    path = self._write()
    contents = checkpoints.records_of(path, records.ITEMS)
    checkpoints.rewrite(path, records.ITEMS, contents[:-1])
    part = self.new()
    with self.assertRaisesRegex(records.CheckpointError, 'is damaged'):
      resharding.split_reverb_checkpoint(path, [part])
    self.assertFalse(os.path.exists(part))

  def test_arguments_that_do_not_fit(self):
    path = self._write()
    with self.assertRaisesRegex(ValueError, 'must be a directory'):
      resharding.split_reverb_checkpoint(path, [])


if __name__ == '__main__':
  absltest.main()
