"""Tests of joining parts of checkpoints, and of serving the result."""

import os

from absl.testing import absltest
import numpy as np
from reverb.cc import schema_pb2

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import joining
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
    joining.join_checkpoints(parts, joined)
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
    joining.join_checkpoints([part], self.new())
    # Under the same keys as another part: what opens the checkpoint says so.
    path = self.new()
    joining.join_checkpoints([part, part], path)
    with self.assertRaisesRegex(records.CheckpointError, 'a chunk twice'):
      records.read_index(path)
    for file in records.ITEMS, records.CHUNKS:
      damaged = os.path.join(part, file)
      with open(damaged, 'rb') as f:
        content = f.read()
      cut, changed = content[:-9], bytearray(content)
      changed[len(content) // 2] ^= 4
      for wrong in cut, changed, content[:5], b'':
        with open(damaged, 'wb') as f:
          f.write(wrong)
        with self.assertRaisesRegex(
            records.CheckpointError, f'{part} is damaged: {file} cannot be read'
        ):
          joining.join_checkpoints([part], self.new())
      os.unlink(damaged)
      with self.assertRaisesRegex(records.CheckpointError, 'No such file'):
        joining.join_checkpoints([part], self.new())
      with open(damaged, 'wb') as f:
        f.write(content)

  def test_files_of_any_size_are_joined_at_any_bit(self):
    rng = np.random.default_rng(3)
    for number in range(20):
      folder = self.new()
      os.makedirs(folder)
      parts = []
      for part in range(rng.integers(1, 6)):
        contents = [
            rng.bytes(rng.integers(0, 60)) * rng.integers(1, 4)
            for _ in range(rng.choice([0, 1, 2, 20]))
        ]
        path = os.path.join(folder, f'{part}')
        with records.RecordFile(path) as file:
          file.write(contents)
        parts.append((path, contents))
      joined = os.path.join(folder, records.ITEMS)
      joining.join_files([path for path, _ in parts], joined)
      self.assertEqual(
          sum(records.read(folder, records.ITEMS), []),
          sum([contents for _, contents in parts], []),
          number,
      )


if __name__ == '__main__':
  absltest.main()
