"""Transforms that make actions of the states that were reached.

A pose is a position and a rotation, `[x, y, z, *rotation]`; a motion has the
same form. It is relative to a frame; p are positions, R matrices:

    frame             position            rotation
    "base"            p' - p              R' @ R^T
    "end_effector"    R^T @ (p' - p)      R^T @ R'

A motion in the end-effector frame is the same wherever the robot stands.
"""

from typing import Any, Callable, Dict, Optional, Sequence

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import rotations
from rlds2reverb.transforms import thinning
from rlds2reverb.transforms import values

ACTIONS = ('absolute', 'difference')
FRAMES = ('base', 'end_effector')


class _ActionsFromReached(base.EpisodeTransform):
  """Makes actions of where the robot is and what it reaches next.

  A class has these attributes, and says by `_here` where the robot is, and by
  `between` what leads from there to where it is next, which `apply` undoes. An
  action has `_size` numbers, or as many as a state.
  """

  action: paths.Path
  kept: Sequence[int]
  apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  _here: Callable[[Dict[str, Any]], tf.Tensor]
  _size: Optional[int] = None

  def target(self, steps: Dict[str, Any]) -> tf.Tensor:
    """Returns the state, or pose, to which an action of a policy leads.

    Args:
      steps: a dict with the state where the robot is and the policy's action,
        with any leading dimensions.

    Returns:
      The numbers of the state that count, `[..., n]`.

    Raises:
      ValueError: if one of them is missing or does not fit.
    """
    start = self._here(steps)
    size = self._size or start.shape[-1]
    return self.apply(start, values.take(steps, self.action, 0, size))

  def transform_rows(self, steps, rows):
    start = self._here(steps)
    new = self.between(start, tf.gather(start, rows.next()))
    if last_steps.HAS_ACTION in steps:
      # The last step leads to no state.
      steps = {**steps, last_steps.HAS_ACTION: rows.row < rows.last}
    old = values.one_leaf(steps, self.action, values.FLOATS, values.SIZED)
    width = old.shape[-1]
    wrong = [index for index in self.kept if not -width <= index < width]
    if wrong or new.shape.rank != old.shape.rank:
      raise ValueError(
          f'{paths.name_of(self.action)} has the shape {old.shape}, where that'
          f' of the new actions is {new.shape}, and numbers {list(self.kept)}'
          ' of it are to be kept. Both must be vectors: cut chunks later.'
      )
    kept = [old[..., index, tf.newaxis] for index in self.kept]
    new = tf.concat([tf.cast(new, old.dtype), *kept], -1)
    return values.put(steps, self.action, new)


@base.configurable
class ActionsFromStates(_ActionsFromReached):
  """Makes actions of the next state, or of its difference from this one.

      step                  0          1          2 (last)
      state                 s0         s1         s2
      kind="absolute"       s1         s2         s2
      kind="difference"     s1 - s0    s2 - s1    0

  The action of the last step stays in its state, and has no meaning:
  `has_action`, if the steps have it, becomes False there.

  With `kind="difference"` and `size=6` it makes the actions that Octo's
  `relabel_actions` and OpenVLA's `relabel_bridge_actions` do, which drop the
  last step. They subtract Euler angles number by number. The result is no
  rotation, and jumps at pi: see `MotionsFromPoses`.

  `invert` returns what it is given, as the old action is lost; `target` returns
  the state to which an action leads.

  Attributes:
    state: the path of the leaf of floats with the states.
    action: the path of the leaf of floats that is replaced.
    kind: `"difference"` or `"absolute"`, as drawn above.
    start: the first number of the state that counts.
    size: how many numbers of the state count; by default all from `start` on.
    kept: the indices of numbers of the old action that follow the new ones;
      those below 0 count from the end. The default is the last, the gripper's.
  """

  state: paths.Path
  action: paths.Path = rlds.ACTION
  kind: str = 'difference'
  start: int = 0
  size: Optional[int] = None
  kept: Sequence[int] = (-1,)

  def _check(self):
    checks.check_choice('kind', self.kind, ACTIONS)

  def _here(self, steps):
    return values.take(steps, self.state, self.start, self.size)

  def between(self, start: tf.Tensor, reached: tf.Tensor) -> tf.Tensor:
    """Returns the actions that lead from states to the next ones."""
    return reached if self.kind == 'absolute' else reached - start

  def apply(self, start: tf.Tensor, moved: tf.Tensor) -> tf.Tensor:
    """Returns the states to which actions lead: it undoes `between`."""
    is_absolute = self.kind == 'absolute'
    return moved if is_absolute else start + tf.cast(moved, start.dtype)


