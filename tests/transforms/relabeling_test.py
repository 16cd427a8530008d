"""Tests of motions between poses; oracle_test has those of states."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import relabeling

_QUARTER = np.pi / 2


def _motions(rotation, motion_rotation='axis_angle', frame='base'):
  return relabeling.MotionsFromPoses(
      'pose', rotation, motion_rotation=motion_rotation, frame=frame
  )


def _homogeneous(position, angle):
  """Returns the 4x4 matrix of a pose that is turned about z."""
  c, s = np.cos(angle), np.sin(angle)
  matrix = np.eye(4)
  matrix[:3, :3] = [[c, -s, 0], [s, c, 0], [0, 0, 1]]
  matrix[:3, 3] = position
  return matrix


class PosesTest(tf.test.TestCase, parameterized.TestCase):

  def test_motions_by_hand(self):
    # The hand looks along y, moves by 1 in that direction, and turns left.
    pose = np.array([2.0, 0.0, 0.0, 0.0, 0.0, _QUARTER])
    next_pose = np.array([2.0, 1.0, 0.0, 0.0, 0.0, 2 * _QUARTER])
    for frame, moved in (('base', [0, 1, 0]), ('end_effector', [1, 0, 0])):
      motions = _motions('euler_xyz', frame=frame)
      found = motions.between(pose, next_pose)
      self.assertAllClose(found, [*moved, 0, 0, _QUARTER])

  def test_motions_that_do_not_commute(self):
    # About x, then about z as it is fixed, or as it has turned.
    pose = np.array([0.0, 0, 0, _QUARTER, 0, 0])
    motion = np.array([0.0, 0, 0, 0, 0, _QUARTER])
    x, z = (
        np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]),
        np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]),
    )
    for frame, expected in (('base', z @ x), ('end_effector', x @ z)):
      found = _motions('matrix', frame=frame).apply(
          np.concatenate([pose[:3], [1, 0, 0, 0, 0, -1, 0, 1, 0]]), motion
      )
      self.assertAllClose(found[3:], expected.reshape(9))

  def test_motions_in_the_frame_of_the_hand_are_products_of_matrices(self):
    first, second = _homogeneous([1, 2, 3], 0.4), _homogeneous([-1, 0, 2], 1.5)
    expected = np.linalg.inv(first) @ second
    motions = _motions('axis_angle', 'matrix', 'end_effector')
    found = motions.between(
        np.array([1.0, 2, 3, 0, 0, 0.4]), np.array([-1.0, 0, 2, 0, 0, 1.5])
    )
    self.assertAllClose(found[:3], expected[:3, 3])
    self.assertAllClose(found[3:], expected[:3, :3].reshape(9))

  @parameterized.product(
      frame=relabeling.FRAMES,
      rotation=['quaternion_xyzw', 'euler_xyz', 'rotation_6d'],
      dtype=[np.float32, np.float64],
  )
  def test_motions_applied(self, frame, rotation, dtype):
    rng = np.random.default_rng(0)
    motions = _motions(rotation, 'axis_angle', frame)
    start = np.zeros([20, 9 if rotation == 'rotation_6d' else 7], dtype)
    if rotation == 'euler_xyz':
      start = start[:, :6]
    else:
      start[:, [3, 7] if rotation == 'rotation_6d' else -1] = 1
    first, second = (
        motions.apply(start, rng.normal(size=[20, 6])) for _ in range(2)
    )
    motion = tf.function(motions.between)(first, second)
    self.assertEqual(motion.dtype, dtype)
    self.assertAllClose(motions.apply(first, motion), second, 0, 1e-5)

  def test_target_of_states_and_actions_of_other_dtypes(self):
    steps = {'state': np.float64([1, 2]), 'action': np.float32([0.5, -1, 9])}
    target = relabeling.ActionsFromStates('state').target(steps)
    self.assertAllEqual(target, np.float64([1.5, 1]))

  def test_errors(self):
    pose = np.zeros(6)
    with self.assertRaisesRegex(ValueError, r'poses must be floats \[..., 7\]'):
      _motions('quaternion_xyzw').between(pose, pose)
    with self.assertRaisesRegex(ValueError, r'motions must be .*\(5,\)'):
      _motions('euler_xyz').apply(pose, np.zeros(5))


if __name__ == '__main__':
  tf.test.main()
