"""Tests of merging, joining and splitting checkpoints."""

import os

import numpy as np
import reverb
from reverb.cc import schema_pb2
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests import reverb_testing
from tests.replay.checkpoint import checkpoints

_OPTIONS = {'identity': 'data', 'one_episode_chunks': True}
_JOINED_EPISODES = checkpoints.episodes([5, 3, 4, 1, 6])
_JOINED_TABLES = [
    checkpoints.PAIRS,
    items.TableItems(checkpoints.OTHER, windows_lib.Windows(3)),
]


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
        reverb_testing.take_rewards(second),
        reverb_testing.pairs(parts[2] + parts[0] + parts[1]),
    )

  def test_common_episodes_are_merged_once(self):
    longest = [5, 9, 200]
    paths = [
        self.write(checkpoints.episodes(each), **_OPTIONS)
        for each in ([5, 9], longest)
    ]
    # As a server writes the same: in other bytes, with other dates.
    paths[1] = self.serve(paths[1]).checkpoint()
    # The target exists; merging a second time changes nothing.
    with self.assertRaises(FileExistsError):
      merge.merge_reverb_checkpoints(paths, paths[0])
    for _ in range(2):
      counts = merge.merge_reverb_checkpoints(paths, paths[0], overwrite=True)
      self.assertEqual(
          counts, {reverb_testing.TABLE: sum(longest) - len(longest)}
      )
    self.assertCountEqual(
        reverb_testing.take_rewards(self.serve_once(paths[0])),
        reverb_testing.pairs(checkpoints.episodes(longest)),
    )
    # Nothing but a checkpoint is replaced.
    folder = self.create_tempdir()
    folder.create_file('mine')
    with self.assertRaisesRegex(FileNotFoundError, 'not a complete Reverb'):
      merge.merge_reverb_checkpoints(paths, folder.full_path, overwrite=True)

  def test_checkpoints_of_other_data_are_refused(self):
    episodes = checkpoints.episodes([9])
    table = reverb_testing.make_table(
        signature=reverb_testing.signature_of(golden.stacked(episodes))
    )
    pairs = self.write(episodes, chunk_length=4, **_OPTIONS)
    write = lambda **kwargs: self.write(episodes, **_OPTIONS, **kwargs)
    merged = self.new()
    for others, message in (
        ([], 'must be a checkpoint'),
        ([write(chunk_length=8)], 'or with another chunk_length'),
        (
            [self.write(checkpoints.episodes([1, 9])[1:], **_OPTIONS)],
            'under its own identity, or with an episode_id',
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
    rules = options_lib.ConversionRules(terminal_discount='transition')
    for other in (write(rules=rules), self.write(episodes, identity='other')):
      counts = merge.merge_reverb_checkpoints([pairs, other], self.new())
      self.assertEqual(counts, {reverb_testing.TABLE: 16})

  def test_split_checkpoints_hold_all_items_in_their_order(self):
    episodes = checkpoints.episodes([9, 5, 40])
    tables = [checkpoints.PAIRS, items.TableItems(checkpoints.OTHER, None)]
    # A chunk of 7 frames has items of both parts.
    whole = self.write(
        episodes,
        tables,
        [checkpoints.once(reverb.selectors.Fifo)]
        + [checkpoints.once(reverb.selectors.Fifo, checkpoints.OTHER)],
        chunk_length=7,
    )
    pairs = reverb_testing.pairs(episodes)
    for source in whole, self.serve(whole).checkpoint():
      parts = [self.new(), self.new()]
      counts = merge.split_reverb_checkpoint(source, parts)
      self.assertEqual(
          [each[reverb_testing.TABLE] for each in counts], [26, 25]
      )
      self.assertEqual([each[checkpoints.OTHER] for each in counts], [2, 1])
      actual = [reverb_testing.take_rewards(self.serve(part)) for part in parts]
      self.assertEqual(actual, [pairs[:26], pairs[26:]])
      for path in parts:
        tables = serve.records_lib.read_tables(path)
        self.assertEqual(tables[reverb_testing.TABLE].max_size, 50_000)
    merged = self.new()
    counts = merge.merge_reverb_checkpoints(parts, merged)
    self.assertEqual(counts, {reverb_testing.TABLE: 51, checkpoints.OTHER: 3})
    self.assertEqual(reverb_testing.take_rewards(self.serve(merged)), pairs)

  def test_invalid_split_targets_raise(self):
    path = self.write(checkpoints.episodes([3]))
    target = self.new()
    for targets in [], [target, target]:
      with self.assertRaisesRegex(ValueError, 'one or more different paths'):
        merge.split_reverb_checkpoint(path, targets)
    with self.assertRaises(FileExistsError):
      merge.split_reverb_checkpoint(path, [target, path])
    self.assertFalse(os.path.exists(target))
    # A part may be without items.
    counts = merge.split_reverb_checkpoint(path, [self.new() for _ in range(3)])
    self.assertEqual([each[reverb_testing.TABLE] for each in counts], [1, 1, 0])


class JoinTest(checkpoints.CheckpointTestCase):

  def write_part(self, begin, end, path=None):
    source = frames.make_frame_source(
        golden.batched(_JOINED_EPISODES[begin:end], batch_size=1),
        _JOINED_TABLES,
        options_lib.ConversionOptions(**_OPTIONS),
    )._replace(first_episode=begin)
    path = path or self.new(f'{begin}')
    write.write_checkpoint(source, path, inserted_at=1000 * begin, replace=True)
    return path

  def test_joined_parts_equal_checkpoint_of_one_writer(self):
    # The second part holds an episode without items.
    parts = [self.write_part(*part) for part in ((0, 3), (3, 4), (4, 5))]
    joined = self.new()
    merge.join_checkpoints(parts, joined)
    written_together = self.write(_JOINED_EPISODES, _JOINED_TABLES, **_OPTIONS)
    for file in checkpoints.FILES:
      written, expected = (
          checkpoints.records_of(path, file)
          for path in (joined, written_together)
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
        # A single writer also wrote the chunk of the episode without items.
        self.assertContainsSubset(written, expected)
      else:
        self.assertEqual(written, expected, file)
    self.assertEqual(reverb_testing.size(self.serve(joined)), 14)

  def test_repeated_and_damaged_parts_raise(self):
    part = self.write_part(0, 5)
    self.write_part(0, 1, part)
    merge.join_checkpoints([part], self.new())
    # Two parts have the same keys, which is an error on opening.
    path = self.new()
    merge.join_checkpoints([part, part], path)
    with self.assertRaisesRegex(records.CheckpointError, 'a chunk twice'):
      records.read_index(path)
    for file in records.ITEMS, records.CHUNKS:
      damaged = os.path.join(part, file)
      with open(damaged, 'rb') as f:
        content = f.read()
      cut, changed = content[:-9], bytearray(content)
      changed[len(content) // 2] ^= 4
      for invalid in cut, changed, content[:5], b'':
        with open(damaged, 'wb') as f:
          f.write(invalid)
        with self.assertRaisesRegex(
            records.CheckpointError, f'{part} is damaged: {file} cannot be read'
        ):
          merge.join_checkpoints([part], self.new())
      os.unlink(damaged)
      with self.assertRaisesRegex(records.CheckpointError, 'No such file'):
        merge.join_checkpoints([part], self.new())
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
      merge.join_files([path for path, _ in parts], joined)
      self.assertEqual(
          checkpoints.records_of(folder, records.ITEMS),
          sum([contents for _, contents in parts], []),
          number,
      )


if __name__ == '__main__':
  tf.test.main()
