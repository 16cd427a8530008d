"""Tests of blocks of frames."""

from absl.testing import absltest
import numpy as np

from rlds2reverb.trajectories import frame_blocks
from tests.replay import encoded


class FrameBlocksTest(absltest.TestCase):

  def test_slice(self):
    frames = frame_blocks.slice_frames(encoded.frames_of([0, 1, 1, 2]), 1, 3)
    self.assertEqual(frames.action.tolist(), [[2, 3], [4, 5]])
    self.assertEqual(frames.observation['text'].tolist(), [b'1', b'2'])

  def test_episodes_of_a_block(self):
    block = encoded.block_of(['a', 'b', 'c', 'd'], [0, 2], [], [2], [0, 1, 2])
    part = frame_blocks.slice_episodes(block, 1, 4)
    self.assertEqual(part.episode_ids, ['b', 'c', 'd'])
    self.assertEqual(part.row_splits.tolist(), [0, 0, 1, 4])
    self.assertEqual(part.frames.step_type.tolist(), [2, 0, 1, 2])
    self.assertEqual(part.frames.action[:, 0].tolist(), [4, 6, 8, 10])

  def test_what_belongs_to_episodes_and_steps_is_cut_with_them(self):
    block = encoded.block_of(['a', 'b', 'c'], [0, 2], [2], [0, 1, 2])._replace(
        fields={'id': np.array([7, 8, 9])}, steps={'x': np.arange(6)}
    )
    part = frame_blocks.slice_episodes(block, 1, 3)
    self.assertEqual(part.fields['id'].tolist(), [8, 9])
    self.assertEqual(part.steps['x'].tolist(), [2, 3, 4, 5])
    chosen = frame_blocks.choose_episodes(block, np.array([True, False, True]))
    self.assertEqual(chosen.episode_ids, ['a', 'c'])
    self.assertEqual(chosen.fields['id'].tolist(), [7, 9])
    self.assertEqual(chosen.steps['x'].tolist(), [0, 1, 3, 4, 5])
    self.assertEqual(chosen.frames.action[:, 0].tolist(), [0, 2, 6, 8, 10])
    part = frame_blocks.slice_block(block._replace(step=4), 1, 5)
    self.assertEqual(part.row_splits.tolist(), [0, 1, 2, 4])
    self.assertEqual(part.step, 5)
    self.assertEqual(part.steps['x'].tolist(), [1, 2, 3, 4])
    self.assertEqual(part.frames.action[:, 0].tolist(), [2, 4, 6, 8])


if __name__ == '__main__':
  absltest.main()
