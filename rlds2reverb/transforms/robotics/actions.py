"""Transforms of robot actions: gripper commands, and actions from states.

An absolute gripper command is 1 to open and 0 to close the gripper, as in Octo
and OpenVLA, whose functions with similar names these transforms follow. If the
action of an episode's last step is meaningless, it is ignored, and replaced by
the command before it; see `episodes.last_steps`.

A pose is a position and a rotation, `[x, y, z, *rotation]`; a motion has the
same form. It is relative to a frame, with positions p and rotation matrices R:

    frame             position            rotation
    "base"            p' - p              R' @ R^T
    "end_effector"    R^T @ (p' - p)      R^T @ R'

A motion in the end-effector frame does not depend on the pose of the robot.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import values
from rlds2reverb.transforms.robotics import rotations

KINDS = ('absolute', 'difference')
FRAMES = ('base', 'end_effector')


class _GripperTransform(base.EpisodeTransform):
  """Computes absolute commands with `_to_absolute`."""

  field: paths.Path
  index: int | None
  _to_absolute: Callable[[tf.Tensor, base.EpisodeRows], tf.Tensor]

  def transform_rows(self, steps, rows):
    def to_absolute(command):
      values.check_kind(paths.name_of(self.field), command, values.COLUMN)
      return self._to_absolute(command, rows)

    return values.map_number(to_absolute, steps, self.field, self.index)


@base.configurable
class BinarizeGripper(_GripperTransform):
  """Rounds absolute gripper commands to 0 or 1, by the commands that follow.

  A command between the thresholds is part of a movement, and becomes the next
  command beyond a threshold. If there is none, it becomes the last command of
  the episode, as in Octo, which is not binary:

      action     .02  .5  .98  .7   .4 (last step)
      result      0    1   1   .7   .7

  It has no inverse: `invert` changes nothing.

  Attributes:
    field: the path of the leaf of floats, such as `action`.
    index: the index of the gripper along the last axis, counted from the end if
      negative; None if the field is the gripper command.
    closed_below: commands below it become 0.
    open_above: commands above it become 1.
  """

  field: paths.Path = rlds.ACTION
  index: int | None = -1
  closed_below: float = 0.05
  open_above: float = 0.95

  def _to_absolute(self, command, rows):
    is_open = command > self.open_above
    is_clear = is_open | (command < self.closed_below)
    last_row = rows.last_action()
    next_clear = rows.nearest(is_clear & rows.have_action(), backward=False)
    next_clear = tf.gather(next_clear, tf.minimum(rows.row, last_row))
    rounded = tf.cast(_gather_or_first(is_open, next_clear), command.dtype)
    last_command = tf.gather(command, last_row)
    result = tf.where(next_clear >= 0, rounded, last_command)
    # An episode of one step may have no action.
    has_none = (rows.first == rows.last) & ~rows.have_action()
    return tf.where(has_none, command, result)


@base.configurable
class RelativeToAbsoluteGripper(_GripperTransform):
  """Converts relative commands: +1 closes, -1 opens, 0 changes nothing.

  Before its first command, the gripper is assumed to be in the opposite state.
  In an episode without commands, it is open:

      relative    0   1   0   0  -1   0 (last step)
      absolute    1   0   0   0   1   1

  The inverse, `relative`, needs the previous command. `invert` changes nothing.

  Attributes:
    field: the path of the leaf of floats, such as `action`.
    index: the index of the gripper along the last axis, counted from the end if
      negative; None if the field is the gripper command.
    threshold: commands between this and its negative are treated as 0.
  """

  field: paths.Path = rlds.ACTION
  index: int | None = -1
  threshold: float = 0.1

  def _check(self):
    if not self.threshold >= 0:
      raise ValueError(f'threshold must be 0 or more, but is {self.threshold}.')

  def _to_absolute(self, command, rows):
    opens = command < -self.threshold
    is_command = (opens | (command > self.threshold)) & rows.have_action()
    previous = rows.nearest(is_command, backward=True)
    following = rows.nearest(is_command, backward=False)
    is_open = ~_gather_or_first(opens, following) | (following < 0)
    is_open = tf.where(
        previous >= 0, _gather_or_first(opens, previous), is_open
    )
    return tf.cast(is_open, command.dtype)

  @staticmethod
  def relative(absolute: tf.Tensor, previous: tf.Tensor) -> tf.Tensor:
    """Returns the relative command for an absolute command.

    It inverts this transform when a policy is deployed.

    Args:
      absolute: the command of the policy, floats of any shape, from 0 (closed)
        to 1 (open). From 0.5 on it is open.
      previous: the previous command, of the same shape; at the start of an
        episode, the state of the gripper.

    Returns:
      +1 to close, -1 to open, and 0 for no change, in the dtype of `absolute`.
    """
    absolute, previous = map(tf.convert_to_tensor, (absolute, previous))
    for name, command in ('absolute', absolute), ('previous', previous):
      values.check_kind(name, command, values.FLOATS)
    is_closed = tf.cast(absolute < 0.5, absolute.dtype)
    return is_closed - tf.cast(previous < 0.5, absolute.dtype)


@base.configurable
class InvertGripper(values.FieldTransform):
  """Inverts gripper commands, so that 1 is open: `x` becomes `1 - x / closed`.

  Attributes:
    field: the path of the leaf of floats, such as `action`.
    index: the index of the gripper along the last axis, counted from the end if
      negative; None if the field is the gripper command.
    closed: the command in the data that closes the gripper, such as 255.
  """

  field: paths.Path = rlds.ACTION
  index: int | None = -1
  closed: float = 1.0

  def _change(self, steps, undo):
    def change(command):
      if undo:
        return (1 - command) * self.closed
      return 1 - command / self.closed

    return values.map_number(change, steps, self.field, self.index)


def _gather_or_first(column, row):
  """Returns `column[row]`, and any number for a row of -1."""
  return tf.gather(column, tf.maximum(row, 0))


class _ActionsFromNextState(base.EpisodeTransform):
  """Computes actions from the current and the next state of the robot.

  A subclass has these attributes. `_get_state` reads the state, `between`
  computes the action that leads to the next state, and `apply` inverts
  `between`. An action has `_size` numbers, by default as many as a state.
  """

  action: paths.Path
  keep: Sequence[int]
  between: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  _get_state: Callable[[dict[str, Any]], tf.Tensor]
  _size: int | None = None

  def target(self, steps: dict[str, Any]) -> tf.Tensor:
    """Returns the state, or pose, that an action of a policy leads to.

    Args:
      steps: a dict with the current state and the action of the policy, with
        any leading dimensions.

    Returns:
      The numbers of the state that are used, `[..., n]`.

    Raises:
      ValueError: if the state or the action is missing or does not fit.
    """
    state = self._get_state(steps)
    size = self._size or state.shape[-1]
    return self.apply(state, values.take(steps, self.action, 0, size))

  def transform_rows(self, steps, rows):
    state = self._get_state(steps)
    new = self.between(state, tf.gather(state, rows.next()))
    if batch_lib.HAS_ACTION in steps:
      # The last step has no next state.
      steps = {**steps, batch_lib.HAS_ACTION: rows.row < rows.last}
    old = values.one_leaf(steps, self.action, values.FLOATS, values.SIZED)
    width = old.shape[-1]
    invalid = [index for index in self.keep if not -width <= index < width]
    if invalid or new.shape.rank != old.shape.rank:
      raise ValueError(
          f'{paths.name_of(self.action)} and the new actions must be vectors,'
          f' with the numbers {list(self.keep)} to keep, but their shapes are'
          f' {old.shape} and {new.shape}. Chunk actions after this transform.'
      )
    appended = [old[..., index, tf.newaxis] for index in self.keep]
    new = tf.concat([tf.cast(new, old.dtype), *appended], -1)
    return values.put(steps, self.action, new)


@base.configurable
class ActionsFromStates(_ActionsFromNextState):
  """Replaces actions by the next state, or by the difference to it.

      step                  0          1          2 (last)
      state                 s0         s1         s2
      kind="absolute"       s1         s2         s2
      kind="difference"     s1 - s0    s2 - s1    0

  The action of the last step is its state, or 0, and meaningless: `has_action`,
  if the steps have it, becomes False there.

  With `kind="difference"` and `size=6`, the actions are equal to Octo's
  `relabel_actions` and OpenVLA's `relabel_bridge_actions`, which drop the last
  step. They subtract Euler angles number by number, so the result is not a
  rotation, and jumps at pi: see `MotionsFromPoses`.

  `invert` returns `steps` unchanged, as the old action is lost; `target`
  returns the state that an action leads to.

  Attributes:
    state: the path of the leaf of floats with the states.
    action: the path of the leaf of floats to replace.
    kind: `"difference"` or `"absolute"`, as above.
    start: the index of the first number of the state to use.
    size: the number of numbers of the state to use; by default all from `start`
      on.
    keep: the indices of numbers of the old action that are appended to the new
      one; negative indices count from the end. By default the last, for the
      gripper.
  """

  state: paths.Path
  action: paths.Path = rlds.ACTION
  kind: str = 'difference'
  start: int = 0
  size: int | None = None
  keep: Sequence[int] = (-1,)

  def _check(self):
    checks.check_choice('kind', self.kind, KINDS)

  def _get_state(self, steps):
    return values.take(steps, self.state, self.start, self.size)

  def between(self, state: tf.Tensor, next_state: tf.Tensor) -> tf.Tensor:
    """Returns the actions that lead from states to the next states."""
    return next_state if self.kind == 'absolute' else next_state - state

  def apply(self, state: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """Returns the states that actions lead to; the inverse of `between`."""
    if self.kind == 'absolute':
      return action
    return state + tf.cast(action, state.dtype)


@base.configurable
class MotionsFromPoses(_ActionsFromNextState):
  """Replaces actions by the motion to the next pose; see the table above.

  `invert` returns `steps` unchanged, as the old action is lost; `target`
  returns the pose that an action leads to. The action of the last step is the
  motion that does not move.

  Attributes:
    pose: the path of the leaf of floats with the poses.
    rotation: the representation of their rotations; see `rotations`.
    action: the path of the leaf of floats to replace.
    motion_rotation: the representation of rotations in the actions.
    frame: `"base"` or `"end_effector"`.
    start: the index of the first number of the pose in its leaf.
    keep: the indices of numbers of the old action that are appended to the new
      one; see `ActionsFromStates`.
  """

  pose: paths.Path
  rotation: str
  action: paths.Path = rlds.ACTION
  motion_rotation: str = 'axis_angle'
  frame: str = 'base'
  start: int = 0
  keep: Sequence[int] = (-1,)

  def _check(self):
    checks.check_choice('frame', self.frame, FRAMES)
    rotations.check_representation(self.rotation)
    rotations.check_representation(self.motion_rotation)

  def between(self, poses: tf.Tensor, next_poses: tf.Tensor) -> tf.Tensor:
    """Returns the motions that lead from poses to the next poses.

    Args:
      poses: floats `[..., 3 + n]`.
      next_poses: floats of the same shape.

    Returns:
      The motions, `[..., 3 + m]`, in the dtype of `poses`.

    Raises:
      ValueError: if the poses do not have this size.
    """
    poses = tf.convert_to_tensor(poses)
    position, matrix = _split_pose(poses, self.rotation, 'poses')
    next_position, next_matrix = _split_pose(
        next_poses, self.rotation, 'next_poses'
    )
    translation = next_position - position
    if self.frame == 'end_effector':
      translation = tf.linalg.matvec(matrix, translation, transpose_a=True)
      rotation = tf.matmul(matrix, next_matrix, transpose_a=True)
    else:
      rotation = tf.matmul(next_matrix, matrix, transpose_b=True)
    return _join_pose(translation, rotation, self.motion_rotation, poses.dtype)

  def apply(self, poses: tf.Tensor, motions: tf.Tensor) -> tf.Tensor:
    """Returns the poses that motions lead to; the inverse of `between`."""
    poses = tf.convert_to_tensor(poses)
    position, matrix = _split_pose(poses, self.rotation, 'poses')
    translation, rotation = _split_pose(
        motions, self.motion_rotation, 'motions'
    )
    if self.frame == 'end_effector':
      translation = tf.linalg.matvec(matrix, translation)
      matrix = tf.matmul(matrix, rotation)
    else:
      matrix = tf.matmul(rotation, matrix)
    position = position + translation
    return _join_pose(position, matrix, self.rotation, poses.dtype)

  @property
  def _size(self):
    return 3 + rotations.get_size(self.motion_rotation)

  def _get_state(self, steps):
    size = 3 + rotations.get_size(self.rotation)
    return values.take(steps, self.pose, self.start, size)


def _split_pose(poses, rotation, name):
  """Returns positions `[..., 3]` and matrices `[..., 3, 3]`, float64."""
  size = 3 + rotations.get_size(rotation)
  description = f', a position and a rotation of the representation {rotation}'
  poses = rotations.to_float64(poses, size, name, description)
  return poses[..., :3], rotations.to_matrix(poses[..., 3:], rotation, name)


def _join_pose(position, matrix, rotation, dtype) -> tf.Tensor:
  numbers = rotations.from_matrix(matrix, rotation)
  return tf.cast(tf.concat([position, numbers], -1), dtype)


@base.configurable
class ActionsFromWaypoints(base.EpisodeTransform):
  """Keeps every n-th step, with the way to the next of them as its action.

  The way is relative to the robot, whose yaw is 0 along x. It has the units of
  the old actions: the first movement determines the scale. This is Octo's
  `gnm_dataset_transform` with `every=3`, which also drops the last of the kept
  steps:

      step         0    1    2    3    4    5    6    7 (last)
      kept         yes            yes            yes
      action       p3 - p0        p6 - p3        0, and has_action is False

  The episode ends with the last kept step, and is truncated unless this is the
  last step of the data. Rewards and discounts of dropped steps are merged; see
  `DropNoOps`.

  Attributes:
    state: the path of the leaf of floats with the position (2) and the yaw.
    action: the path of the leaf of floats to replace, two numbers.
    every: the number of steps that are merged to one, 1 or more.
  """

  state: paths.Path
  action: paths.Path = rlds.ACTION
  every: int = 3

  def _check(self):
    checks.check_positive('every', self.every)

  def transform_rows(self, steps, rows):
    last = rows.first + (rows.last - rows.first) // self.every * self.every
    position = values.take(steps, self.state, 0, 2)
    yaw = values.take(steps, self.state, 2, 1)[:, 0]
    old = values.take(steps, self.action, 0, 2)
    waypoint = tf.minimum(rows.row + self.every, last)
    x, y = tf.unstack(tf.gather(position, waypoint) - position, axis=1)
    cos, sin = tf.cos(yaw), tf.sin(yaw)
    way = tf.stack([x * cos + y * sin, y * cos - x * sin], axis=1)
    way *= _compute_scale(position, old, rows)[:, tf.newaxis]
    is_last = tf.equal(rows.row, last)
    steps = values.put(steps, self.action, tf.cast(way, old.dtype))
    if rlds.IS_LAST in steps:
      steps[rlds.IS_LAST] = tf.cast(is_last, steps[rlds.IS_LAST].dtype)
    if batch_lib.HAS_ACTION in steps:
      steps[batch_lib.HAS_ACTION] = ~is_last
    is_kept = rows.step % self.every == 0
    return filters.merge_steps(steps, rows._replace(last=last), is_kept)


def _compute_scale(position, action, rows) -> tf.Tensor:
  """Returns the length of an action per length of a movement, `[N]`."""
  distances = tf.norm(tf.gather(position, rows.next()) - position, axis=1)
  first_move = rows.nearest(distances > 0, backward=False)
  first_move = tf.gather(first_move, rows.first)
  moves, first_move = first_move >= 0, tf.maximum(first_move, 0)
  distance = tf.where(moves, tf.gather(distances, first_move), 1)
  lengths = tf.cast(tf.norm(action, axis=1), position.dtype)
  return tf.where(moves, tf.gather(lengths, first_move) / distance, 1)
