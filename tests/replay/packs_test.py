"""Tests that episodes that come together become what they become one by one."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
from reverb.cc import schema_pb2
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay import layout
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import bulk
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing
from tests.replay import encoded


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
  length, stride, end = None, 1, 'drop'
  if table.windows is not None:
    length, stride = table.windows.length, table.windows.stride
    end = table.windows.end.value
  if end == 'cross':
    episodes = [encoded.concatenated(episodes)]
  found = []
  for frames in episodes:
    count = len(frames.reward)
    if table.max_sequence_length and count > table.max_sequence_length:
      continue
    size = length or count
    starts = [s for s in range(0, count, stride) if s + size <= count]
    if end == 'tile':
      starts = range(0, count, stride)
    elif end == 'pad' and count < size:
      starts = [0]
    elif end in ('zero_pad', 'overlap'):
      following = len(starts) * stride
      covered = starts[-1] + size if starts else 0
      if following < count and covered < count:
        latest = max(count - size, 0)
        starts.append(latest if end == 'overlap' else following)
    columns = [
        [*leaf.tolist(), *[_zero(leaf)] * size]
        for leaf in tf.nest.flatten(frames)
    ]
    columns[0][count:] = [2] * size
    for start in starts:
      item = [column[start : start + size] for column in columns]
      priority = table.priority
      if callable(priority):
        # The reward is the last column but one.
        priority = float(np.float32(10) + np.float32(max(item[-2])))
      found.append((priority, item))
  return found


def _zero(leaf):
  return b'' if leaf.dtype == object else np.zeros_like(leaf[0]).tolist()


def _random_episodes(rng, count, longest=300):
  lengths = np.where(
      rng.random(count) < 0.8,
      rng.integers(1, 9, count),
      rng.integers(1, longest + 1, count),
  )
  return [encoded.episode(rng, int(length)) for length in lengths]


def _lay_out(blocks, tables, groups, identity, chunks_so_far=None, **kwargs):
  """Returns the items of each table: their key, priority and columns."""
  laid_out = layout.Layout(tables, identity, encoded.GROUPS[groups], **kwargs)
  columns_of = {}
  found = {table.table_name: [] for table in tables}
  dates = []
  for batch in laid_out.batches(blocks):
    read = encoded.read_chunks(batch)
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


def _assert_equal_packs(test, seed, count, tables, groups, sizes):
  episodes = _random_episodes(np.random.default_rng(seed), count)
  ids = [f'episode_{number}' for number in range(count)]
  expected = {table.table_name: _expected(episodes, table) for table in tables}
  chunks = {}
  one_by_one = _lay_out(
      encoded.one_by_one(episodes, 64, ids), tables, groups, 'data', chunks
  )
  for name, found in one_by_one.items():
    test.assertEqual([item[1:] for item in found], expected[name])
    test.assertLen({item[0] for item in found}, len(found))
  for size in sizes:
    for one_episode_chunks in (False, True):
      found = _lay_out(
          encoded.packed(episodes, size, ids),
          tables,
          groups,
          'data',
          chunks,
          one_episode_chunks=one_episode_chunks,
      )
      test.assertEqual(found, one_by_one)
    found = _lay_out(encoded.packed(episodes, size), tables, groups, None)
    for name in expected:
      test.assertEqual([item[1:] for item in found[name]], expected[name])


class LayoutOfPacksTest(parameterized.TestCase):

  @parameterized.product(
      tables=tuple(_TABLES), groups=('one_group', 'large_2_small_8')
  )
  @pytest.mark.long
  def test_random_episodes(self, tables, groups):
    _assert_equal_packs(self, 1, 25, _TABLES[tables], groups, [3, 25])

  @parameterized.product(
      tables=tuple(_TABLES), groups=('large_2_small_8', 'three_groups')
  )
  @pytest.mark.long
  def test_many_random_episodes(self, tables, groups):
    _assert_equal_packs(self, 2, 60, _TABLES[tables], groups, [1, 7, 60])

  def test_long_episodes_between_short_ones(self):
    rng = np.random.default_rng(8)
    # A part of a long episode before a pack, and one after it.
    lengths = [40, 2, 3, 1, 4, 30, 2, 2]
    episodes = [encoded.episode(rng, length) for length in lengths]
    blocks = [
        *encoded.one_by_one(episodes[:1], 16),
        *[
            block._replace(episode_ids=[each + 1 for each in block.episode_ids])
            for block in encoded.packed(episodes[1:5], 4)
        ],
        *[
            block._replace(episode_ids=[5])
            for block in encoded.one_by_one(episodes[5:6], 16)
        ],
        *[
            block._replace(episode_ids=[6, 7])
            for block in encoded.packed(episodes[6:], 2)
        ],
    ]
    for name, tables in _TABLES.items():
      with self.subTest(name):
        self.assertEqual(
            _lay_out(blocks, tables, 'large_2_small_8', 'data'),
            _lay_out(
                encoded.one_by_one(episodes, 16),
                tables,
                'large_2_small_8',
                'data',
            ),
        )

  def test_an_item_is_a_slice_of_one_chunk(self):
    rng = np.random.default_rng(5)
    episodes = [encoded.episode(rng, length) for length in (2, 3, 2, 4, 3)]
    tables = [items.TableItems('pairs'), items.TableItems('whole', None)]
    for one_episode_chunks, expected in (
        # In chunks of 8 frames: 2 + 3 + 2, 4 + 3. In those of 2: 2, 2 + 1, 2,
        # 2 + 2, 2 + 1.
        (False, 2 + 8),
        (True, 5 + 8),
    ):
      laid_out = layout.Layout(
          tables,
          'data',
          encoded.GROUPS['large_2_small_8'],
          one_episode_chunks=one_episode_chunks,
      )
      (batch,) = laid_out.batches(encoded.packed(episodes, 5))
      self.assertLen(batch.chunks, expected)
      for item in encoded.read_items(batch):
        # The first column is a small one.
        self.assertLen(encoded.slices(item)[0], 1)

  def test_chunks_say_which_episodes_they_hold(self):
    rng = np.random.default_rng(5)
    episodes = [encoded.episode(rng, length) for length in (2, 1, 6, 1, 2)]
    tables = [items.TableItems('pairs')]
    ranges = {}
    for one_episode_chunks in (False, True):
      laid_out = layout.Layout(
          tables,
          'data',
          encoded.GROUPS['one_group'],
          one_episode_chunks=one_episode_chunks,
      )
      (batch,) = laid_out.batches(encoded.packed(episodes, 5))
      ranges[one_episode_chunks] = [
          (place.episode_id, place.start, place.end)
          for place in (
              schema_pb2.ChunkData.FromString(chunk).sequence_range
              for chunk in batch.chunks
          )
      ]
    first, second, third, fourth, fifth = dict.fromkeys(
        key for key, _, _ in ranges[True]
    )
    self.assertEqual(
        ranges[True],
        [
            (first, 0, 1),
            (second, 0, 0),
            (third, 0, 3),
            (third, 4, 5),
            (fourth, 0, 0),
            (fifth, 0, 1),
        ],
    )
    # Those that share a chunk are the first of them.
    self.assertEqual(
        ranges[False],
        [(first, 0, 2), (third, 0, 3), (third, 4, 5), (fourth, 0, 2)],
    )

  def test_a_chunk_key_is_of_its_content(self):
    rng = np.random.default_rng(9)
    episodes = [encoded.episode(rng, 2) for _ in range(12)]
    chunks = {}
    for tables in (
        [
            items.TableItems('pairs'),
            items.TableItems('strided', windows_lib.Windows(3, 2)),
        ],
        [
            items.TableItems('pairs'),
            items.TableItems('tiled', windows_lib.Windows(4, 3, 'tile')),
        ],
        [
            items.TableItems('whole', None),
            items.TableItems('p', windows_lib.Windows(3, end='pad')),
        ],
        [items.TableItems('crossing', windows_lib.Windows(5, 2, 'cross'))],
    ):
      for size in (1, 2, 3, 5, 12):
        for groups in encoded.GROUPS:
          # It holds each chunk against those of the same key.
          _lay_out(
              encoded.packed(episodes, size), tables, groups, 'data', chunks
          )
    # Other content of the same episodes is under other keys.
    shorter = [encoded.rows(frames, 1, 1) for frames in episodes]
    others = {}
    _lay_out(
        encoded.packed(shorter, 4), _TABLES['drop'], 'one_group', 'data', others
    )
    self.assertNoCommonElements(
        [key for key, columns in chunks.items() if len(columns[0]) > 2],
        [key for key, columns in others.items() if len(columns[0]) > 2],
    )

  @parameterized.parameters(1, 2, 6)
  def test_two_episodes_of_one_id(self, size):
    rng = np.random.default_rng(5)
    episodes = [encoded.episode(rng, 3) for _ in range(6)]
    ids = ['a', 'b', 'c', 'd', 'b', 'e']
    self._assert_fails_at(4, episodes, size, 'Two episodes .*b', ids=ids)
    # Without an identity nobody asks.
    found = _lay_out(
        encoded.packed(episodes, size, ids),
        _TABLES['drop'],
        'one_group',
        None,
    )
    self.assertLen(found['pairs'], 12)

  @parameterized.parameters(1, 2, 6)
  def test_an_episode_that_is_too_long(self, size):
    rng = np.random.default_rng(5)
    episodes = [encoded.episode(rng, n) for n in (3, 2, 4, 5, 1, 7)]
    tables = [
        items.TableItems('pairs'),
        items.TableItems('whole', None, max_sequence_length=4),
    ]
    self._assert_fails_at(
        3, episodes, size, 'Episode 3 has more frames than', tables
    )

  @parameterized.parameters(1, 2, 6)
  def test_a_wrong_priority(self, size):
    rng = np.random.default_rng(5)
    episodes = [encoded.episode(rng, 3) for _ in range(6)]
    for frames in episodes:
      np.abs(frames.reward, out=frames.reward)
    episodes[3].reward[2] = -1
    tables = [
        items.TableItems('pairs'),
        items.TableItems(
            'rewards', priority=lambda item: tf.reduce_min(item.reward)
        ),
    ]
    self._assert_fails_at(
        3, episodes, size, "'rewards' is -1.0: .* at frame 1 of", tables
    )

  def _assert_fails_at(
      self, number, episodes, size, message, tables=None, ids=None
  ):
    """Asserts that the episodes before the one at fault come out whole."""
    tables = tables or _TABLES['drop']
    laid_out = layout.Layout(tables, 'data', encoded.GROUPS['one_group'])
    found = {table.table_name: [] for table in tables}
    columns_of = {}
    with self.assertRaisesRegex(ValueError, message) as raised:
      for batch in laid_out.batches(encoded.packed(episodes, size, ids)):
        columns_of.update(encoded.read_chunks(batch))
        for item in encoded.read_items(batch):
          found[item.table].append(encoded.content(item, columns_of))
    self.assertIsNone(raised.exception.__context__)
    for table in tables:
      expected = [item for _, item in _expected(episodes[:number], table)]
      self.assertEqual(found[table.table_name], expected)

  def test_episodes_without_frames(self):
    rng = np.random.default_rng(5)
    episodes = [encoded.episode(rng, length) for length in (2, 3)]
    block = frame_blocks.FrameBlock(
        encoded.concatenated(episodes),
        # An episode without frames makes no items, so its id does not matter.
        ['empty', 'a', 'a', 'b', 'empty'],
        np.array([0, 0, 2, 2, 5, 5]),
        0,
    )
    found = _lay_out([block], _TABLES['drop'], 'one_group', 'data')
    self.assertEqual(
        found,
        _lay_out(
            encoded.one_by_one(episodes, 8, ['a', 'b']),
            _TABLES['drop'],
            'one_group',
            'data',
        ),
    )


def _together(size):
  """Makes the conversion give blocks of `size` episodes."""
  convert = conversion.trajectory_blocks

  def trajectory_blocks(*args, **kwargs):
    blocks = convert(*args, **kwargs)

    def join():
      held = []
      for block in blocks.as_numpy_iterator():
        held.append(block)
        if len(held) == size:
          yield _joined(held)
          held = []
      if held:
        yield _joined(held)

    spec = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
        blocks.element_spec._replace(step=()),
    )
    return tf.data.Dataset.from_generator(
        join,
        output_signature=spec._replace(step=blocks.element_spec.step),
    )

  return mock.patch.object(conversion, 'trajectory_blocks', trajectory_blocks)


def _joined(blocks):
  lengths = [len(block.frames.step_type) for block in blocks]
  joined = encoded.concatenated([block._replace(step=()) for block in blocks])
  return joined._replace(
      step=np.int64(0), row_splits=np.cumsum([0, *lengths], dtype=np.int64)
  )


def _data(lengths):
  """Episodes of images, vectors and strings, with an id."""
  rng = np.random.default_rng(3)

  def episode(number, length):
    made = golden.make_episode([1] * length, terminal=True, base=100 * number)
    made['observation'] = {
        'image': rng.integers(0, 256, (length, 40, 40)).astype(np.uint8),
        'speed': rng.normal(size=length),
        'text': np.array([rng.bytes(int(n)) for n in range(length)], object),
    }
    return made

  return golden.stacked(
      [episode(number, length) for number, length in enumerate(lengths)]
  )


def _taken(client, table):
  """Takes all items out of a table: keys, priorities and columns."""
  size = testing.size(client, table)
  if not size:
    return []
  return [
      (
          int(np.ravel(sample.info.key)[0]),
          float(np.ravel(sample.info.priority)[0]),
          [(leaf.shape, testing.bytes_of(leaf)) for leaf in sample.data],
      )
      for sample in client.sample(table, num_samples=size, emit_timesteps=False)
  ]


_LENGTHS = (3, 1, 5, 70, 2, 2, 130, 1, 4, 6, 2, 5)
_SERVED = [
    items.TableItems('pairs'),
    items.TableItems(
        'tiled', windows_lib.Windows(4, 3, 'tile'), priority=_highest_reward
    ),
    items.TableItems('whole', None),
]
_NAMES = [table.table_name for table in _SERVED]


class ServedPacksTest(parameterized.TestCase, tf.test.TestCase):

  def _written(self, data, **kwargs):
    """Returns the items of a server, and the numbers of its episodes."""
    spec = specs.create_trajectory_data_spec(data)
    with testing.reverb_server(spec, tables=_NAMES) as client:
      bulk.write_rlds_to_reverb(
          data,
          client,
          _SERVED,
          options=options_lib.ConversionOptions(identity='data', **kwargs),
      )
      counted = [client.server_info()[name].num_episodes for name in _NAMES]
      return [_taken(client, name) for name in _NAMES], counted

  @pytest.mark.long
  def test_write(self):
    data = _data(_LENGTHS)
    expected, counted = self._written(data)
    # Two of the episodes have one frame.
    self.assertEqual(counted, [10, 12, 12])
    self.assertEqual(
        [len(found) for found in expected],
        [sum(_LENGTHS) - 12, sum(-(-n // 3) for n in _LENGTHS), 12],
    )
    for size, chunk_length in ((4, None), (12, None), (12, 16)):
      settings = dict(chunk_length=chunk_length)
      with _together(size):
        found, fewer = self._written(data, **settings)
        exact, same = self._written(data, one_episode_chunks=True, **settings)
      self.assertEqual(found, expected)
      self.assertEqual(exact, expected)
      self.assertEqual(same, counted)
      if chunk_length:
        # Those that share a chunk are counted as one.
        self.assertLess(fewer[1], counted[1])

  def test_push(self):
    data = _data(_LENGTHS)
    spec = specs.create_trajectory_data_spec(data)
    counted = []
    for exact in (True, False):
      with testing.reverb_server(spec) as client:
        observer = reverb_utils.ReverbAddTrajectoryObserver(
            client, testing.TABLE, 2
        )
        with _together(12):
          frames = push.push_rlds_to_reverb(
              data,
              observer,
              options=options_lib.ConversionOptions(one_episode_chunks=exact),
          )
        self.assertEqual(frames, sum(_LENGTHS))
        counted.append(client.server_info()[testing.TABLE].num_episodes)
        found = testing.contents(client)
        observer.close()
      self.assertLen(found.items, sum(_LENGTHS) - len(_LENGTHS))
    self.assertEqual(counted[0], 10)

  def test_checkpoint(self):
    data = _data(_LENGTHS)
    expected, counted = self._written(data)
    sizes = {}
    for exact in (True, False):
      path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
      with _together(12):
        write.write_reverb_checkpoint(
            data,
            path,
            _SERVED,
            options=options_lib.ConversionOptions(
                identity='data', one_episode_chunks=exact
            ),
            reverb_tables=[testing.make_table(name=name) for name in _NAMES],
        )
      sizes[exact] = len(
          list(
              tf.data.TFRecordDataset(
                  os.path.join(path, records.CHUNKS), 'ZLIB'
              )
          )
      )
      server = serve.restore_reverb_server(path)
      client = server.localhost_client()
      if exact:
        self.assertEqual(
            [client.server_info()[name].num_episodes for name in _NAMES],
            counted,
        )
      self.assertEqual([_taken(client, name) for name in _NAMES], expected)
      server.stop()
    self.assertLess(sizes[False], sizes[True])


if __name__ == '__main__':
  absltest.main()
