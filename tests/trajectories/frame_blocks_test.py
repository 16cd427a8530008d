"""Tests of blocks of frames."""

from absl.testing import absltest
import numpy as np
from tf_agents.trajectories import trajectory

from rlds2reverb.trajectories import frame_blocks


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


def _pack(episode_ids, *step_types):
  splits = np.cumsum([0, *map(len, step_types)])
  return frame_blocks.FrameBlock(
      _frames(sum(step_types, [])), episode_ids, splits, 0
  )


class FrameBlocksTest(absltest.TestCase):

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


if __name__ == '__main__':
  absltest.main()
