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
      frame_blocks.Block(_frames(step_types), episode, step)
      for episode, step, step_types in pieces
  ]


class FrameBlocksTest(parameterized.TestCase):

  def test_slice(self):
    frames = frame_blocks.slice_frames(_frames([0, 1, 1, 2]), 1, 3)
    self.assertEqual(frames.action.tolist(), [[2, 3], [4, 5]])
    self.assertEqual(frames.observation['text'].tolist(), [b'1', b'2'])

  def test_padding_is_boundaries_of_zeros(self):
    padding = frame_blocks.padding_frames(_frames([0, 2]), 3)
    self.assertEqual(padding.step_type.tolist(), [2, 2, 2])
    self.assertEqual(padding.next_step_type.tolist(), [0, 0, 0])
    self.assertEqual(padding.action.tolist(), [[0, 0]] * 3)
    self.assertEqual(padding.action.dtype, np.float32)
    self.assertEqual(padding.observation['text'].tolist(), [b''] * 3)

  def test_long_episodes_are_refused_whole(self):
    blocks = _blocks(
        (0, 0, [0, 1]), (0, 2, [1, 2]), (1, 0, [2]), (2, 0, [0, 1, 1]),
        (2, 3, [1, 2]), (3, 0, [2]),
    )
    table = items.TableItems('table', None, max_sequence_length=4)
    passed = []
    with self.assertRaisesRegex(ValueError, "Episode 2 .*than the 4 .*'table'"):
      for block in frame_blocks.refuse_long_episodes(blocks, [table]):
        passed.append(block)
    self.assertEqual(
        [(block.episode_id, block.step) for block in passed],
        [(0, 0), (0, 2), (1, 0)],
    )

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
        [(block.episode_id, block.step) for block in passed],
        [(0, 0), (0, 3), (1, 0)],
    )


if __name__ == '__main__':
  absltest.main()
