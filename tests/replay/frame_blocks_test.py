"""Tests of blocks of frames."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from tf_agents.trajectories import trajectory

from rlds2reverb.replay import frame_blocks
from rlds2reverb.replay import items


def _frames(step_types):
  step_types = np.array(step_types, np.int32)
  count = len(step_types)
  return trajectory.Trajectory(
      step_types,
      {'text': np.array([b'%d' % i for i in range(count)], object)},
      np.arange(2 * count, dtype=np.float32).reshape(count, 2),
      (),
      step_types + 1,
      np.ones(count, np.float32),
      np.ones(count, np.float32),
  )


def _blocks(*pieces):
  return [
      frame_blocks.Block(
          _frames(step_types), [episode], np.array([0, len(step_types)]), step
      )
      for episode, step, step_types in pieces
  ]


def _pack(episode_ids, *step_types):
  splits = np.cumsum([0, *map(len, step_types)])
  return frame_blocks.Block(
      _frames(sum(step_types, [])), episode_ids, splits, 0
  )


class FrameBlocksTest(parameterized.TestCase):

  def test_slice(self):
    frames = frame_blocks.slice_frames(_frames([0, 1, 1, 2]), 1, 3)
    self.assertEqual(frames.action.tolist(), [[2, 3], [4, 5]])
    self.assertEqual(frames.observation['text'].tolist(), [b'1', b'2'])

  def test_episodes_of_a_block(self):
    block = _pack(['a', 'b', 'c', 'd'], [0, 2], [], [2], [0, 1, 2])
    part = frame_blocks.slice_episodes(block, 1, 4)
    self.assertEqual(part.episode_ids, ['b', 'c', 'd'])
    self.assertEqual(part.row_splits.tolist(), [0, 0, 1, 4])
    self.assertEqual(part.frames.step_type.tolist(), [2, 0, 1, 2])
    self.assertEqual(part.frames.action[:, 0].tolist(), [4, 6, 8, 10])

  @parameterized.parameters(
      (1, [['a'], ['b'], ['c', 'd'], ['e']]),
      (3, [['a'], ['b', 'c', 'd'], ['e', 'f']]),
      (4, [['a', 'b', 'c'], ['d', 'e', 'f']]),
      (8, [['a', 'b', 'c', 'd', 'e', 'f']]),
  )
  def test_parts_of_a_block(self, length, expected):
    block = _pack(list('abcdef'), [0, 2], [0, 2], [], [2], [0, 1, 2], [])
    parts = list(frame_blocks.split(block, length))
    self.assertEqual([part.episode_ids for part in parts], expected)
    rows = np.concatenate([part.frames.action for part in parts])
    self.assertEqual(rows.tolist(), block.frames.action.tolist())
    for part in parts:
      self.assertEqual(part.row_splits[0], 0)
      self.assertLen(part.frames.action, part.row_splits[-1])

  def test_a_long_episode_is_one_part(self):
    for block in (_pack(['a'], [0, 1, 1, 2]), _pack(['a', ''], [0, 1, 2], [])):
      (part,) = frame_blocks.split(block, 2)
      self.assertEqual(
          part.frames.action.tolist(), block.frames.action.tolist()
      )

  def test_padding_is_boundaries_of_zeros(self):
    frames = _frames([0, 2, 2])
    padded = frame_blocks.spread(frames, np.array([0, 1, 4]), 6)
    self.assertEqual(padded.step_type.tolist(), [0, 2, 2, 2, 2, 2])
    self.assertEqual(padded.next_step_type.tolist(), [1, 3, 0, 0, 3, 0])
    self.assertEqual(
        padded.action.tolist(), [[0, 1], [2, 3], [0, 0], [0, 0], [4, 5], [0, 0]]
    )
    self.assertEqual(padded.action.dtype, np.float32)
    self.assertEqual(
        padded.observation['text'].tolist(), [b'0', b'1', b'', b'', b'2', b'']
    )
    self.assertIs(frame_blocks.spread(frames, np.arange(3), 3), frames)

  def test_long_episodes_are_refused_whole(self):
    blocks = _blocks(
        (0, 0, [0, 1]),
        (0, 2, [1, 2]),
        (1, 0, [2]),
        (2, 0, [0, 1, 1]),
        (2, 3, [1, 2]),
        (3, 0, [2]),
    )
    table = items.TableItems('table', None, max_sequence_length=4)
    passed = []
    with self.assertRaisesRegex(ValueError, "Episode 2 .*than the 4 .*'table'"):
      for block in frame_blocks.refuse_long_episodes(blocks, [table]):
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
  def test_long_episodes_of_a_pack(self, episodes, expected):
    table = items.TableItems('table', None, max_sequence_length=2)
    ids = ['a', 'b', 'c'][: len(episodes)]
    longest = ids[[len(episode) for episode in episodes].index(3)]
    before = _pack(['before', 'it'], [2], [0, 2])
    passed = []
    with self.assertRaisesRegex(ValueError, f'Episode {longest} has more'):
      for block in frame_blocks.refuse_long_episodes(
          [before, _pack(ids, *episodes)], [table]
      ):
        passed.append(block.episode_ids)
    self.assertEqual(passed, [['before', 'it'], *expected])

  @parameterized.parameters(
      items.TableItems('table'),
      items.TableItems('table', None),
      items.TableItems('table', None, max_sequence_length=5),
      items.TableItems(
          'table', None, max_sequence_length=2, bypass_longer_episodes=True
      ),
  )
  def test_others_pass(self, table):
    # The last episode goes on; it is for others to say so.
    blocks = _blocks((0, 0, [0, 1, 1]), (0, 3, [1, 2]), (1, 0, [0, 1]))
    passed = list(frame_blocks.refuse_long_episodes(blocks, [table]))
    self.assertEqual(
        [(*block.episode_ids, block.step) for block in passed],
        [(0, 0), (0, 3), (1, 0)],
    )


if __name__ == '__main__':
  absltest.main()
