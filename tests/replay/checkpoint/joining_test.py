"""Tests of joining parts of checkpoints, and of serving the result."""

import os
import zlib

from absl.testing import absltest
import numpy as np
from reverb.cc import schema_pb2

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import parts
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests import testing
from tests.replay.checkpoint import checkpoints

_EPISODES = checkpoints.episodes([5, 3, 4, 1, 6])
_OTHER = items.TableItems(checkpoints.OTHER, windows_lib.Windows(3))
_TABLES = [checkpoints.PAIRS, _OTHER]


def _without_dates(contents):
  parsed = map(schema_pb2.PrioritizedItem.FromString, contents)
  return [
      (item.key, item.table, item.priority, item.flat_trajectory)
      for item in parsed
  ]


class JoiningTest(checkpoints.CheckpointTestCase):

  def _write(self, begin, end, inserted_at=0, identity='data'):
    source = frames.make_frame_source(
        golden.batched(_EPISODES[begin:end], batch_size=1),
        _TABLES,
        options_lib.ConversionOptions(identity=identity),
    )._replace(first_episode=begin)
    folder = self.new(f'{begin}')
    parts.write_part(source, folder, inserted_at=inserted_at)
    return folder, source.spec

  def test_joined_parts_are_the_checkpoint_that_one_writer_writes(self):
    # The second part holds an episode without items.
    folders, specs = zip(
        *[
            self._write(begin, end, 1000 * begin)
            for begin, end in ((0, 3), (3, 4), (4, 5))
        ]
    )
    joined = self.new()
    counts = parts.join_parts(folders, joined, specs[0])
    self.assertEqual(counts, {testing.TABLE: 14, checkpoints.OTHER: 10})
    at_once = self.write(_EPISODES, _TABLES, identity='data')
    for file in checkpoints.FILES:
      with self.subTest(file):
        written, expected = (
            checkpoints.records_of(path, file) for path in (joined, at_once)
        )
        if file == records.ITEMS:
          self.assertLen(written, 24)
          written, expected = map(_without_dates, (written, expected))
        self.assertEqual(written, expected)
    self.assertEqual(testing.size(self.serve(joined)), 14)

  def test_two_parts_under_the_same_keys_are_refused(self):
    one, spec = self._write(0, 2)
    other, _ = self._write(1, 3)
    with self.assertRaisesRegex(ValueError, 'Two chunks have the same key'):
      parts.join_parts([one, other], self.new(), spec)

  def test_a_part_that_was_cut_is_refused(self):
    folder, spec = self._write(0, 2)
    path = os.path.join(folder, records.ITEMS)
    os.truncate(path, os.path.getsize(path) - 1)
    with self.assertRaisesRegex(
        records.CheckpointError, 'items.tfrecord does not have the'
    ):
      parts.join_parts([folder], self.new(), spec)

  def test_a_part_takes_the_place_of_an_older_one(self):
    folder, spec = self._write(0, 5)
    source = frames.make_frame_source(
        golden.stacked(_EPISODES[:1]),
        _TABLES,
        options_lib.ConversionOptions(identity='data'),
    )
    parts.write_part(source, folder, inserted_at=0)
    counts = parts.join_parts([folder], self.new(), spec)
    self.assertEqual(counts, {testing.TABLE: 4, checkpoints.OTHER: 3})

  def test_checksums_add_up(self):
    rng = np.random.default_rng(0)
    for sizes in (0, 0), (1, 0), (0, 3), (70_000, 200_001):
      first, second = (rng.bytes(size) for size in sizes)
      self.assertEqual(
          parts._joined_checksum(  # pylint: disable=protected-access
              zlib.adler32(first), zlib.adler32(second), len(second)
          ),
          zlib.adler32(first + second),
      )


if __name__ == '__main__':
  absltest.main()
