"""Tests of blocks of frames."""

from absl.testing import absltest

from rlds2reverb.trajectories import frame_blocks
from tests.replay import encoded


class FrameBlocksTest(absltest.TestCase):

  def test_slice(self):
    frames = frame_blocks.slice_frames(encoded.frames_of([0, 1, 1, 2]), 1, 3)
    self.assertEqual(frames.action.tolist(), [[2, 3], [4, 5]])
    self.assertEqual(frames.observation['text'].tolist(), [b'1', b'2'])


if __name__ == '__main__':
  absltest.main()
