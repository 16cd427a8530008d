"""Frame stacking and action chunking: last observations and next actions.

Steps stay steps, which can be converted, and transition rows stay rows, which
the other functions on rows take.
"""

from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import transitions

OBSERVATION_MASK = 'observation_mask'
ACTION_MASK = 'action_mask'
# The rules by which actions of a chunk count as real.
OWN, OCTO = MASK_RULES = ('own', 'octo')

_StepsOrRows = dict[str, Any] | transitions.TransitionRows


def stack_and_chunk(
    episode: Any,
    num_frames: int | None = None,
    num_actions: int | None = None,
    fill: str | float = 'repeat',
    *,
    before: str | float = 'repeat',
    goal_step: paths.Path | None = None,
    mask_rule: str = OWN,
    frame_axis: int | None = None,
    names: transitions.Names = None,
) -> _StepsOrRows:
  """Stacks the last observations and chunks the next actions of each step.

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
  unless the steps have a field `has_action` that marks it as real, as
  `StepMapping` makes it. With both numbers, the mask follows a rule. `"own"`:
  an action is real if its frame is real, if it is not the meaningless last
  action, and if it precedes the goal. `"octo"`: padding starts at the second
  action after the goal, or after the last step without a goal, and the actions
  of padded frames are real.

  Args:
    episode: the steps of one episode, a nested data set or stacked
      `[T + 1, ...]` tensors; or its `TransitionRows`. To stack observations,
      these must be of single steps.
    num_frames: `N`, the number of observations of each step, the oldest first.
      By default observations are not stacked.
    num_actions: `K`, the number of actions of each step, starting with its own.
      By default actions are not chunked.
    fill: the values after the last action: `"repeat"`, the last action, as in
      Octo for absolute actions; `"zeros"`; or a number, which a field of
      integers must be able to hold.
    before: the values before the first observation: `"repeat"` (TorchRL's
      "same"), the first observation; `"zeros"`; or such a number.
    goal_step: the path of the index of the goal step of each step, an integer,
      as `RelabelGoals` adds it. Without it, actions continue until the
      episode's end. It needs both numbers, and so does `"octo"`.
    mask_rule: which actions are real for `action_mask`: `"own"`, as described
      above, or `"octo"`, as in Octo.
    frame_axis: the axis of an observation along which its frames are
      concatenated, as `CatFrames` of TorchRL does: with -1 and N=4, images
      `[84, 84, 1]` become `[84, 84, 4]`, and vectors `[17]` become `[68]`. By
      default frames get a new axis.
    names: other names for the masks, such as `{'action_mask': 'is_real'}`.

  Returns:
    The steps, stacked, with every leaf of `observation` `[T + 1, N, ...]`, or
    `[T + 1, ...]` with one axis `N` times as long if `frame_axis` is given, and
    `observation_mask`, bool `[T + 1, N]`, True where a frame is real; and with
    every leaf of `action` `[T + 1, K, ...]` and `action_mask`, bool
    `[T + 1, K]`, True where an action is real; `[T + 1, N, K, ...]` and
    `[T + 1, N, K]` with both. Or the rows, `[T, ...]`, in which
    `next_observation` is stacked, too.

  Raises:
    ValueError: if neither number is given, or one is not positive; if
      `frame_axis` is given without `num_frames`, or is not an axis of an
      observation; if there is no observation or action to stack, or one of its
      fields cannot hold the fill; if a field with the name of a mask exists; if
      `goal_step` is not one integer for each step, or it or `"octo"` is given
      without both numbers; or if `episode` is neither steps nor rows.
    InvalidArgumentError: if fields or columns differ in length.
  """
  checks.check_choice('mask_rule', mask_rule, MASK_RULES)
  for name, number in ('num_frames', num_frames), ('num_actions', num_actions):
    if number is not None:
      checks.check_positive(name, number)
  has_both = num_frames is not None and num_actions is not None
  has_none = num_frames is None and num_actions is None
  if has_none or (not has_both and (goal_step is not None or mask_rule != OWN)):
    raise ValueError(
        'stack_and_chunk needs num_frames or num_actions, and both of them for'
        f' goal_step and mask_rule, but they are {num_frames} and'
        f' {num_actions}.'
    )
  if frame_axis is not None and num_frames is None:
    raise ValueError(f'frame_axis is {frame_axis}, but needs num_frames.')
  rows_lib.check_fill(before)
  rows_lib.check_fill(fill)
  is_rows = isinstance(episode, transitions.TransitionRows)
  if not is_rows:
    transitions.check_steps(episode)
    fields = transitions.stack_dict(episode)
  elif num_frames is not None:
    fields = transitions.as_one_step_rows(episode).columns
  else:
    fields = transitions.as_rows(episode).columns
  masks = {}
  if num_actions is not None:
    masks[ACTION_MASK] = _chunk_actions(fields, num_actions, fill, is_rows)
  if num_frames is not None:
    length = rows_lib.num_rows(paths.get(fields, rlds.OBSERVATION))
    frames = windows_lib.window_index(
        tf.range(length) - num_frames + 1, num_frames
    )
    _stack_observations(fields, frames, before, frame_axis)
    masks[OBSERVATION_MASK] = rows_lib.is_in_range(frames, length)
    if num_actions is not None:
      index = tf.maximum(frames, 0)
      fields[rlds.ACTION] = rows_lib.take(fields[rlds.ACTION], index)
      mask = _before_goal(fields, frames, num_actions, goal_step, mask_rule)
      if mask_rule == OWN:
        mask &= rows_lib.take(masks[ACTION_MASK], index)
        mask &= masks[OBSERVATION_MASK][..., tf.newaxis]
      masks[ACTION_MASK] = mask
  fields = transitions.add_columns(fields, masks, names)
  return episode._replace(columns=fields) if is_rows else fields


