"""Tests of chunks and items, against plain loops and the form of the keys."""

import hashlib
import json

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from reverb.cc import schema_pb2
import tensorflow as tf

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import draws
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import items
from rlds2reverb.replay import layout
from tests.replay import encoded
from tests.replay.local import cuts


def _highest_reward(item):
  return 10 + tf.reduce_max(item.reward)


_TABLES = {
    'drop': [
        items.TableItems('pairs', priority=_highest_reward),
        items.TableItems('strided', windows_lib.Windows(3, 2)),
        items.TableItems('single', windows_lib.Windows(1, 3), priority=2.5),
    ],
    'padded': [
        items.TableItems('tiled', windows_lib.Windows(4, 3, 'tile')),
        items.TableItems(
            'padded', windows_lib.Windows(7, 2, 'pad'), priority=_highest_reward
        ),
        items.TableItems('pairs'),
        items.TableItems('whole', None),
    ],
    'left_over': [
        items.TableItems('zero_padded', windows_lib.Windows(4, 3, 'zero_pad')),
        items.TableItems(
            'overlapping',
            windows_lib.Windows(6, 4, 'overlap'),
            priority=_highest_reward,
        ),
        items.TableItems('pairs'),
    ],
    'cross': [
        items.TableItems(
            'crossing',
            windows_lib.Windows(5, 2, 'cross'),
            priority=_highest_reward,
        )
    ],
    'cross_and_drop': [
        items.TableItems('crossing', windows_lib.Windows(70, 3, 'cross')),
        items.TableItems('pairs'),
    ],
    'whole': [
        items.TableItems('whole', None, priority=_highest_reward),
        items.TableItems(
            'short', None, max_sequence_length=9, bypass_longer_episodes=True
        ),
    ],
}


def _expected(episodes, table):
  """Returns the priority and columns of every item, found by plain loops."""
  windows = table.windows
  length, stride, end = None, 1, 'drop'
  if windows is not None:
    length, stride, end = windows.length, windows.stride, windows.end.value
  longest = table.max_sequence_length or np.inf
  episodes = [each for each in episodes if len(each.reward) <= longest]
  frames = encoded.concatenated(episodes)
  columns = [leaf.tolist() for leaf in tf.nest.flatten(frames)]
  for column, leaf in zip(columns, tf.nest.flatten(frames)):
    column.append(b'' if leaf.dtype == object else (leaf[0] * 0).tolist())
  columns[0][-1] = 2
  lengths = [len(each.reward) for each in episodes]
  found = []
  for rows in cuts.cut_rows(lengths, length, stride, end):
    item = [[column[row] for row in rows] for column in columns]
    priority = table.priority
    if callable(priority):
      # The reward is the last column but one.
      priority = float(np.float32(10) + np.float32(max(item[-2])))
    found.append((priority, item))
  return found


def _random_episodes(rng, count, longest=150):
  lengths = np.where(
      rng.random(count) < 0.8,
      rng.integers(1, 9, count),
      rng.integers(1, longest + 1, count),
  )
  return [encoded.episode(rng, int(length)) for length in lengths]


def _lay_out(
    blocks, tables, chunk_length, identity, chunks_so_far=None, **kwargs
):
  """Returns the items of each table: their key, priority and columns."""
  source = encoded.source(blocks, tables, identity, chunk_length, **kwargs)
  laid_out = layout.Layout(source)
  columns_of = {}
  found = {table.table_name: [] for table in tables}
  dates = []
  for batch in laid_out.batches():
    read = encoded.read_chunks(batch)
    assert batch.chunk_keys.tolist() == list(read)
    assert len(read) == len(batch.chunks) and not columns_of.keys() & read
    columns_of.update(read)
    for item in encoded.read_items(batch):
      content = encoded.content(item, columns_of)
      found[item.table].append((item.key, item.priority, content))
      dates.append(item.inserted_at.ToNanoseconds())
  assert len(set(dates)) == len(dates)
  assert laid_out.num_items == {name: len(i) for name, i in found.items()}
  if chunks_so_far is not None:
    for key, columns in columns_of.items():
      columns = [column.tolist() for column in columns]
      assert chunks_so_far.setdefault(key, columns) == columns
  return found


