"""Tests of chunks and items, against plain loops and the form of the keys."""

import hashlib
import json

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
from reverb.cc import schema_pb2
import tensorflow as tf

from rlds2reverb.datasets import fingerprints
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay import layout
from tests.replay import encoded
from tests.replay.local import replay_testing

_WINDOWS = windows_lib.Windows


def _table(name, *windows, by_reward=False, **kwargs):
  if by_reward:
    kwargs['priority'] = lambda item: 10 + tf.reduce_max(item.reward)
  return items.TableItems(
      name, windows and _WINDOWS(*windows) or None, **kwargs
  )


_WITHIN_EPISODES = [
    _table('päirs', 2, by_reward=True),
    _table('single', 1, 3, priority=2.5),
    _table('tiled', 4, 3, 'tile'),
    _table('padded', 7, 2, 'pad', by_reward=True),
    _table('whole', by_reward=True),
    _table('short', max_sequence_length=9, bypass_longer_episodes=True),
]
_LEFT_OVER = [
    _table('strided', 3, 2),
    _table('zero_padded', 4, 3, 'zero_pad'),
    _table('overlapping', 6, 4, 'overlap', by_reward=True),
]
_ACROSS = [
    _table('crossing', 5, 2, 'cross', by_reward=True),
    _table('long', 70, 3, 'cross'),
    _table('pairs', 2),
]


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
  for rows in replay_testing.cut_rows(lengths, length, stride, end):
    item = [[column[row] for row in rows] for column in columns]
    priority = table.priority
    if callable(priority):
      # The reward is the last column but one.
      priority = float(np.float32(10) + np.float32(max(item[-2])))
    found.append((priority, item))
  return found


def _lay_out(blocks, tables, chunk_length, identity, chunks=None, **kwargs):
  """Returns the items of each table: their key, priority and columns.

  Args:
    blocks: the frames.
    tables: the tables.
    chunk_length: the largest length of a chunk.
    identity: the identity of the data.
    chunks: the columns of chunks so far, by their keys; those of equal keys
      must be equal.
    **kwargs: further options.
  """
  source = encoded.source(blocks, tables, identity, chunk_length, **kwargs)
  laid_out = layout.Layout(source)
  columns_of, kept_keys, dates = {}, set(), []
  found = {table.table_name: [] for table in tables}
  for batch in laid_out.batches():
    read = encoded.read_chunks(batch)
    assert len(read) == len(batch.chunks) and not columns_of.keys() & read
    columns_of.update(read)
    for item in encoded.read_items(batch):
      for column in encoded.slices(item):
        assert {key for key, *_ in column} <= kept_keys | read.keys()
      content = encoded.content(item, columns_of)
      found[item.table].append((item.key, item.priority, content))
      dates.append(item.inserted_at.ToNanoseconds())
    assert set(batch.keep_chunk_keys) <= kept_keys | read.keys()
    kept_keys = set(batch.keep_chunk_keys)
  assert len(set(dates)) == len(dates)
  assert laid_out.num_items == {name: len(i) for name, i in found.items()}
  for key, columns in columns_of.items() if chunks is not None else ():
    columns = [column.tolist() for column in columns]
    assert chunks.setdefault(key, columns) == columns
  return found


