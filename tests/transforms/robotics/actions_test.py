"""Tests of motions between poses; oracle_test.py tests states."""

import itertools

import numpy as np
import tensorflow as tf

from rlds2reverb.transforms.robotics import actions
from rlds2reverb.transforms.robotics import rotations


def _motions(rotation, frame='base'):
  return actions.MotionsFromPoses('pose', rotation, frame=frame)


def _matrices(poses, rotation):
  """Returns poses as matrices `[N, 4, 4]`."""
  matrices = np.tile(np.eye(4), [len(poses), 1, 1])
  matrices[:, :3, :3] = rotations.to_matrix(poses[:, 3:], rotation)
  matrices[:, :3, 3] = poses[:, :3]
  return matrices


class PosesTest(tf.test.TestCase):

  def test_motions_are_products_of_matrices_and_are_undone(self):
    first, second = np.random.default_rng(0).normal(size=[2, 20, 6])
    for frame, rotation in itertools.product(
        actions.FRAMES, ('quaternion_xyzw', 'euler_xyz')
    ):
      start, end = (
          np.concatenate(
              [
                  one[:, :3],
                  rotations.convert(one[:, 3:], 'axis_angle', rotation),
              ],
              1,
          ).astype(np.float32)
          for one in (first, second)
      )
      motions = _motions(rotation, frame=frame)
      motion = motions.between(start, end)
      self.assertEqual(motion.dtype, tf.float32)
      actual = _matrices(motion.numpy(), 'axis_angle')
      here, there = _matrices(start, rotation), _matrices(end, rotation)
      # Turned as the robot is, or as its base is.
      expected = np.linalg.inv(here) @ there
      if frame == 'base':
        turned = there[:, :3, :3] @ np.linalg.inv(here[:, :3, :3])
        expected[:, :3, :3] = turned
        expected[:, :3, 3] = there[:, :3, 3] - here[:, :3, 3]
      self.assertAllClose(actual, expected, 0, 1e-5)
      self.assertAllClose(motions.apply(start, motion), end, 0, 1e-5)

  def test_poses_of_wrong_shape_raise(self):
    pose = np.zeros(6)
    with self.assertRaisesRegex(ValueError, r'poses must be floats \[..., 7\]'):
      _motions('quaternion_xyzw').between(pose, pose)
    with self.assertRaisesRegex(ValueError, r'motions must be .*\(5,\)'):
      _motions('euler_xyz').apply(pose, np.zeros(5))


if __name__ == '__main__':
  tf.test.main()
