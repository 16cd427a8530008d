"""Frame stacking and action chunking: the last observations, the next actions.

The steps of an episode stay steps, which can be converted, and its transition
rows stay rows, which the other functions on rows take.
"""

from typing import Any, Dict, Optional, Union

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import rows as rows_lib
from rlds2reverb.windows import transitions

OBSERVATION_MASK = 'observation_mask'
ACTION_MASK = 'action_mask'
# Which actions of a chunk are real.
OWN, OCTO = MASK_RULES = ('own', 'octo')

_StepsOrRows = Union[Dict[str, Any], transitions.TransitionRows]


def stack_and_chunk(
    episode: Any,
    num_frames: Optional[int] = None,
    num_actions: Optional[int] = None,
    fill: Union[str, float] = 'repeat',
    *,
    before: Union[str, float] = 'repeat',
    goal_step: Optional[paths.Path] = None,
    mask_rule: str = OWN,
    names: rows_lib.Names = None,
) -> _StepsOrRows:
  """Gives each step of one episode its last observations and next actions.

  Three transitions, with N observations and K actions, give:

      step           0              1              2              3
                     N=3, as `CatFrames` of TorchRL
      observation    o0 o0 o0       o0 o0 o1       o0 o1 o2       o1 o2 o3
                     K=3, as the chunks of ACT
      action         a0 a1 a2       a1 a2 a2       a2 a2 a2       a2 a2 a2
      action_mask    T  T  T        T  T  F        T  F  F        F  F  F
                     N=2 and K=2, as `chunk_act_obs` of Octo
      observation    o0    o0       o0    o1       o1    o2       o2    o3
      action         a0 a1 a0 a1    a0 a1 a1 a2    a1 a2 a2 a2    a2 a2 a2 a2
      action_mask    F  F  T  T     T  T  T  T     T  T  T  F     T  F  F  F

  The action of an episode's last step has no meaning, and is in no chunk,
  unless the steps have a field `has_action` that says otherwise, as
  `StepMapping` makes it. With both numbers, an action is real if its frame is,
  if it has a meaning, and if it comes before the goal. In Octo, actions are
  padding from the second one after the goal on, or after the last step where
  there is no goal, and those of padded frames count as real.

  Args:
    episode: the steps of one episode, a nested data set or stacked
      `[T + 1, ...]` tensors; or its `TransitionRows`. For observations these
      must be of single steps.
    num_frames: `N`, how many observations each step gets, the oldest first. By
      default observations stay single.
    num_actions: `K`, how many actions each step gets, its own first. By default
      actions stay single.
    fill: the values after the last action: `"repeat"`, the last action, as in
      Octo for absolute actions; `"zeros"`; or a number, which a field of
      integers must be able to hold.
    before: the values before the first observation: `"repeat"` (TorchRL's
      "same"), the first observation; `"zeros"`; or such a number.
    goal_step: the path of the index of the step that is the goal of each step,
      an integer, as `RelabelGoals` adds it. Without it, actions go on until the
      episode's end. It needs both numbers, as does another `mask_rule`.
    mask_rule: which actions are real for `action_mask`: `"own"`, as said above,
      or `"octo"`, as in Octo.
    names: other names for the masks, such as `{'action_mask': 'is_real'}`.

  Returns:
    The steps, stacked, with every leaf of `observation` `[T + 1, N, ...]` and
    `observation_mask`, bool `[T + 1, N]`, True where a frame is real; and with
    every leaf of `action` `[T + 1, K, ...]` and `action_mask`, bool
    `[T + 1, K]`, True where an action is real; `[T + 1, N, K, ...]` and
    `[T + 1, N, K]` with both. Or the rows, `[T, ...]`, in which
    `next_observation` is stacked, too.

  Raises:
    ValueError: if neither number is given, or one is not positive; if there is
      no observation or action to stack, or one of its fields cannot hold the
      fill; if there is a field of a mask's name; if `goal_step` is no integer
      for each step, or it or a `mask_rule` is given without both numbers; or if
      `episode` is neither steps nor rows.
    InvalidArgumentError: if fields or columns differ in length.
  """
  checks.check_choice('mask_rule', mask_rule, MASK_RULES)
  for name, number in ('num_frames', num_frames), ('num_actions', num_actions):
    if number is not None:
      checks.check_positive(name, number)
  given = [number is not None for number in (num_frames, num_actions)]
  if not any(given) or (
      not all(given) and (goal_step is not None or mask_rule != OWN)
  ):
    raise ValueError(
        'stack_and_chunk needs num_frames or num_actions, and both of them for'
        f' goal_step and mask_rule, but they are {num_frames} and'
        f' {num_actions}.'
    )
  gathering.check_fill(before)
  gathering.check_fill(fill)
  fields = _fields_of(episode, num_frames is not None)
  made = {}
  if num_actions is not None:
    made[ACTION_MASK] = _chunk(episode, fields, num_actions, fill)
  if num_frames is not None:
    length = gathering.num_rows(paths.get(fields, rlds.OBSERVATION))
    frames = windows_lib.window_index(
        tf.range(length) - num_frames + 1, num_frames
    )
    _stack(fields, frames, before)
    made[OBSERVATION_MASK] = gathering.is_inside(frames, length)
    if num_actions is not None:
      index = tf.maximum(frames, 0)
      fields[rlds.ACTION] = gathering.take(fields[rlds.ACTION], index)
      mask = _before_goal(fields, frames, num_actions, goal_step, mask_rule)
      if mask_rule == OWN:
        mask &= gathering.take(made[ACTION_MASK], index)
        mask &= made[OBSERVATION_MASK][..., tf.newaxis]
      made[ACTION_MASK] = mask
  fields = rows_lib.add_columns(fields, made, names)
  if isinstance(episode, transitions.TransitionRows):
    return episode._replace(columns=fields)
  return fields