class LayoutTest(parameterized.TestCase):

  def check_items(self, actual, expected):
    self.assertEqual([item[1:] for item in actual], expected)
    self.assertLen({item[0] for item in actual}, len(actual))

  @parameterized.parameters(
      # Numbers above 127 have several bytes.
      *((_WITHIN_EPISODES, 2), (_WITHIN_EPISODES, 149)),
      *((_LEFT_OVER, 8), (_ACROSS, 2), (_ACROSS, 64)),
  )
  @pytest.mark.few(2)
  def test_random_episodes(self, tables, chunk_length):
    rng, count = np.random.default_rng(chunk_length), 16
    lengths = rng.integers(1, np.where(rng.random(count) < 0.8, 9, 150))
    episodes = [encoded.episode(rng, int(length)) for length in lengths]
    ids = [f'episode_{number}' for number in range(count)]
    settings = tables, chunk_length
    chunks = {}
    one_by_one = _lay_out(
        encoded.blocks(episodes, 1, 64, ids), *settings, 'data', chunks
    )
    for size, one_episode_chunks in ((5, False), (16, True)):
      actual = _lay_out(
          encoded.blocks(episodes, size, None, ids),
          *settings,
          'data',
          chunks,
          one_episode_chunks=one_episode_chunks,
      )
      self.assertEqual(actual, one_by_one)
    random_keys = _lay_out(encoded.blocks(episodes, 5), *settings, None)
    for table in tables:
      expected = _expected(episodes, table)
      self.check_items(one_by_one[table.table_name], expected)
      self.check_items(random_keys[table.table_name], expected)

  def test_few_chunks_are_kept_for_later_requests(self):
    # Of noise, so that there are several batches.
    rng = np.random.default_rng(1)
    for lengths in ([400], [6] * 65):
      for end in ('drop', 'cross'):
        episodes = [encoded.episode(rng, n, 6000) for n in lengths]
        blocks = encoded.blocks(episodes, 1, 16)
        source = encoded.source(blocks, [_table('items', 5, 1, end)])
        batches = list(layout.Layout(source).batches())
        self.assertGreater(len(batches), 2)
        for batch in batches:
          self.assertLess(len(batch.keep_chunk_keys), 8)

  def test_item_keys_are_stable_across_versions(self):
    # Data that was written before must have the same keys of items.
    def key(position, *of):
      content = json.dumps([fingerprints.fingerprint('data', None), *of])
      digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
      base = (
          int.from_bytes(digest, 'little') + (position + 1) * random_lib.GOLDEN
      )
      return int(random_lib.mix_bits(np.array([base % 2**64], np.uint64))[0])

    def keys_of(lengths, *windows, chunk_length=4, identity='data'):
      rng = np.random.default_rng(0)
      episodes = [encoded.episode(rng, n) for n in lengths]
      blocks = encoded.blocks(episodes, len(lengths), None, 'abcde')
      tables = [_table('table', *windows)]
      source = encoded.source(blocks, tables, identity, chunk_length)
      [batch] = layout.Layout(source).batches()
      chunks = list(map(schema_pb2.ChunkData.FromString, batch.chunks))
      return (
          [item.key for item in encoded.read_items(batch)],
          [chunk.chunk_key for chunk in chunks],
          [chunk.sequence_range.episode_id for chunk in chunks],
      )

    a, b, c = ['a', [0, 5, 0]], ['b', [0, 2, 0]], ['c', [0, 1, 0]]
    self.assertEqual(
        keys_of([5, 2, 1], 2, chunk_length=3),
        (
            [key(i, 'item', 'table', 2, 'a') for i in range(4)]
            + [key(0, 'item', 'table', 2, 'b')],
            [key(0, 'chunk', [a], 3), key(3, 'chunk', [a], 3)]
            + [key(0, 'chunk', [b, c], 3)],
            [key(0, 'episode', each) for each in 'aab'],
        ),
    )
    actual = keys_of([4], 3, 1, 'tile')
    self.assertEqual(
        actual[0], [key(i, 'item', 'table', 3, 'a') for i in range(4)]
    )
    self.assertEqual(
        actual[1], [key(i, 'chunk', [['a', [0, 4, 2]]], 4) for i in (0, 4)]
    )
    actual = keys_of([4, 2], 3, 2, 'cross')
    self.assertEqual(actual[0], [key(i, 'item', 'table', 3) for i in (0, 2)])
    self.assertEqual(actual[2], [key(0, 'episode', 'a')] * 2)
    # Without an identity they are random.
    actual = [keys_of([9], 2, identity=None) for _ in range(2)]
    self.assertLen(set(sum((a + b for a, b, _ in actual), [])), 2 * (8 + 3))
    with self.assertRaisesRegex(ValueError, 'no identity that can be hashed'):
      keys_of([9], 2, identity={'map': lambda: 3})

  @parameterized.parameters(
      ([], 'must be a table'),
      ([_table('a', 2), _table('a', 2, 2)], 'one table and one length'),
      (
          [_table('a', 2, 1, 'cross'), _table('b', 2, 1, 'pad')],
          "'a' cross episodes, but the items of table 'b' are padded",
      ),
  )
  def test_incompatible_tables_raise(self, tables, message):
    with self.assertRaisesRegex(ValueError, message):
      layout.Layout(encoded.source([], tables))


if __name__ == '__main__':
  absltest.main()
