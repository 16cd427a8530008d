"""Transforms that make actions of the states that were reached."""

import dataclasses
from typing import Any, Dict, Optional, Sequence

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import poses
from rlds2reverb.transforms import rotations
from rlds2reverb.transforms import values

ACTIONS = ('absolute', 'difference')


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ActionsFromStates(base.EpisodeTransform):
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

  def __post_init__(self):
    super().__post_init__()
    checks.check_choice('kind', self.kind, ACTIONS)

  def transform_rows(self, steps, rows):
    state = self._state(steps)
    reached = tf.gather(state, rows.next())
    new = reached if self.kind == 'absolute' else reached - state
    return _with_kept(steps, rows, self.action, new, self.kept)

  def target(self, steps: Dict[str, Any]) -> tf.Tensor:
    """Returns the state to which an action of a policy leads.

    Args:
      steps: a dict with the state where the robot is and the policy's action,
        with any leading dimensions.

    Returns:
      The numbers of the state that count, `[..., size]`.

    Raises:
      ValueError: if one of them is missing or does not fit.
    """
    state = self._state(steps)
    moved = values.take(steps, self.action, 0, state.shape[-1])
    return moved if self.kind == 'absolute' else state + moved

  def _state(self, steps):
    size = self.size
    if size is None:
      size = values.vector(steps, self.state).shape[-1] - self.start
    return values.take(steps, self.state, self.start, size)


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class MotionsFromPoses(base.EpisodeTransform):
  """Makes actions of the motion to the next pose; see `poses`.

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

  def __post_init__(self):
    super().__post_init__()
    checks.check_choice('frame', self.frame, poses.FRAMES)
    for representation in (self.rotation, self.motion_rotation):
      rotations.size_of(representation)

  def transform_rows(self, steps, rows):
    pose = self._pose(steps)
    reached = tf.gather(pose, rows.next())
    motion = poses.motion_between(pose, reached, **self._convention())
    return _with_kept(steps, rows, self.action, motion, self.kept)

  def target(self, steps: Dict[str, Any]) -> tf.Tensor:
    """Returns the pose to which an action of a policy leads.

    Args:
      steps: a dict with the pose where the robot is and the policy's action,
        with any leading dimensions.

    Returns:
      The pose, `[..., 3 + n]`.

    Raises:
      ValueError: if one of them is missing or does not fit.
    """
    size = 3 + rotations.size_of(self.motion_rotation)
    motion = values.take(steps, self.action, 0, size)
    return poses.apply_motion(self._pose(steps), motion, **self._convention())

  def _pose(self, steps):
    size = 3 + rotations.size_of(self.rotation)
    return values.take(steps, self.pose, self.start, size)

  def _convention(self):
    return {
        'rotation': self.rotation,
        'motion_rotation': self.motion_rotation,
        'frame': self.frame,
    }


def _with_kept(steps, rows, field, new, kept):
  """Replaces a leaf by other numbers, followed by some of its own."""
  if last_steps.HAS_ACTION in steps:
    # The last step leads to no state.
    steps = {**steps, last_steps.HAS_ACTION: rows.row < rows.last}
  old = values.vector(steps, field)
  width = old.shape[-1]
  wrong = [index for index in kept if not -width <= index < width]
  if wrong:
    raise ValueError(
        f'{paths.name_of(field)} has {width} numbers, of which there are none'
        f' at {wrong} to be kept.'
    )
  if new.shape.rank != old.shape.rank:
    raise ValueError(
        f'{paths.name_of(field)} has the shape {old.shape}, where that of the'
        f' states is {new.shape}. Both must be vectors: cut chunks later.'
    )
  index = tf.constant([index % width for index in kept], tf.int32)
  behind = tf.gather(old, index, axis=-1)
  return values.replace(
      steps, field, 0, width, tf.concat([tf.cast(new, old.dtype), behind], -1)
  )
