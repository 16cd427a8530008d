"""Tests of what blocks of frames become."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import arranging
from rlds2reverb.replay import items as items_lib
from rlds2reverb.trajectories import frame_blocks
from tests.replay import encoded
from tests.replay.local import cuts


def _block(begin, lengths, ids=None, step=0, goes_on=False):
  """Returns a block of whole episodes; or whose last one goes on."""
  splits = np.cumsum([0, *lengths])
  lasts = begin + splits[1:] - 1
  if goes_on:
    lasts = lasts[:-1]
  return frame_blocks.FrameBlock(
      cuts.make_frames(begin, begin + int(splits[-1]), lasts),
      list(range(len(lengths))) if ids is None else ids,
      splits,
      step,
  )


def _table(name='items', *args, **kwargs):
  return items_lib.TableItems(name, *args, **kwargs)


def _arrange_parts(tables, blocks, **kwargs):
  return list(arranging.Arranger(tables, **kwargs).arrange(blocks))


def _pairs(items):
  return list(zip(items.starts.tolist(), items.ends.tolist()))


def _blocks(*pieces):
  return [
      frame_blocks.FrameBlock(
          encoded.frames_of(step_types),
          [episode],
          np.array([0, len(step_types)]),
          step,
      )
      for episode, step, step_types in pieces
  ]


class ArrangerTest(parameterized.TestCase):

  def test_items_of_several_tables(self):
    [arranged] = _arrange_parts(
        [
            _table('pairs', windows_lib.Windows(2)),
            _table('tile', windows_lib.Windows(3, 2, 'tile'), priority=2.5),
        ],
        [_block(0, [3, 2])],
    )
    # The frames, with the padding that the second table asks for.
    self.assertEqual(
        arranged.frames.observation.tolist(), [0, 1, 2, 0, 0, 3, 4, 0]
    )
    self.assertEqual(
        arranged.frames.step_type.tolist(), [0, 1, 2, 2, 2, 0, 2, 2]
    )
    self.assertEqual(_pairs(arranged.items[0]), [(0, 2), (1, 3), (5, 7)])
    self.assertEqual(_pairs(arranged.items[1]), [(0, 3), (2, 5), (5, 8)])
    self.assertEqual(
        [each.tolist() for each in arranged.priorities], [[1.0] * 3, [2.5] * 3]
    )
    self.assertEqual(arranged.needed, 8)
    self.assertEmpty(arranged.episode_ids)

  def test_an_episode_in_several_blocks(self):
    blocks = [
        _block(0, [2, 4], goes_on=True),
        _block(6, [3], [1], 4, goes_on=True),
        _block(9, [1], [1], 7),
        _block(10, [2], [2]),
    ]
    found = _arrange_parts(
        [_table(windows=windows_lib.Windows(3))], blocks, position=100
    )
    self.assertEqual(
        [_pairs(arranged.items[0]) for arranged in found],
        [
            [(102, 105), (103, 106)],
            [(104, 107), (105, 108), (106, 109)],
            [(107, 110)],
            [],
        ],
    )
    # Later items may start at the last two frames of an episode that goes on.
    self.assertEqual(
        [arranged.needed for arranged in found], [104, 107, 110, 112]
    )

  def test_priorities_of_items_that_began_in_blocks_before(self):
    blocks = [
        _block(0, [3], goes_on=True),
        _block(3, [1], [0], 3, goes_on=True),
        _block(4, [2], [0], 4),
    ]
    table = _table(
        windows=windows_lib.Windows(3), priority=lambda item: item.reward[0]
    )
    found = _arrange_parts([table], blocks)
    self.assertEqual(
        [arranged.priorities[0].tolist() for arranged in found],
        [[0], [1], [2, 3]],
    )

  def test_items_that_cross_episodes(self):
    found = _arrange_parts(
        [_table('items', windows_lib.Windows(3, 2, 'cross'))],
        [_block(0, [2, 2]), _block(4, [1, 3])],
    )
    self.assertEqual(
        [_pairs(arranged.items[0]) for arranged in found],
        [[(0, 3)], [(2, 5), (4, 7)]],
    )
    self.assertEqual([arranged.needed for arranged in found], [2, 6])

  def test_many_short_episodes_are_planned_in_parts(self):
    lengths = [1500, 1500, 1500, 9000, 3, 4000]
    found = _arrange_parts([_table()], [_block(0, lengths)])
    self.assertEqual(
        [len(arranged.frames.step_type) for arranged in found],
        [3000, 1500, 9000, 4003],
    )
    self.assertEqual(
        np.concatenate(
            [arranged.frames.observation for arranged in found]
        ).tolist(),
        list(range(sum(lengths))),
    )
    starts = np.concatenate([arranged.items[0].starts for arranged in found])
    ends = np.cumsum(lengths)
    self.assertEqual(
        starts.tolist(), sorted(set(range(ends[-1])) - set(ends - 1))
    )

  def test_sequences(self):
    # Their step types say nothing.
    block = frame_blocks.FrameBlock(
        cuts.make_frames(0, 6, [1, 2]), [None], np.array([0, 6]), 0
    )
    table = _table('items', windows_lib.Windows(3, 3, 'cross'))
    [arranged] = _arrange_parts([table], [block], of_sequences=True)
    self.assertEqual(_pairs(arranged.items[0]), [(0, 3), (3, 6)])
    self.assertEqual(arranged.pieces.is_end.tolist(), [True, True])

  def test_identity(self):
    blocks = [
        _block(0, [2, 2], ['a', 'b']),
        _block(4, [2], ['c'], goes_on=True),
        _block(6, [2], ['c'], 2),
    ]
    found = _arrange_parts([_table()], blocks, has_identity=True)
    self.assertEqual(
        [arranged.episode_ids for arranged in found], [{'a', 'b'}, {'c'}, set()]
    )
    for second in _block(8, [2], ['b']), _block(8, [2, 2], ['d', 'd']):
      arranger = arranging.Arranger([_table()], has_identity=True)
      yielded = []
      with self.assertRaisesRegex(ValueError, 'Two episodes.*episode_id'):
        for arranged in arranger.arrange([*blocks, second]):
          yielded.append(arranged)
      self.assertGreaterEqual(len(yielded), 3)

  def test_plans_before_an_episode_at_fault(self):
    # The third episode has a negative priority.
    table = _table(priority=lambda item: 7.5 - item.reward[0])
    arranger = arranging.Arranger([table])
    starts = []
    with self.assertRaisesRegex(ValueError, 'A priority must be'):
      for arranged in arranger.arrange([_block(0, [3, 4, 5])]):
        starts += arranged.items[0].starts.tolist()
    self.assertEqual(starts, [0, 1, 3, 4, 5])

  def test_episodes_that_are_longer(self):
    blocks = [_block(0, [2, 4, 3])]
    kwargs = dict(windows=None, max_sequence_length=3)
    arranger = arranging.Arranger([_table(**kwargs)])
    with self.assertRaisesRegex(ValueError, 'Episode 1 has more frames'):
      for arranged in arranger.arrange(blocks):
        self.assertEqual(_pairs(arranged.items[0]), [(0, 2)])
    with self.assertLogs(level='WARNING') as logs:
      [arranged] = _arrange_parts(
          [_table(**kwargs, bypass_longer_episodes=True)], blocks
      )
    self.assertEqual(_pairs(arranged.items[0]), [(0, 2), (6, 9)])
    self.assertIn('Left out 1 episodes', logs.output[0])

  def test_tables_that_do_not_go_together(self):
    with self.assertRaisesRegex(ValueError, 'must be a table'):
      arranging.Arranger([])
    with self.assertRaisesRegex(ValueError, "'a' cross.*'b' are padded"):
      arranging.Arranger(
          [
              _table('a', windows_lib.Windows(2, end='cross')),
              _table('b', windows_lib.Windows(2, end='pad')),
          ]
      )


class BlocksTest(parameterized.TestCase):

  @parameterized.parameters(
      (1, [['a'], ['b'], ['c', 'd'], ['e']]),
      (3, [['a'], ['b', 'c', 'd'], ['e', 'f']]),
      (4, [['a', 'b', 'c'], ['d', 'e', 'f']]),
      (8, [['a', 'b', 'c', 'd', 'e', 'f']]),
  )
  def test_parts_of_a_block(self, length, expected):
    block = encoded.block_of(
        list('abcdef'), [0, 2], [0, 2], [], [2], [0, 1, 2], []
    )
    parts = list(arranging.split(block, length))
    self.assertEqual([part.episode_ids for part in parts], expected)
    rows = np.concatenate([part.frames.action for part in parts])
    self.assertEqual(rows.tolist(), block.frames.action.tolist())
    for part in parts:
      self.assertEqual(part.row_splits[0], 0)
      self.assertLen(part.frames.action, part.row_splits[-1])

  def test_a_long_episode_is_one_part(self):
    for block in (
        encoded.block_of(['a'], [0, 1, 1, 2]),
        encoded.block_of(['a', ''], [0, 1, 2], []),
    ):
      (part,) = arranging.split(block, 2)
      self.assertEqual(
          part.frames.action.tolist(), block.frames.action.tolist()
      )

  def test_padding_is_boundaries_of_zeros(self):
    frames = encoded.frames_of([0, 2, 2])
    padded = arranging.spread(frames, np.array([0, 1, 4]), 6)
    self.assertEqual(padded.step_type.tolist(), [0, 2, 2, 2, 2, 2])
    self.assertEqual(padded.next_step_type.tolist(), [1, 3, 0, 0, 3, 0])
    self.assertEqual(
        padded.action.tolist(), [[0, 1], [2, 3], [0, 0], [0, 0], [4, 5], [0, 0]]
    )
    self.assertEqual(padded.action.dtype, np.float32)
    self.assertEqual(
        padded.observation['text'].tolist(), [b'0', b'1', b'', b'', b'2', b'']
    )
    self.assertIs(arranging.spread(frames, np.arange(3), 3), frames)

  def test_long_episodes_are_refused_whole(self):
    blocks = _blocks(
        (0, 0, [0, 1]),
        (0, 2, [1, 2]),
        (1, 0, [2]),
        (2, 0, [0, 1, 1]),
        (2, 3, [1, 2]),
        (3, 0, [2]),
    )
    table = items_lib.TableItems('table', None, max_sequence_length=4)
    passed = []
    with self.assertRaisesRegex(ValueError, "Episode 2 .*than the 4 .*'table'"):
      for block in arranging.refuse_long_episodes(blocks, [table]):
        passed.append(block)
    self.assertEqual(
        [(*block.episode_ids, block.step) for block in passed],
        [(0, 0), (0, 2), (1, 0)],
    )

  @parameterized.named_parameters(
      ('first', ([0, 1, 2], [2]), []),
      ('second', ([2], [0, 1, 2], [2]), [['a']]),
      ('third', ([2], [], [0, 1, 2]), [['a', 'b']]),
      ('first_with_steps', ([], [0, 1, 2], [2]), []),
  )
  def test_long_episodes_of_a_batch(self, episodes, expected):
    table = items_lib.TableItems('table', None, max_sequence_length=2)
    ids = ['a', 'b', 'c'][: len(episodes)]
    longest = ids[[len(episode) for episode in episodes].index(3)]
    before = encoded.block_of(['before', 'it'], [2], [0, 2])
    passed = []
    with self.assertRaisesRegex(ValueError, f'Episode {longest} has more'):
      for block in arranging.refuse_long_episodes(
          [before, encoded.block_of(ids, *episodes)], [table]
      ):
        passed.append(block.episode_ids)
    self.assertEqual(passed, [['before', 'it'], *expected])

  @parameterized.parameters(
      items_lib.TableItems('table'),
      items_lib.TableItems('table', None),
      items_lib.TableItems('table', None, max_sequence_length=5),
      items_lib.TableItems(
          'table', None, max_sequence_length=2, bypass_longer_episodes=True
      ),
  )
  def test_others_pass(self, table):
    # The last episode goes on; it is for others to say so.
    blocks = _blocks((0, 0, [0, 1, 1]), (0, 3, [1, 2]), (1, 0, [0, 1]))
    passed = list(arranging.refuse_long_episodes(blocks, [table]))
    self.assertEqual(
        [(*block.episode_ids, block.step) for block in passed],
        [(0, 0), (0, 3), (1, 0)],
    )


if __name__ == '__main__':
  absltest.main()