def _fields_of(episode, stacks_frames) -> Dict[str, Any]:
  """Returns the columns of rows, or the fields of steps."""
  if not isinstance(episode, transitions.TransitionRows):
    transitions.check_steps(episode)
    return transitions.stack_dict(episode)
  if stacks_frames:
    return transitions.as_one_step_rows(episode).columns
  return transitions.as_rows(episode).columns


def _chunk(episode, fields, num_actions, fill) -> tf.Tensor:
  """Replaces the actions by chunks, and returns which of these are real."""
  action = paths.get(fields, rlds.ACTION)
  stop = length = gathering.num_rows(action)
  index = windows_lib.window_index(tf.range(length), num_actions)
  if not isinstance(episode, transitions.TransitionRows):
    have_action = last_steps.have_action(fields, last_steps.is_last(length))
    stop = tf.math.count_nonzero(have_action)
  fields[rlds.ACTION] = gathering.take_filled(
      {rlds.ACTION: action}, index, stop, before='repeat', after=fill
  )[rlds.ACTION]
  return gathering.is_inside(index, stop)


def _stack(fields, frames, before) -> None:
  """Replaces the observations by the stacks of their frames."""

  def stack(observation, index):
    return gathering.take_filled(
        {rlds.OBSERVATION: observation},
        index,
        gathering.num_rows(observation),
        before=before,
        after='repeat',
    )[rlds.OBSERVATION]

  observation = fields[rlds.OBSERVATION]
  fields[rlds.OBSERVATION] = stack(observation, frames)
  if transitions.NEXT_OBSERVATION in fields:  # Only rows have it.
    whole = tf.nest.map_structure(
        lambda leaf, following: tf.concat([leaf, following[-1:]], 0),
        observation,
        fields[transitions.NEXT_OBSERVATION],
    )
    fields[transitions.NEXT_OBSERVATION] = stack(whole, frames + 1)


def _before_goal(fields, frames, num_actions, goal_step, mask_rule):
  """Returns which actions `[T, N, K]` come before the goal of their step."""
  # Octo counts the steps to the goal from two steps before the frame.
  margin = 2 if mask_rule == OCTO else 0
  if goal_step is not None:
    goal = steps_lib.one_a_step(
        paths.name_of(goal_step), paths.get(fields, goal_step), tf.int64
    )
  elif mask_rule == OCTO:
    length = tf.shape(frames, tf.int64)[0]
    goal = tf.fill([length], length - 1)
  else:
    return True
  steps_ahead = frames[..., tf.newaxis] + tf.range(
      -margin, num_actions - margin, dtype=tf.int64
  )
  return steps_ahead < goal[:, tf.newaxis, tf.newaxis]
