"""Poses of a rigid body, and the motions between them.

A pose is a position and a rotation, `[x, y, z, *rotation]`; a motion has the
same form. It is relative to a frame; p are positions, R matrices:

    frame             position            rotation
    "base"            p' - p              R' @ R^T
    "end_effector"    R^T @ (p' - p)      R^T @ R'

A motion in the end-effector frame is the same wherever the robot stands.
"""

from typing import Tuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.transforms import rotations

FRAMES = ('base', 'end_effector')


def motion_between(
    poses: tf.Tensor,
    next_poses: tf.Tensor,
    *,
    rotation: str,
    motion_rotation: str = 'axis_angle',
    frame: str = 'base',
) -> tf.Tensor:
  """Returns the motions that lead from poses to other ones.

  Args:
    poses: floats `[..., 3 + n]`.
    next_poses: the poses after them, of the same shape.
    rotation: the representation of rotations in the poses; see `rotations`.
    motion_rotation: the representation of rotations in the motions.
    frame: the frame of the motions, one of the table at the head.

  Returns:
    The motions, `[..., 3 + m]`, in the dtype of `poses`.

  Raises:
    ValueError: if there is no such representation or frame, or the poses are
      not of its size.
  """
  checks.check_choice('frame', frame, FRAMES)
  poses = tf.convert_to_tensor(poses)
  position, matrix = _split(poses, rotation, 'poses')
  next_position, next_matrix = _split(next_poses, rotation, 'next_poses')
  moved = next_position - position
  if frame == 'base':
    turned = tf.matmul(next_matrix, matrix, transpose_b=True)
  else:
    moved = tf.linalg.matvec(matrix, moved, transpose_a=True)
    turned = tf.matmul(matrix, next_matrix, transpose_a=True)
  return _join(moved, turned, motion_rotation, poses.dtype)


def apply_motion(
    poses: tf.Tensor,
    motions: tf.Tensor,
    *,
    rotation: str,
    motion_rotation: str = 'axis_angle',
    frame: str = 'base',
) -> tf.Tensor:
  """Returns the poses to which motions lead: it undoes `motion_between`.

  Args:
    poses: floats `[..., 3 + n]`.
    motions: floats `[..., 3 + m]`, such as a policy's actions.
    rotation: see `motion_between`.
    motion_rotation: see `motion_between`.
    frame: see `motion_between`.

  Returns:
    The next poses, `[..., 3 + n]`, in the dtype of `poses`.

  Raises:
    ValueError: as `motion_between` does.
  """
  checks.check_choice('frame', frame, FRAMES)
  poses = tf.convert_to_tensor(poses)
  position, matrix = _split(poses, rotation, 'poses')
  moved, turned = _split(motions, motion_rotation, 'motions')
  if frame == 'base':
    matrix_after = tf.matmul(turned, matrix)
  else:
    moved = tf.linalg.matvec(matrix, moved)
    matrix_after = tf.matmul(matrix, turned)
  return _join(position + moved, matrix_after, rotation, poses.dtype)


def _split(
    poses: tf.Tensor, rotation: str, name: str
) -> Tuple[tf.Tensor, tf.Tensor]:
  """Returns positions `[..., 3]` and matrices `[..., 3, 3]`, float64."""
  poses = rotations.checked(
      poses,
      3 + rotations.size_of(rotation),
      name,
      f', a position and a rotation of the representation {rotation}',
  )
  position = tf.cast(poses[..., :3], tf.float64)
  return position, rotations.to_matrix(poses[..., 3:], rotation, name)


def _join(position, matrix, rotation, dtype) -> tf.Tensor:
  numbers = rotations.from_matrix(matrix, rotation)
  return tf.cast(tf.concat([position, numbers], -1), dtype)