@base.configurable
class MotionsFromPoses(_ActionsFromReached):
  """Makes actions of the motion to the next pose; see the table above.

  `invert` returns what it is given, as the old action is lost; `target` returns
  the pose to which an action leads. The action of the last step is the motion
  that does not move.

  Attributes:
    pose: the path of the leaf of floats with the poses.
    rotation: the representation of their rotations; see `rotations`.
    action: the path of the leaf of floats that is replaced.
    motion_rotation: the representation of rotations in the actions.
    frame: `"base"` or `"end_effector"`.
    start: the first number of the pose in its leaf.
    kept: which numbers of the old action come behind the new ones; see
      `ActionsFromStates`.
  """

  pose: paths.Path
  rotation: str
  action: paths.Path = rlds.ACTION
  motion_rotation: str = 'axis_angle'
  frame: str = 'base'
  start: int = 0
  kept: Sequence[int] = (-1,)

  def _check(self):
    checks.check_choice('frame', self.frame, FRAMES)
    for representation in (self.rotation, self.motion_rotation):
      rotations.size_of(representation)

  def between(self, poses: tf.Tensor, next_poses: tf.Tensor) -> tf.Tensor:
    """Returns the motions that lead from poses to other ones.

    Args:
      poses: floats `[..., 3 + n]`.
      next_poses: the poses after them, of the same shape.

    Returns:
      The motions, `[..., 3 + m]`, in the dtype of `poses`.

    Raises:
      ValueError: if the poses are not of that size.
    """
    poses = tf.convert_to_tensor(poses)
    position, matrix = _split(poses, self.rotation, 'poses')
    next_position, next_matrix = _split(next_poses, self.rotation, 'next_poses')
    moved = next_position - position
    turned = tf.matmul(next_matrix, matrix, transpose_b=True)
    if self.frame == 'end_effector':
      moved = tf.linalg.matvec(matrix, moved, transpose_a=True)
      turned = tf.matmul(matrix, next_matrix, transpose_a=True)
    return _join(moved, turned, self.motion_rotation, poses.dtype)

  def apply(self, poses: tf.Tensor, motions: tf.Tensor) -> tf.Tensor:
    """Returns the poses to which motions lead: it undoes `between`."""
    poses = tf.convert_to_tensor(poses)
    position, matrix = _split(poses, self.rotation, 'poses')
    moved, turned = _split(motions, self.motion_rotation, 'motions')
    if self.frame == 'end_effector':
      moved = tf.linalg.matvec(matrix, moved)
      matrix, turned = turned, matrix
    matrix = tf.matmul(turned, matrix)
    return _join(position + moved, matrix, self.rotation, poses.dtype)

  @property
  def _size(self):
    return 3 + rotations.size_of(self.motion_rotation)

  def _here(self, steps):
    size = 3 + rotations.size_of(self.rotation)
    return values.take(steps, self.pose, self.start, size)


def _split(poses, rotation, name):
  """Returns positions `[..., 3]` and matrices `[..., 3, 3]`, float64."""
  size = 3 + rotations.size_of(rotation)
  what = f', a position and a rotation of the representation {rotation}'
  poses = rotations.checked(poses, size, name, what)
  return poses[..., :3], rotations.to_matrix(poses[..., 3:], rotation, name)


def _join(position, matrix, rotation, dtype) -> tf.Tensor:
  numbers = rotations.from_matrix(matrix, rotation)
  return tf.cast(tf.concat([position, numbers], -1), dtype)


@base.configurable
class ActionsFromWaypoints(base.EpisodeTransform):
  """Takes every n-th step, whose action becomes the way to the next one.

  The way is relative to the robot, whose yaw is 0 along x, in the units of the
  old actions, whose length is that of the first way other than 0. This is
  Octo's `gnm_dataset_transform` with `every=3`, which leaves out the last of
  the steps that are taken:

      step         0    1    2    3    4    5    6    7 (last)
      taken        yes            yes            yes
      action       p3 - p0        p6 - p3        0, and has_action is False

  The episode ends with the last step that is taken, and is truncated unless
  that was its end. Rewards and discounts of the steps between are not
  lost; see `DropNoOps`.

  Attributes:
    state: the path of the leaf of floats with the position (2) and the yaw.
    action: the path of the leaf of floats that is replaced, two numbers.
    every: how many steps become one, 1 or more.
  """

  state: paths.Path
  action: paths.Path = rlds.ACTION
  every: int = 3

  def _check(self):
    checks.check_positive('every', self.every)

  def transform_rows(self, steps, rows):
    end = rows.first + (rows.last - rows.first) // self.every * self.every
    position = values.take(steps, self.state, 0, 2)
    yaw = values.take(steps, self.state, 2, 1)[:, 0]
    old = values.take(steps, self.action, 0, 2)
    following = tf.minimum(rows.row + self.every, end)
    x, y = tf.unstack(tf.gather(position, following) - position, axis=1)
    cos, sin = tf.cos(yaw), tf.sin(yaw)
    way = tf.stack([x * cos + y * sin, y * cos - x * sin], axis=1)
    way *= _scale(position, old, rows)[:, tf.newaxis]
    is_end = tf.equal(rows.row, end)
    steps = values.put(steps, self.action, tf.cast(way, old.dtype))
    if rlds.IS_LAST in steps:
      steps[rlds.IS_LAST] = tf.cast(is_end, steps[rlds.IS_LAST].dtype)
    if last_steps.HAS_ACTION in steps:
      steps[last_steps.HAS_ACTION] = ~is_end
    is_taken = rows.step % self.every == 0
    return thinning.merge_steps(steps, rows._replace(last=end), is_taken)


def _scale(position, action, rows) -> tf.Tensor:
  """Returns the length of an action for a way of length 1, `[N]`."""
  ways = tf.norm(tf.gather(position, rows.next()) - position, axis=1)
  first_move = tf.gather(rows.nearest(ways > 0, backward=False), rows.first)
  moves, first_move = first_move >= 0, tf.maximum(first_move, 0)
  way = tf.where(moves, tf.gather(ways, first_move), 1)
  lengths = tf.cast(tf.norm(action, axis=1), position.dtype)
  return tf.where(moves, tf.gather(lengths, first_move) / way, 1)
