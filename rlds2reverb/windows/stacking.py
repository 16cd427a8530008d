"""Frame stacking and action chunking: the last observations, the next actions.

All take an episode's steps or its transition rows, and give back what they
were given, with the fields changed. So the steps can go on to the conversion,
and the rows to the other functions on rows.
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


def stack_observations(
    episode: Any,
    num_frames: int,
    fill: Union[str, float] = 'repeat',
    *,
    names: rows_lib.Names = None,
) -> _StepsOrRows:
  """Gives each step of one episode its last observations, the oldest first.

  This is `CatFrames` of TorchRL, and the observation window of Octo. With N=3:

      step          0           1           2           3
      "repeat"      o0 o0 o0    o0 o0 o1    o0 o1 o2    o1 o2 o3
      "zeros"        0  0 o0     0 o0 o1    o0 o1 o2    o1 o2 o3

  Args:
    episode: the steps of one episode, a nested data set or stacked
      `[T + 1, ...]` tensors; or its `TransitionRows`, of single steps.
    num_frames: `N`.
    fill: what stands before the first observation: `"repeat"` (TorchRL's
      "same"), the first observation; `"zeros"`; or a number, which a field of
      integers must be able to hold.
    names: another name for the mask, as `{'observation_mask': 'is_real'}`.

  Returns:
    The steps, stacked, with every leaf of `observation` `[T + 1, N, ...]`, and
    with `observation_mask`, bool `[T + 1, N]`, True where a frame is real. Or
    the rows, in which `next_observation` is stacked, too.

  Raises:
    ValueError: if `num_frames` is not positive, there is no observation, one of
      its fields cannot hold `fill`, there is a field `observation_mask`, or
      `episode` is neither steps nor rows of single steps.
    InvalidArgumentError: if fields or columns differ in length.
  """
  checks.check_positive('num_frames', num_frames)
  gathering.check_fill(fill)

  def stack(observation, index):
    return gathering.take_filled(
        {rlds.OBSERVATION: observation},
        index,
        gathering.num_rows(observation),
        before=fill,
        after='repeat',
    )[rlds.OBSERVATION]

  is_rows = isinstance(episode, transitions.TransitionRows)
  fields = (
      transitions.as_one_step_rows(episode).columns
      if is_rows
      else _stacked(episode)
  )
  observation = paths.get(fields, rlds.OBSERVATION)
  length = gathering.num_rows(observation)
  index = windows_lib.window_index(
      tf.range(length) - num_frames + 1, num_frames
  )
  fields[rlds.OBSERVATION] = stack(observation, index)
  if is_rows and transitions.NEXT_OBSERVATION in fields:
    whole = tf.nest.map_structure(
        lambda leaf, following: tf.concat([leaf, following[-1:]], 0),
        observation,
        fields[transitions.NEXT_OBSERVATION],
    )
    fields[transitions.NEXT_OBSERVATION] = stack(whole, index + 1)
  made = {OBSERVATION_MASK: gathering.is_inside(index, length)}
  return _like(episode, rows_lib.add_columns(fields, made, names))


def chunk_actions(
    episode: Any,
    num_actions: int,
    fill: Union[str, float] = 'zeros',
    *,
    names: rows_lib.Names = None,
) -> _StepsOrRows:
  """Gives each step of one episode its next actions, its own first.

  These are the action chunks of Octo and ACT. The action of an episode's last
  step has no meaning, and is in no chunk, unless the steps have a field
  `has_action` that says otherwise, as `StepMapping` makes it. With K=3, of
  three transitions:

      step          0           1           2           3
      "zeros"       a0 a1 a2    a1 a2  0    a2  0  0     0  0  0
      "repeat"      a0 a1 a2    a1 a2 a2    a2 a2 a2    a2 a2 a2

  Args:
    episode: the steps of one episode, a nested data set or stacked
      `[T + 1, ...]` tensors; or its `TransitionRows`.
    num_actions: `K`.
    fill: what stands after the last action: `"zeros"`; `"repeat"`, the last
      action, as Octo has it for absolute actions; or a number, which a field of
      integers must be able to hold.
    names: another name for the mask, as `{'action_mask': 'is_real'}`.

  Returns:
    The steps, stacked, with every leaf of `action` `[T + 1, K, ...]`, and with
    `action_mask`, bool `[T + 1, K]`, True where an action is real. Or the rows,
    `[T, K, ...]`, with the mask.

  Raises:
    ValueError: if `num_actions` is not positive, there is no action, one of its
      fields cannot hold `fill`, there is a field `action_mask`, or `episode` is
      neither steps nor rows.
    InvalidArgumentError: if fields or columns differ in length.
  """
  checks.check_positive('num_actions', num_actions)
  gathering.check_fill(fill)
  is_rows = isinstance(episode, transitions.TransitionRows)
  fields = (
      transitions.as_rows(episode).columns if is_rows else _stacked(episode)
  )
  action = paths.get(fields, rlds.ACTION)
  length = gathering.num_rows(action)
  index = windows_lib.window_index(tf.range(length), num_actions)
  if is_rows:
    stop = length
  else:
    have_action = last_steps.have_action(fields, last_steps.is_last(length))
    stop = tf.math.count_nonzero(have_action)
  fields[rlds.ACTION] = gathering.take_filled(
      {rlds.ACTION: action}, index, stop, before='repeat', after=fill
  )[rlds.ACTION]
  made = {ACTION_MASK: gathering.is_inside(index, stop)}
  return _like(episode, rows_lib.add_columns(fields, made, names))


def stack_and_chunk(
    episode: Any,
    num_frames: int,
    num_actions: int,
    fill: Union[str, float] = 'repeat',
    *,
    goal_step: Optional[paths.Path] = None,
    mask_rule: str = OWN,
    names: rows_lib.Names = None,
) -> _StepsOrRows:
  """Gives each step its last observations, and for each of them next actions.

  This is `chunk_act_obs` of Octo. With N=2 and K=2, of three transitions:

      step           0              1              2              3
      observation    o0    o0       o0    o1       o1    o2       o2    o3
      action         a0 a1 a0 a1    a0 a1 a1 a2    a1 a2 a2 a2    a2 a2 a2 a2
      action_mask    F  F  T  T     T  T  T  T     T  T  T  F     T  F  F  F

  An action is real if its frame is, if it counts by itself, as in
  `chunk_actions`, and if it comes before the goal. In Octo, actions are padding
  from the second one after the goal on, or after the last step where there is
  no goal, and those of padded frames count as real.

  Args:
    episode: the steps of one episode, a nested data set or stacked
      `[T + 1, ...]` tensors; or its `TransitionRows`, of single steps.
    num_frames: `N`.
    num_actions: `K`.
    fill: what stands after the last action; see `chunk_actions`. Before the
      first observation it is repeated.
    goal_step: the path of the index of the step that is the goal of each step,
      an integer, as `RelabelGoals` adds it. Without it, actions go on until the
      episode's end.
    mask_rule: which actions `action_mask` has as real: `"own"`; or `"octo"`, as
      Octo has it.
    names: other names for the masks, as `{'action_mask': 'is_real'}`.

  Returns:
    What `stack_observations` does, with every leaf of `action`
    `[T + 1, N, K, ...]`, or `[T, N, K, ...]` of rows, and with `action_mask`,
    bool `[T + 1, N, K]`.

  Raises:
    ValueError: as `stack_observations` and `chunk_actions` do; and if
      `goal_step` is no integer for each step.
    InvalidArgumentError: if fields or columns differ in length.
  """
  checks.check_choice('mask_rule', mask_rule, MASK_RULES)
  names = dict(names or {})
  made = (OBSERVATION_MASK, ACTION_MASK)
  for name in names:
    checks.check_choice('A key of names', name, made)
  of_frames, of_actions = (
      {name: names[name]} if name in names else None for name in made
  )
  mask_name = names.get(ACTION_MASK, ACTION_MASK)
  chunked = chunk_actions(episode, num_actions, fill, names=of_actions)
  stacked = stack_observations(chunked, num_frames, names=of_frames)
  if isinstance(stacked, transitions.TransitionRows):
    fields = dict(stacked.columns)
  else:
    fields = dict(stacked)
  mask = fields[mask_name]
  length = gathering.num_rows(mask)
  frames = windows_lib.window_index(
      tf.range(length) - num_frames + 1, num_frames
  )
  is_real = gathering.is_inside(frames, length)[..., tf.newaxis]
  index = tf.maximum(frames, 0)
  fields[rlds.ACTION] = gathering.take(fields[rlds.ACTION], index)
  goal = None
  if goal_step is not None:
    goal = steps_lib.one_a_step(
        paths.name_of(goal_step), paths.get(fields, goal_step), tf.int64
    )
  elif mask_rule == OCTO:
    goal = tf.fill([length], length - 1)
  if mask_rule == OWN:
    mask, margin = is_real & gathering.take(mask, index), 0
  else:
    # Octo counts the steps to the goal from two steps before the frame.
    mask, margin = True, 2
  if goal is not None:
    steps_ahead = windows_lib.window_index(
        tf.reshape(frames, [-1]) - margin, num_actions
    )
    steps_ahead = tf.reshape(steps_ahead, [-1, num_frames, num_actions])
    mask &= steps_ahead < goal[:, tf.newaxis, tf.newaxis]
  fields[mask_name] = mask
  return _like(stacked, fields)


def _stacked(steps) -> Dict[str, Any]:
  transitions.check_steps(steps)
  return transitions.stack_dict(steps)


def _like(episode, fields) -> _StepsOrRows:
  """Returns `fields` as rows, where the episode was given as rows."""
  if isinstance(episode, transitions.TransitionRows):
    return episode._replace(columns=fields)
  return fields