def _chunk_actions(fields, num_actions, fill, is_rows) -> tf.Tensor:
  """Replaces the actions by chunks, and returns the mask of real actions."""
  action = paths.get(fields, rlds.ACTION)
  stop = length = rows_lib.num_rows(action)
  index = windows_lib.window_index(tf.range(length), num_actions)
  if not is_rows:
    have_action = batch_lib.has_action_mask(
        fields, batch_lib.last_step_mask(length)
    )
    stop = tf.math.count_nonzero(have_action)
  # The nest has the name of the field, for errors.
  fields[rlds.ACTION] = rows_lib.take_filled(
      {rlds.ACTION: action}, index, stop, before='repeat', after=fill
  )[rlds.ACTION]
  return rows_lib.is_in_range(index, stop)


def _stack_observations(fields, frames, before, frame_axis) -> None:
  """Replaces the observations by stacks of frames `[T, N]`."""

  def stack(observation, index):
    stacked = rows_lib.take_filled(
        {rlds.OBSERVATION: observation},
        index,
        rows_lib.num_rows(observation),
        before=before,
        after='repeat',
    )
    if frame_axis is None:
      return stacked[rlds.OBSERVATION]
    leaves = [
        _concat_frames(path, leaf, frame_axis)
        for path, leaf in paths.leaves(stacked).items()
    ]
    return tf.nest.pack_sequence_as(observation, leaves)

  observation = fields[rlds.OBSERVATION]
  fields[rlds.OBSERVATION] = stack(observation, frames)
  if transitions.NEXT_OBSERVATION in fields:  # Only rows have it.
    all_observations = tf.nest.map_structure(
        lambda leaf, following: tf.concat([leaf, following[-1:]], 0),
        observation,
        fields[transitions.NEXT_OBSERVATION],
    )
    fields[transitions.NEXT_OBSERVATION] = stack(all_observations, frames + 1)


def _concat_frames(path, leaf, axis) -> tf.Tensor:
  """Concatenates frames `[T, N, ...]` along an axis of a single frame."""
  rank = leaf.shape.rank - 2
  if not -rank <= axis < rank:
    raise ValueError(
        f'frame_axis is {axis}, but {path} has {rank} axes:'
        f' {leaf.shape[2:]}. Remove frame_axis, or choose an axis that every'
        ' observation has.'
    )
  axis %= rank
  # [T, before, N, axis, after]
  order = [0, *range(2, 2 + axis), 1, *range(2 + axis, 2 + rank)]
  transposed = tf.transpose(leaf, order)
  shape = tf.shape(leaf)
  size = shape[1] * shape[2 + axis]
  result = tf.reshape(
      transposed,
      tf.concat([shape[:1], shape[2 : 2 + axis], [size], shape[3 + axis :]], 0),
  )
  static = leaf.shape.as_list()
  sizes = static[1], static[2 + axis]
  static_size = None if None in sizes else sizes[0] * sizes[1]
  return tf.ensure_shape(
      result,
      [static[0], *static[2 : 2 + axis], static_size, *static[3 + axis :]],
  )


def _before_goal(fields, frames, num_actions, goal_step, mask_rule):
  """Returns which actions `[T, N, K]` come before the goal of their step."""
  # Octo counts the steps to the goal from two steps before the frame.
  margin = 2 if mask_rule == OCTO else 0
  if goal_step is not None:
    goal = steps_lib.to_column(
        paths.name_of(goal_step), paths.get(fields, goal_step), tf.int64
    )
  elif mask_rule == OCTO:
    length = tf.shape(frames, tf.int64)[0]
    goal = tf.fill([length], length - 1)
  else:
    return True
  offsets = tf.range(-margin, num_actions - margin, dtype=tf.int64)
  action_steps = frames[..., tf.newaxis] + offsets
  return action_steps < goal[:, tf.newaxis, tf.newaxis]