def _assert_equal_batches(test, seed, count, tables, chunk_length, sizes):
  episodes = _random_episodes(np.random.default_rng(seed), count)
  ids = [f'episode_{number}' for number in range(count)]
  expected = {table.table_name: _expected(episodes, table) for table in tables}
  chunks = {}
  one_by_one = _lay_out(
      encoded.one_by_one(episodes, 64, ids),
      tables,
      chunk_length,
      'data',
      chunks,
  )
  for name, found in one_by_one.items():
    test.assertEqual([item[1:] for item in found], expected[name])
    test.assertLen({item[0] for item in found}, len(found))
  for size in sizes:
    for one_episode_chunks in (False, True):
      found = _lay_out(
          encoded.batched(episodes, size, ids),
          tables,
          chunk_length,
          'data',
          chunks,
          one_episode_chunks=one_episode_chunks,
      )
      test.assertEqual(found, one_by_one)
    found = _lay_out(
        encoded.batched(episodes, size), tables, chunk_length, None
    )
    for name in expected:
      test.assertEqual([item[1:] for item in found[name]], expected[name])


class LayoutTest(parameterized.TestCase):

  @parameterized.product(tables=tuple(_TABLES), chunk_length=(2, 8, 64))
  def test_random_episodes(self, tables, chunk_length):
    _assert_equal_batches(
        self, chunk_length, 16, _TABLES[tables], chunk_length, [1, 5, 16]
    )

  def test_keeps_the_chunks_that_later_items_refer_to(self):
    # Of noise, so that there are several batches.
    rng = np.random.default_rng(1)
    for lengths in ([400], [90] * 5, [6] * 65):
      for end in ('drop', 'cross'):
        episodes = [encoded.episode(rng, n, 6000) for n in lengths]
        source = encoded.source(
            encoded.one_by_one(episodes, 16),
            [items.TableItems('items', windows_lib.Windows(5, end=end))],
        )
        batches = list(layout.Layout(source).batches())
        self.assertGreater(len(batches), 2)
        sent = [set(encoded.read_chunks(batch)) for batch in batches]
        used = [
            {
                key
                for item in encoded.read_items(batch)
                for column in encoded.slices(item)
                for key, _, _, _ in column
            }
            for batch in batches
        ]
        for index, batch in enumerate(batches):
          so_far = set().union(*sent[: index + 1])
          later = set().union(*used[index + 1 :])
          kept = set(batch.keep_chunk_keys)
          self.assertContainsSubset(so_far & later, kept)
          self.assertContainsSubset(kept, so_far)
          self.assertLess(len(kept), 8)

  def test_what_keys_depend_on(self):
    # Data that was written before must have the same keys.
    def key(position, *of):
      content = json.dumps([identity_lib.fingerprint('data', None), *of])
      digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
      base = int.from_bytes(digest, 'little') + (position + 1) * draws.GOLDEN
      return int(draws.mix_bits(np.array([base % 2**64], np.uint64))[0])

    def keys_of(lengths, windows, chunk_length):
      rng = np.random.default_rng(0)
      ids = list('abcde')[: len(lengths)]
      episodes = [encoded.episode(rng, n) for n in lengths]
      source = encoded.source(
          encoded.batched(episodes, len(lengths), ids),
          [items.TableItems('table', windows)],
          'data',
          chunk_length,
      )
      [batch] = layout.Layout(source).batches()
      chunks = list(map(schema_pb2.ChunkData.FromString, batch.chunks))
      return (
          np.concatenate(batch.item_keys).tolist(),
          [chunk.chunk_key for chunk in chunks],
          [chunk.sequence_range.episode_id for chunk in chunks],
      )

    found = keys_of([5, 2, 1], windows_lib.Windows(2), 3)
    self.assertEqual(
        found,
        (
            [key(i, 'item', 'table', 2, 'a') for i in range(4)]
            + [key(0, 'item', 'table', 2, 'b')],
            [
                key(0, 'chunk', 'a', 3),
                key(3, 'chunk', 'a', 3),
                key(0, 'episodes', [['b', 2, 0], ['c', 1, 0]], 3),
            ],
            [key(0, 'episode', each) for each in 'aab'],
        ),
    )
    item_keys, chunk_keys, _ = keys_of(
        [4], windows_lib.Windows(3, 1, 'tile'), 4
    )
    self.assertEqual(
        item_keys, [key(i, 'item', 'table', 3, 'a') for i in range(4)]
    )
    self.assertEqual(chunk_keys, [key(i, 'chunk', 'a', 4, 2) for i in (0, 4)])
    item_keys, _, episode_keys = keys_of(
        [4, 2], windows_lib.Windows(3, 2, 'cross'), 4
    )
    self.assertEqual(item_keys, [key(i, 'item', 'table', 3) for i in (0, 2)])
    self.assertEqual(episode_keys, [key(0, 'episode', 'a')] * 2)
    # Without an identity they are random.
    rng = np.random.default_rng(0)
    [one], [other] = [
        layout.Layout(
            encoded.source(
                encoded.one_by_one([encoded.episode(rng, 9)], 9),
                [items.TableItems('table')],
            )
        ).batches()
        for _ in range(2)
    ]
    found = np.concatenate(
        [*one.item_keys, *other.item_keys, one.chunk_keys, other.chunk_keys]
    )
    self.assertLen(set(found.tolist()), 8 + 8 + 3 + 3)
    with self.assertRaisesRegex(ValueError, 'no identity that can be hashed'):
      layout.Layout(
          encoded.source([], [items.TableItems('table')], {'map': lambda: 3})
      )

  @parameterized.product(end=('drop', 'tile'), block_length=(4, 100))
  def test_an_episode_that_ends_several_times(self, end, block_length):
    # As TF-Agents takes them: one RLDS episode, in which LAST comes thrice.
    rng = np.random.default_rng(6)
    parts = [encoded.episode(rng, length) for length in (3, 9, 3, 4)]
    joined = encoded.concatenated(parts)
    table = items.TableItems('items', windows_lib.Windows(3, end=end))
    found = _lay_out(
        encoded.one_by_one([joined], block_length), [table], 8, 'data', {}
    )['items']
    self.assertEqual([item[1:] for item in found], _expected(parts, table))
    self.assertLen({item[0] for item in found}, len(found))

  def test_data_that_ends_in_mid_episode(self):
    episode = encoded.episode(np.random.default_rng(6), 9)
    open_ended = encoded.rows(episode, 0, 8)
    for end, count in (('drop', 6), ('tile', 6), ('cross', 6)):
      table = items.TableItems('items', windows_lib.Windows(3, end=end))
      found = _lay_out(encoded.one_by_one([open_ended], 4), [table], 4, 'data')[
          'items'
      ]
      self.assertLen(found, count)

  def test_tables_that_do_not_go_together(self):
    for tables, message in (
        ([], 'must be a table'),
        (
            [
                items.TableItems('a', windows_lib.Windows(2, end='cross')),
                items.TableItems('b', windows_lib.Windows(2, end='pad')),
            ],
            "'a' cross episodes, between which those of table 'b' are padded",
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        layout.Layout(encoded.source([], tables))


class EncodingTest(absltest.TestCase):

  def test_items_are_those_that_messages_are(self):
    rng = np.random.default_rng(0)
    for num_slices, num_columns in ((1, 1), (2, 3), (40, 130)):
      keys = rng.integers(0, 2**64, 3, np.uint64)
      chunk_keys = rng.integers(0, 2**64, 3 * num_slices, np.uint64)
      offsets, lengths = rng.integers(0, 2**28, (2, 3 * num_slices))
      dates = np.array([0, 10**18 + 1, 2 * 10**18])
      priorities = np.array([0, 1.5, np.inf])
      splits = np.arange(4) * num_slices
      slices = encoding.Slices(splits, chunk_keys, offsets, lengths)
      found = encoding.encode_items(
          'täble', keys, priorities, slices, num_columns, dates
      )
      for row, item in enumerate(found):
        expected = schema_pb2.PrioritizedItem(
            key=keys[row], table='täble', priority=priorities[row]
        )
        expected.inserted_at.FromNanoseconds(int(dates[row]))
        for column in range(num_columns):
          added = expected.flat_trajectory.columns.add()
          for place in range(splits[row], splits[row + 1]):
            added.chunk_slices.add(
                chunk_key=chunk_keys[place],
                offset=offsets[place],
                length=lengths[place],
                index=column,
            )
        self.assertEqual(schema_pb2.PrioritizedItem.FromString(item), expected)


if __name__ == '__main__':
  absltest.main()
