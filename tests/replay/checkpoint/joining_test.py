"""Tests of joining parts of checkpoints, and of serving the result."""

import os

from absl.testing import absltest
from reverb.cc import schema_pb2

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests import testing
from tests.replay.checkpoint import checkpoints

_EPISODES = checkpoints.episodes([5, 3, 4, 1, 6])
_OTHER = items.TableItems(checkpoints.OTHER, windows_lib.Windows(3))
_TABLES = [checkpoints.PAIRS, _OTHER]
_OPTIONS = {'identity': 'data', 'one_episode_chunks': True}


class JoiningTest(checkpoints.CheckpointTestCase):

  def write_part(self, begin, end, path=None):
    source = frames.make_frame_source(
        golden.batched(_EPISODES[begin:end], batch_size=1),
        _TABLES,
        options_lib.ConversionOptions(**_OPTIONS),
    )._replace(first_episode=begin)
    path = path or self.new(f'{begin}')
    write.write_checkpoint(source, path, inserted_at=1000 * begin, replace=True)
    return path

  def test_joined_parts_are_the_checkpoint_that_one_writer_writes(self):
    # The second part holds an episode without items.
    parts = [self.write_part(*part) for part in ((0, 3), (3, 4), (4, 5))]
    joined = self.new()
    merge.join_checkpoints(parts, joined)
    at_once = self.write(_EPISODES, _TABLES, **_OPTIONS)
    for file in checkpoints.FILES:
      written, expected = (
          checkpoints.records_of(path, file) for path in (joined, at_once)
      )
      if file == records.ITEMS:
        written, expected = (
            sorted(
                (item.table, item.key, str(item.flat_trajectory))
                for item in map(schema_pb2.PrioritizedItem.FromString, each)
            )
            for each in (written, expected)
        )
        self.assertLen(written, 24)
      if file == records.CHUNKS:
        # That of the episode without items was written by the one writer.
        self.assertContainsSubset(written, expected)
      else:
        self.assertEqual(written, expected, file)
    self.assertEqual(testing.size(self.serve(joined)), 14)

  def test_parts_that_are_replaced_or_damaged(self):
    part = self.write_part(0, 5)
    self.write_part(0, 1, part)
    merge.join_checkpoints([part], self.new())
    # Under the same keys as another part: what opens the checkpoint says so.
    path = self.new()
    merge.join_checkpoints([part, part], path)
    with self.assertRaisesRegex(records.CheckpointError, 'a chunk twice'):
      records.read_index(path)
    items_of = checkpoints.records_of(part, records.ITEMS)
    checkpoints.rewrite(part, records.ITEMS, items_of[1:])
    with self.assertRaisesRegex(
        records.CheckpointError, 'there are 6 items, but 7 by the tables'
    ):
      merge.join_checkpoints([part], self.new())
    file = os.path.join(part, records.ITEMS)
    os.truncate(file, os.path.getsize(file) - 9)
    with self.assertRaisesRegex(records.CheckpointError, 'items.* is damaged'):
      merge.join_checkpoints([part], self.new())


if __name__ == '__main__':
  absltest.main()
