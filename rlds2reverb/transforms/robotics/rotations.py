"""Converts rotations between the representations of data sets.

A rotation is a vector of numbers `[..., n]` in one of these representations of
the matrix R, which rotates column vectors: `R @ v`.

    representation          n   numbers
    "quaternion_xyzw"       4   x, y, z, w, as in SciPy and ROS
    "quaternion_wxyz"       4   w, x, y, z, as in MuJoCo
    "axis_angle"            3   the axis times the angle, a rotation vector
    "euler_xyz"             3   angles about the fixed axes x, y and z in turn:
                                R = Rz(c) @ Ry(b) @ Rx(a), roll, pitch and yaw
    "euler_XYZ"             3   angles about the rotating axes:
                                R = Rx(a) @ Ry(b) @ Rz(c)
    "rotation_6d"           6   the first two columns of R, one after the other,
                                as in Zhou et al. (2019)
    "rotation_6d_rows"      6   the first two rows of R, as in PyTorch3D
    "matrix"                9   R, row by row

Euler angles may have any order of three axes: `euler_zyx`, `euler_ZYX` and so
on, with the letters of `scipy.spatial.transform.Rotation.from_euler`. Angles
are in radians. Results are unique: quaternions have `w >= 0`, an axis-angle is
at most pi long, the second Euler angle is in [-pi/2, pi/2], and at these bounds
the third is 0.

Quaternions, 6D vectors and matrices are orthonormalized first. A quaternion of
zeros, and other inputs without a direction, give finite but meaningless
numbers.
"""

from collections.abc import Callable
import itertools
from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

_AXES = 'xyz'
# Below this angle, the quotient of angle and sine is computed by a series.
_SMALL = 1e-6
# If the cosine of the second Euler angle is below this limit of SciPy, the
# other two angles rotate about the same axis.
_GIMBAL_LOCK = 1e-7


def convert(
    rotations: tf.Tensor, source: str, target: str, name: str = 'rotations'
) -> tf.Tensor:
  """Converts rotations from one representation to another.

  Args:
    rotations: floats `[..., n]`.
    source: their representation, from the table at the top of this module.
    target: the representation to convert to.
    name: the name of the rotations, for errors.

  Returns:
    The same rotations, `[..., m]`, in the dtype of `rotations`, computed in
    float64.

  Raises:
    ValueError: if there is no such representation, or `rotations` are not
      floats of its size.
  """
  rotations = tf.convert_to_tensor(rotations)
  matrix = to_matrix(rotations, source, name)
  return tf.cast(from_matrix(matrix, target), rotations.dtype)


def to_matrix(
    rotations: tf.Tensor, source: str, name: str = 'rotations'
) -> tf.Tensor:
  """Returns the rotation matrices, float64 `[..., 3, 3]`.

  Args:
    rotations: floats `[..., n]`.
    source: their representation.
    name: the name of the rotations, for errors.

  Raises:
    ValueError: as `convert` does.
  """
  description = f' of the representation {source}'
  rotations = to_float64(rotations, get_size(source), name, description)
  return _REPRESENTATIONS[source].to_matrix(rotations)


def from_matrix(matrix: tf.Tensor, target: str) -> tf.Tensor:
  """Returns the representation of rotation matrices.

  Args:
    matrix: float64 `[..., 3, 3]`, orthonormal.
    target: the representation to convert to.

  Returns:
    float64 `[..., n]`.

  Raises:
    ValueError: if there is no such representation.
  """
  check_representation(target)
  return _REPRESENTATIONS[target].from_matrix(matrix)


def get_size(representation: str) -> int:
  """Returns the number of numbers of a representation.

  Raises:
    ValueError: if there is no such representation.
  """
  check_representation(representation)
  return _REPRESENTATIONS[representation].size


def check_representation(representation: str) -> None:
  """Raises a ValueError if there is no such representation."""
  checks.check_choice(
      'A representation of rotations', representation, _REPRESENTATIONS
  )


def to_float64(
    numbers: Any, size: int, name: str, description: str
) -> tf.Tensor:
  """Casts to float64, and raises a ValueError if not floats `[..., size]`."""
  numbers = tf.convert_to_tensor(numbers)
  if not numbers.dtype.is_floating or numbers.shape[-1:] != [size]:
    raise ValueError(
        f'{name} must be floats [..., {size}]{description}, but are'
        f' {numbers.dtype.name} {numbers.shape}.'
    )
  return tf.cast(numbers, tf.float64)


