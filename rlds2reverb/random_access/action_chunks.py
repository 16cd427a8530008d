"""History and future actions of single steps, found by index."""

import dataclasses
from typing import Any, Optional, Union

import numpy as np

from rlds2reverb.episodes import checks


@dataclasses.dataclass(frozen=True)
class ActionChunks:
  """Every step is an item, with its last observations and next actions.

  The items are those of `windows.stack_and_chunk`. N=2, K=2, four steps:

      step           0              1              2              3
      observation    o0    o0       o0    o1       o1    o2       o2    o3
      action         a0 a1 a0 a1    a0 a1 a1 a2    a1 a2 a2 a2    a2 a2 a2 a2
      action_mask    F  F  T  T     T  T  T  T     T  T  T  F     T  F  F  F

  Attributes:
    num_frames: `N`, how many observations an item has. Items have this
      dimension and the next one always, of size 1 by default;
      `stack_and_chunk` adds those that are asked for.
    num_actions: `K`, how many actions there are for each of them.
    fill: the values after the last action: `'repeat'`, `'zeros'` or a number.
    goal_step: the name of the field that is the index of the step's goal, as
      `RelabelGoals` adds it. Actions from there on are masked.
    last_steps: whether the last step of an episode is an item, too. It has no
      action of its own, unless a field `has_action`, as `StepMapping` makes it,
      says so.
  """

  num_frames: int = 1
  num_actions: int = 1
  fill: Union[str, float] = 'repeat'
  goal_step: Optional[str] = None
  last_steps: bool = True

  def __post_init__(self):
    checks.check_positive('num_frames', self.num_frames)
    checks.check_positive('num_actions', self.num_actions)
    if isinstance(self.fill, str):
      checks.check_choice('fill', self.fill, ('repeat', 'zeros'))

  def frames(self, step: np.ndarray) -> np.ndarray:
    """Returns the steps of the observations, some below 0, `[B, N]`."""
    return step[:, np.newaxis] + np.arange(1 - self.num_frames, 1)

  def actions(self, step: np.ndarray) -> np.ndarray:
    """Returns the steps of the actions, some beyond the end, `[B, N, K]`."""
    frames = np.maximum(self.frames(step), 0)
    return frames[..., np.newaxis] + np.arange(self.num_actions)

  def action_mask(
      self, step: np.ndarray, stop: np.ndarray, goal: Optional[Any]
  ) -> np.ndarray:
    """Returns which actions are real, bool `[B, N, K]`.

    Args:
      step: the step of each item, int64 `[B]`.
      stop: how many steps of its episode have an action, int64 `[B]`.
      goal: the step of its goal `[B]`, or None.
    """
    frames = self.frames(step)[..., np.newaxis]
    actions = frames + np.arange(self.num_actions)
    mask = (frames >= 0) & (actions < stop[:, np.newaxis, np.newaxis])
    if goal is not None:
      mask &= actions < np.asarray(goal, np.int64)[:, np.newaxis, np.newaxis]
    return mask
