"""Tests of rotations against SciPy's, which `write_rotations` has written."""

import itertools
import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms.robotics import rotations

_PATH = os.path.join(
    os.path.dirname(__file__), '..', '..', 'data', 'rotations.npz'
)
_EULER = [
    f'euler_{name}'
    for order in map(''.join, itertools.permutations('xyz'))
    for name in (order, order.upper())
]
_FORMS = ['quaternion_xyzw', 'quaternion_wxyz', 'axis_angle', 'matrix', *_EULER]
_SIX = ['rotation_6d', 'rotation_6d_rows']


def _about(axis, angle):
  """Returns the matrix of a turn, as every textbook has it."""
  c, s = np.cos(angle), np.sin(angle)
  x, z = [[1, 0, 0], [0, c, -s], [0, s, c]], [[c, -s, 0], [s, c, 0], [0, 0, 1]]
  return np.array({'x': x, 'z': z}[axis])


class RotationsTest(tf.test.TestCase, parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    with np.load(_PATH) as arrays:
      cls.scipy = dict(arrays)
    cls.matrices = cls.scipy['matrix'].reshape(-1, 3, 3)

  @parameterized.parameters(*_FORMS)
  def test_conversions_equal_scipy(self, form):
    expected = self.scipy[form]
    matrices = rotations.to_matrix(expected, form)
    # SciPy's angles in a gimbal lock are exact to the root of an epsilon.
    self.assertAllClose(matrices, self.matrices, 0, 1e-7)
    self.assertEqual(matrices.dtype, tf.float64)
    actual = rotations.from_matrix(self.matrices, form).numpy()
    if form == 'axis_angle' or form.startswith('quaternion'):
      # Half a turn is one about either direction of its axis.
      angle = np.linalg.norm(self.scipy['axis_angle'], axis=-1)
      is_half = angle > np.pi - 1e-9
      self.assertEqual(is_half.sum(), 19)
      opposite = is_half & (np.sum(actual * expected, axis=-1) < 0)
      expected = np.where(opposite[:, None], -expected, expected)
    if form.startswith('euler'):
      # Which angles make up for the other in a gimbal lock is a convention.
      is_free = np.abs(expected[:, 1]) < np.pi / 2 - 1e-6
      actual, expected = actual[is_free], expected[is_free]
      self.assertGreater(len(actual), 100)
      # Minus pi and pi are one angle.
      actual = expected + (actual - expected + np.pi) % (2 * np.pi) - np.pi
    self.assertAllClose(actual, expected, 0, 1e-7)

  @parameterized.parameters(*_FORMS[:5], *_SIX)
  def test_matrices_are_converted_back(self, form):
    there = rotations.from_matrix(self.matrices, form)
    self.assertEqual(there.shape[-1], rotations.get_size(form))
    back = rotations.convert(there, form, 'matrix')
    self.assertAllClose(back, self.scipy['matrix'], 0, 1e-7)
    zeros = np.zeros(rotations.get_size(form))
    for target in ('quaternion_xyzw', 'axis_angle', 'euler_xyz'):
      actual = rotations.convert(zeros, form, target)
      self.assertTrue(np.isfinite(actual).all(), target)

  def test_gimbal_lock_leaves_the_third_angle_0(self):
    for form in _EULER:
      for second in (np.pi / 2, -np.pi / 2):
        matrix = rotations.to_matrix([0.3, second, 0.4], form)
        actual = rotations.from_matrix(matrix, form)
        self.assertAllClose(actual[1:], [second, 0], 0, 1e-7)
        self.assertAllClose(rotations.to_matrix(actual, form), matrix)

  def test_six_numbers(self):
    matrix = _about('z', np.pi / 2)
    for form, expected in (
        ('rotation_6d', [0, 1, 0, -1, 0, 0]),
        ('rotation_6d_rows', [0, -1, 0, 1, 0, 0]),
    ):
      self.assertAllClose(rotations.from_matrix(matrix, form), expected)
    # Zhou et al., equation 15: Gram-Schmidt for the output of a network.
    six_numbers = np.array([0.0, 2.0, 0.0, -3.0, 7.0, 0.0])
    self.assertAllClose(rotations.to_matrix(six_numbers, 'rotation_6d'), matrix)

  def test_numbers_that_are_not_orthonormal(self):
    for given, form, expected in (
        ([0.0, 0.0, 3.0, 3.0], 'quaternion_xyzw', _about('z', np.pi / 2)),
        ((_about('x', 0.3) * 1.01).reshape(9), 'matrix', _about('x', 0.3)),
    ):
      self.assertAllClose(rotations.to_matrix(given, form), expected)

  def test_dtypes_leading_dimensions_and_errors(self):
    convert = tf.function(rotations.convert)
    for dtype in np.float32, np.float64:
      quaternions = self.scipy['quaternion_xyzw'][:12].astype(dtype)
      for shape in ((12,), (2, 3, 2)):
        given = quaternions.reshape(*shape, 4)
        actual = convert(given, 'quaternion_xyzw', 'axis_angle')
        self.assertEqual(actual.dtype, dtype)
        expected = self.scipy['axis_angle'][:12].reshape(*shape, 3)
        self.assertAllClose(actual, expected, 0, 1e-6)
    for dtype, source, message in (
        (float, 'euler_xzx', "'euler_xzx'.*Did you mean"),
        (float, 'quaternion_xyzw', r'\[..., 4\] .*, but are .*\(3,\)'),
        (int, 'axis_angle', 'must be floats .* int64'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        rotations.convert(np.zeros(3, dtype), source, 'matrix')


if __name__ == '__main__':
  tf.test.main()
