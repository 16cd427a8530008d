"""Tests of the chunks and items that blocks of frames become."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from reverb.cc import schema_pb2
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import chunks
from rlds2reverb.replay import items
from rlds2reverb.replay import layout
from tests.replay import encoded

_TABLE = 'table'
_GROUPS = encoded.GROUPS


def _expected(episodes, length, stride):
  """Returns the columns of the items that do not cross episodes."""
  return [
      [
          leaf.tolist()
          for leaf in tf.nest.flatten(encoded.rows(episode, start, length))
      ]
      for episode in episodes
      for start in range(0, len(episode.step_type) - length + 1, stride)
  ]


class LayoutTest(parameterized.TestCase):

  @parameterized.product(
      groups=tuple(_GROUPS),
      lengths=((1, 1), (2, 1), (5, 3), (3, 7), (11, 2)),
      block_length=(8, 16, 1000),
  )
  def test_items_are_their_frames(self, groups, lengths, block_length):
    rng = np.random.default_rng(4)
    episodes = [encoded.episode(rng, length) for length in (30, 1, 8, 23, 2)]
    laid_out = layout.Layout(
        [items.TableItems(_TABLE, windows_lib.Windows(*lengths))],
        None,
        _GROUPS[groups],
    )
    columns_of = {}
    found = []
    for batch in laid_out.batches(encoded.one_by_one(episodes, block_length)):
      columns_of.update(encoded.read_chunks(batch))
      found += [
          encoded.content(item, columns_of)
          for item in encoded.read_items(batch)
      ]
    self.assertNotEmpty(found)
    self.assertEqual(found, _expected(episodes, *lengths))

  def test_many_chunks_of_one_group_and_one_of_another(self):
    episode = encoded.episode(np.random.default_rng(0), 9)
    laid_out = layout.Layout(
        [items.TableItems(_TABLE, windows_lib.Windows(6, 2))],
        'identity',
        _GROUPS['large_2_small_8'],
    )
    (batch,) = laid_out.batches(encoded.one_by_one([episode], 100))
    # |          a           | b |
    # |  c  |  d  |  e  |  f  | g |
    a, b, c, d, e, f, g = [
        schema_pb2.ChunkData.FromString(chunk).chunk_key
        for chunk in batch.chunks
    ]
    self.assertLen({a, b, c, d, e, f, g}, 7)

    def columns(small, large):
      places = [
          (small, 0),
          (large, 0),
          (small, 1),
          (large, 1),
          (small, 2),
          (small, 3),
          (small, 4),
          (small, 5),
      ]
      return [[(*rows, index) for rows in group] for group, index in places]

    self.assertEqual(
        [encoded.slices(item) for item in encoded.read_items(batch)],
        [
            columns([(a, 0, 6)], [(c, 0, 2), (d, 0, 2), (e, 0, 2)]),
            columns([(a, 2, 6)], [(d, 0, 2), (e, 0, 2), (f, 0, 2)]),
        ],
    )
    laid_out = layout.Layout(
        [items.TableItems(_TABLE, None)], 'identity', _GROUPS['large_2_small_8']
    )
    (batch,) = laid_out.batches(encoded.one_by_one([episode], 100))
    (item,) = encoded.read_items(batch)
    self.assertEqual(
        encoded.slices(item),
        columns(
            [(a, 0, 8), (b, 0, 1)],
            [(c, 0, 2), (d, 0, 2), (e, 0, 2), (f, 0, 2), (g, 0, 1)],
        ),
    )

  @parameterized.parameters(*_GROUPS)
  def test_keeps_the_chunks_that_later_items_refer_to(self, groups):
    # Of noise, so that there are several batches.
    episode = encoded.episode(np.random.default_rng(1), 400, image_bytes=6000)
    laid_out = layout.Layout(
        [items.TableItems(_TABLE, windows_lib.Windows(5))],
        None,
        _GROUPS[groups],
    )
    batches = list(laid_out.batches(encoded.one_by_one([episode], 16)))
    self.assertGreater(len(batches), 3)
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
      self.assertEqual(sorted(batch.keep_chunk_keys), sorted(so_far & later))
      self.assertEqual(bool(so_far & later), index < len(batches) - 1)

  def test_keys_under_an_identity(self):
    episode = encoded.episode(np.random.default_rng(2), 20)
    groupings = [
        *_GROUPS.values(),
        chunks.one_group(episode, 8),
        chunks.one_group(episode, 2),
        [chunks.ColumnGroup(tuple(range(7)), 8), chunks.ColumnGroup((7,), 8)],
    ]
    chunk_keys = []
    item_keys = []
    for groups in groupings:
      for _ in range(2):
        laid_out = layout.Layout(
            [items.TableItems(_TABLE, windows_lib.Windows(3, 2, 'tile'))],
            'identity',
            groups,
        )
        (batch,) = laid_out.batches(encoded.one_by_one([episode], 16))
        keys = sorted(encoded.read_chunks(batch))
        self.assertLen(keys, len(batch.chunks))
        chunk_keys.append(keys)
        item_keys.append([item.key for item in encoded.read_items(batch)])
    # The same each time, and what other chunks hold is under other keys.
    self.assertEqual(chunk_keys[::2], chunk_keys[1::2])
    every = sum(chunk_keys[::2], [])
    self.assertLen(set(every), len(every))
    # An item is the same however it is stored.
    for keys in item_keys[1:]:
      self.assertEqual(keys, item_keys[0])

  @parameterized.parameters('drop', 'tile')
  def test_keys_of_an_episode_that_ends_several_times(self, end):
    # As TF-Agents takes them: one RLDS episode, in which LAST comes thrice.
    rng = np.random.default_rng(6)
    parts = [encoded.episode(rng, length) for length in (3, 9, 4)]
    joined = encoded.concatenated(parts)
    for block_length in (4, 100):
      laid_out = layout.Layout(
          [items.TableItems(_TABLE, windows_lib.Windows(3, end=end))],
          'identity',
          _GROUPS['large_2_small_8'],
      )
      blocks = encoded.one_by_one([joined], block_length)
      batches = list(laid_out.batches(blocks))
      chunks_of = [encoded.read_chunks(batch) for batch in batches]
      columns_of = {
          key: columns for read in chunks_of for key, columns in read.items()
      }
      self.assertLen(columns_of, sum(len(batch.chunks) for batch in batches))
      found = sum(map(encoded.read_items, batches), [])
      self.assertLen({item.key for item in found}, len(found))
      contents = [encoded.content(item, columns_of) for item in found]
      if end == 'drop':
        self.assertEqual(contents, _expected(parts, 3, 1))
      else:
        self.assertLen(contents, 3 + 9 + 4)

  def test_an_item_is_the_same_whatever_becomes_of_the_end(self):
    episode = encoded.episode(np.random.default_rng(6), 9)
    keys = {}
    for end in ('drop', 'pad', 'tile', 'cross'):
      laid_out = layout.Layout(
          [items.TableItems(_TABLE, windows_lib.Windows(3, 2, end))],
          'identity',
          _GROUPS['one_group'],
      )
      (batch,) = laid_out.batches(encoded.one_by_one([episode], 100))
      keys[end] = [item.key for item in encoded.read_items(batch)]
    self.assertLen(keys['drop'], 4)
    self.assertEqual(keys['pad'], keys['drop'])
    self.assertEqual(keys['tile'][:4], keys['drop'])
    self.assertLen(set(keys['tile']), 5)
    # Its like may go on into the next episode.
    self.assertNoCommonElements(keys['cross'], keys['tile'])

  @parameterized.parameters(4, 100)
  def test_nothing_of_an_episode_that_is_too_long(self, block_length):
    rng = np.random.default_rng(7)
    episodes = [encoded.episode(rng, length) for length in (10, 3, 11, 2)]
    laid_out = layout.Layout(
        [
            items.TableItems('pairs'),
            items.TableItems('whole', None, max_sequence_length=10),
            items.TableItems('longer', None, max_sequence_length=20),
        ],
        None,
        _GROUPS['one_group'],
    )
    batches = []
    with self.assertRaisesRegex(ValueError, 'Episode 2 has more frames than'):
      for batch in laid_out.batches(encoded.one_by_one(episodes, block_length)):
        batches.append(batch)
    columns_of = {}
    for batch in batches:
      columns_of.update(encoded.read_chunks(batch))
    found = {'pairs': [], 'whole': [], 'longer': []}
    for item in sum(map(encoded.read_items, batches), []):
      found[item.table].append(encoded.content(item, columns_of))
    whole = [
        [leaf.tolist() for leaf in tf.nest.flatten(episode)]
        for episode in episodes[:2]
    ]
    self.assertEqual(found['pairs'], _expected(episodes[:2], 2, 1))
    self.assertEqual(found['whole'], whole)
    self.assertEqual(found['longer'], whole)

  @parameterized.product(
      groups=tuple(_GROUPS), block_length=(8, 24), length=(3, None)
  )
  def test_priorities_of_frames(self, groups, block_length, length):
    rng = np.random.default_rng(3)
    episodes = [encoded.episode(rng, count) for count in (50, 3, 17)]

    def priority(item):
      return tf.reduce_sum(tf.abs(item.reward)) + tf.cast(
          tf.reduce_max(item.observation['image']), tf.float32
      )

    laid_out = layout.Layout(
        [
            items.TableItems(
                _TABLE,
                None if length is None else windows_lib.Windows(length),
                priority=priority,
            )
        ],
        None,
        _GROUPS[groups],
    )
    blocks = encoded.one_by_one(episodes, block_length)
    found = [
        item.priority
        for batch in laid_out.batches(blocks)
        for item in encoded.read_items(batch)
    ]
    expected = []
    for episode in episodes:
      count = len(episode.reward)
      size = length or count
      for start in range(count - size + 1):
        rows = slice(start, start + size)
        expected.append(
            sum(map(abs, episode.reward[rows].tolist()))
            + int(episode.observation['image'][rows].max())
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


if __name__ == '__main__':
  absltest.main()
