"""Tests of motions between poses; oracle_test has those of states."""

import itertools

import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import relabeling
from rlds2reverb.transforms import rotations

_QUARTER = np.pi / 2


def _motions(rotation, motion_rotation='axis_angle', frame='base'):
  return relabeling.MotionsFromPoses(
      'pose', rotation, motion_rotation=motion_rotation, frame=frame
  )


class PosesTest(tf.test.TestCase):

  def test_motions_by_hand(self):
    # The hand looks along y, moves by 1 in that direction, and turns left.
    pose = np.array([2.0, 0.0, 0.0, 0.0, 0.0, _QUARTER])
    next_pose = np.array([2.0, 1.0, 0.0, 0.0, 0.0, 2 * _QUARTER])
    for frame, moved in (('base', [0, 1, 0]), ('end_effector', [1, 0, 0])):
      found = _motions('euler_xyz', frame=frame).between(pose, next_pose)
      self.assertAllClose(found, [*moved, 0, 0, _QUARTER])
    # From 3.1 to -3.1 is a turn of 0.083, where a difference says -6.2.
    pose[5], next_pose[5] = 3.1, -3.1
    found = _motions('euler_xyz').between(pose, next_pose)
    self.assertAllClose(found[5], 2 * np.pi - 6.2)

  def test_motions_that_do_not_commute(self):
    # About x, then about z as it is fixed, or as it has turned.
    motion = np.array([0.0, 0, 0, 0, 0, _QUARTER])
    x = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    z = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    for frame, expected in (('base', z @ x), ('end_effector', x @ z)):
      pose = np.concatenate([np.zeros(3), x.reshape(9)])
      found = _motions('matrix', frame=frame).apply(pose, motion)
      self.assertAllClose(found[3:], expected.reshape(9))

  def test_random_motions_are_products_of_matrices_and_are_undone(self):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=[2, 20, 6])

    def homogeneous(poses):
      made = np.tile(np.eye(4), [20, 1, 1])
      made[:, :3, :3] = rotations.to_matrix(poses[:, 3:], 'axis_angle')
      made[:, :3, 3] = poses[:, :3]
      return made

    motions = _motions('axis_angle', 'matrix', 'end_effector')
    found = motions.between(first, second)
    expected = np.linalg.inv(homogeneous(first)) @ homogeneous(second)
    self.assertAllClose(found[:, :3], expected[:, :3, 3])
    self.assertAllClose(found[:, 3:], expected[:, :3, :3].reshape(20, 9))
    for frame, rotation, dtype in itertools.product(
        relabeling.FRAMES,
        ('quaternion_xyzw', 'euler_xyz', 'rotation_6d'),
        (np.float32, np.float64),
    ):
      start, end = (
          np.concatenate(
              [
                  one[:, :3],
                  rotations.convert(one[:, 3:], 'axis_angle', rotation),
              ],
              1,
          ).astype(dtype)
          for one in (first, second)
      )
      motions = _motions(rotation, 'axis_angle', frame)
      motion = motions.between(start, end)
      self.assertEqual(motion.dtype, dtype)
      self.assertAllClose(motions.apply(start, motion), end, 0, 1e-5)

  def test_errors(self):
    pose = np.zeros(6)
    with self.assertRaisesRegex(ValueError, r'poses must be floats \[..., 7\]'):
      _motions('quaternion_xyzw').between(pose, pose)
    with self.assertRaisesRegex(ValueError, r'motions must be .*\(5,\)'):
      _motions('euler_xyz').apply(pose, np.zeros(5))


if __name__ == '__main__':
  tf.test.main()