class _Representation(NamedTuple):
  """Representation size, and conversion to and from matrices."""

  size: int
  to_matrix: Callable[[tf.Tensor], tf.Tensor]
  from_matrix: Callable[[tf.Tensor], tf.Tensor]


def _stack_rows(matrix_rows) -> tf.Tensor:
  """Stacks rows of numbers `[...]` to a matrix `[..., R, C]`."""
  return tf.stack([tf.stack(row, -1) for row in matrix_rows], -2)


def _normalize(vectors: tf.Tensor) -> tf.Tensor:
  return tf.math.divide_no_nan(
      vectors, tf.norm(vectors, axis=-1, keepdims=True)
  )


def _quaternion_to_matrix(quaternion: tf.Tensor) -> tf.Tensor:
  """Returns the matrices of quaternions x, y, z, w."""
  x, y, z, w = tf.unstack(_normalize(quaternion), axis=-1)
  return _stack_rows(
      [
          [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
          [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
          [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
      ]
  )


def _matrix_to_quaternion(matrix: tf.Tensor) -> tf.Tensor:
  """Returns quaternions x, y, z, w with `w >= 0`."""
  (a, b, c), (d, e, f), (g, h, i) = (
      tf.unstack(row, axis=-1) for row in tf.unstack(matrix, axis=-2)
  )
  # Each row is the quaternion times four times one of its numbers. The row of
  # the largest number is the most accurate.
  rows = _stack_rows(
      [
          [1 + a - e - i, b + d, c + g, h - f],
          [b + d, 1 - a + e - i, f + h, c - g],
          [c + g, f + h, 1 - a - e + i, d - b],
          [h - f, c - g, d - b, 1 + a + e + i],
      ]
  )
  largest = tf.argmax(tf.linalg.diag_part(rows), axis=-1)
  quaternion = tf.gather(rows, largest, batch_dims=largest.shape.rank)
  quaternion = _normalize(quaternion)
  return tf.where(quaternion[..., 3:] < 0, -quaternion, quaternion)


def _divide_by_argument(
    fn: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, series: tf.Tensor
) -> tf.Tensor:
  """Returns `fn(x) / x`, or the series if `x` is small."""
  is_small = x < _SMALL
  divisor = tf.where(is_small, tf.ones_like(x), x)
  return tf.where(is_small, series, fn(divisor) / divisor)


def _axis_angle_to_matrix(vector: tf.Tensor) -> tf.Tensor:
  angle = tf.norm(vector, axis=-1, keepdims=True)
  factor = _divide_by_argument(
      lambda x: tf.sin(x / 2), angle, 0.5 - angle**2 / 48
  )
  quaternion = tf.concat([vector * factor, tf.cos(angle / 2)], -1)
  return _quaternion_to_matrix(quaternion)


def _matrix_to_axis_angle(matrix: tf.Tensor) -> tf.Tensor:
  vector, w = tf.split(_matrix_to_quaternion(matrix), [3, 1], -1)
  sine = tf.norm(vector, axis=-1, keepdims=True)
  return vector * _divide_by_argument(
      lambda x: 2 * tf.atan2(x, w), sine, 2 + sine**2 / 3
  )


def _columns_to_matrix(numbers: tf.Tensor) -> tf.Tensor:
  """Orthonormalizes two vectors, and adds the third, as columns."""
  first = _normalize(numbers[..., :3])
  second = numbers[..., 3:]
  second = _normalize(
      second - tf.reduce_sum(first * second, -1, keepdims=True) * first
  )
  return tf.stack([first, second, tf.linalg.cross(first, second)], -1)


def _matrix_to_columns(matrix: tf.Tensor) -> tf.Tensor:
  return tf.concat(tf.unstack(matrix, axis=-1)[:2], -1)


def _numbers_to_matrix(numbers: tf.Tensor) -> tf.Tensor:
  """Returns the rotation matrices nearest to matrices of 9 numbers."""
  shape = tf.concat([tf.shape(numbers)[:-1], [3, 3]], 0)
  matrix = tf.reshape(numbers, shape)
  matrix = tf.ensure_shape(matrix, numbers.shape[:-1] + [3, 3])
  _, u, v = tf.linalg.svd(matrix)
  sign = tf.sign(tf.linalg.det(u) * tf.linalg.det(v))
  ones = tf.ones_like(sign)
  flip = tf.stack([ones, ones, sign], -1)[..., tf.newaxis, :]
  return tf.matmul(u * flip, v, transpose_b=True)


def _rotate_about_axis(axis: int, angle: tf.Tensor) -> tf.Tensor:
  """Returns the matrices of rotations about one of the axes, `[..., 3, 3]`."""
  cosine, sine = tf.cos(angle), tf.sin(angle)
  rows = [[tf.zeros_like(angle)] * 3 for _ in range(3)]
  following, previous = (axis + 1) % 3, (axis + 2) % 3
  rows[axis][axis] = tf.ones_like(angle)
  rows[following][following] = rows[previous][previous] = cosine
  rows[previous][following], rows[following][previous] = sine, -sine
  return _stack_rows(rows)


def _make_euler(order: str, is_fixed: bool) -> _Representation:
  """Returns the Euler angles about fixed or about rotating axes."""
  # Rotations about fixed axes are rotations about rotating axes in reverse.
  axes = [_AXES.index(letter) for letter in order]
  i, j, k = reversed(axes) if is_fixed else axes
  sign = 1.0 if (j - i) % 3 == 1 else -1.0

  def to_order(angles) -> tuple[tf.Tensor, ...]:
    return tuple(reversed(angles) if is_fixed else angles)

  def angles_to_matrix(angles):
    a, b, c = to_order(tf.unstack(angles, axis=-1))
    return (
        _rotate_about_axis(i, a)
        @ _rotate_about_axis(j, b)
        @ _rotate_about_axis(k, c)
    )

  def matrix_to_angles(r):
    cosine = tf.math.sqrt(r[..., i, i] ** 2 + r[..., i, j] ** 2)
    is_locked = cosine < _GIMBAL_LOCK
    first = tf.atan2(-sign * r[..., j, k], r[..., k, k])
    second = tf.atan2(sign * r[..., i, k], cosine)
    third = tf.atan2(-sign * r[..., i, j], r[..., i, i])
    zero = tf.zeros_like(first)
    if is_fixed:
      locked = zero, tf.atan2(sign * r[..., j, i], r[..., j, j])
    else:
      locked = tf.atan2(sign * r[..., k, j], r[..., j, j]), zero
    first = tf.where(is_locked, locked[0], first)
    third = tf.where(is_locked, locked[1], third)
    return tf.stack(to_order((first, second, third)), -1)

  return _Representation(3, angles_to_matrix, matrix_to_angles)


_transpose = tf.linalg.matrix_transpose
_REPRESENTATIONS: dict[str, _Representation] = {
    'quaternion_xyzw': _Representation(
        4, _quaternion_to_matrix, _matrix_to_quaternion
    ),
    'quaternion_wxyz': _Representation(
        4,
        lambda numbers: _quaternion_to_matrix(tf.roll(numbers, -1, axis=-1)),
        lambda matrix: tf.roll(_matrix_to_quaternion(matrix), 1, axis=-1),
    ),
    'axis_angle': _Representation(
        3, _axis_angle_to_matrix, _matrix_to_axis_angle
    ),
    'rotation_6d': _Representation(6, _columns_to_matrix, _matrix_to_columns),
    'rotation_6d_rows': _Representation(
        6,
        lambda numbers: _transpose(_columns_to_matrix(numbers)),
        lambda matrix: _matrix_to_columns(_transpose(matrix)),
    ),
    'matrix': _Representation(
        9,
        _numbers_to_matrix,
        lambda matrix: tf.concat(tf.unstack(matrix, axis=-2), -1),
    ),
    **{
        f'euler_{order if is_fixed else order.upper()}': _make_euler(
            order, is_fixed
        )
        for order in map(''.join, itertools.permutations(_AXES))
        for is_fixed in (True, False)
    },
}


@base.configurable
class ConvertRotation(values.FieldTransform):
  """Converts a rotation within a field to another representation.

  The inverse converts back, to the unique form of the source representation.

  Attributes:
    field: the path of the leaf of floats.
    start: the index of the first number of the rotation.
    source: the representation of the data; see `rotations`.
    target: the representation to convert to.
  """

  field: paths.Path
  start: int
  source: str
  target: str

  def _check(self):
    check_representation(self.source)
    check_representation(self.target)

  def _change(self, steps, undo):
    source, target, name = self.source, self.target, paths.name_of(self.field)
    if undo:
      source, target = target, source
    fn = lambda numbers: convert(numbers, source, target, name)
    return values.map_slice(fn, steps, self.field, self.start, get_size(source))
