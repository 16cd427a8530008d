"""The transition rows of an episode, of which all windows are made."""

from typing import Any, Dict, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.windows import rows as rows_lib

NEXT_OBSERVATION = 'next_observation'


class TransitionRows(NamedTuple):
  """The transitions of one episode, or consecutive ones of it, as columns.

  The functions of this folder take an episode's steps or its transition rows.
  Functions that add columns return rows again, so they can be chained; the last
  function of a chain cuts the rows, for example into chunks. The type tells
  rows from steps, and `tf.data.Dataset.map` keeps it. To add a column by hand,
  write `rows._replace(columns={**rows.columns, 'name': ...})`.

  Attributes:
    columns: a dict of nests, every leaf `[T, ...]`; see `transition_rows`.
  """

  columns: Dict[str, Any]


class NStepRows(TransitionRows):
  """Transition rows that lead several steps ahead; see `n_step_transitions`.

  Functions that need the reward or the next observation of a single step refuse
  these rows by their type.
  """

  __slots__ = ()


def transition_rows(steps: Any) -> TransitionRows:
  """Returns the `T` transitions of one episode of `T + 1` steps.

      steps              o0 a0 r0   o1 a1 r1   o2 a2 r2   o3 (last, terminal)
      observation        o0         o1         o2
      next_observation   o1         o2         o3
      is_first           T          F          F
      is_last            F          F          T
      is_terminal        F          F          T
      discount           d0         d1         0

  A row's `is_last` and `is_terminal` are those of the step that it leads to, as
  a learner's *done* is. Its discount is 0 where that step is terminal, as in
  TF-Agents. Every other field comes from the step that the row leaves.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors. `observation`, `discount` and the flags may each be missing.

  Returns:
    The `TransitionRows`: the steps' fields and `next_observation`, every leaf
    `[T, ...]`. The flags are bool `[T]`, the discount is float32 `[T]`. An
    episode of one step has no rows.

  Raises:
    ValueError: if the steps are not a dict of dense tensors, if the discount or
      a flag is not one number a step, or if there are both `observation` and
      `next_observation` already.
    InvalidArgumentError: if stacked fields differ in length.
  """
  steps = stack_dict(steps)
  length = gathering.num_rows(steps)
  first = tf.minimum(length, 1)
  own, following = (0 * length, length - first), (first, length)
  columns = stacked_steps.own_rows(steps, *own)
  if rlds.OBSERVATION in steps:
    if NEXT_OBSERVATION in steps:
      _refuse_next_observation()
    columns[NEXT_OBSERVATION] = stacked_steps.own_rows(
        steps[rlds.OBSERVATION], *following
    )
  for flag in rlds.FLAGS:
    if flag in steps:
      flags = steps_lib.one_a_step(flag, steps[flag], tf.bool)
      bounds = own if flag == rlds.IS_FIRST else following
      columns[flag] = stacked_steps.own_rows(flags, *bounds)
  if rlds.DISCOUNT in steps:
    discount = steps_lib.one_a_step(
        rlds.DISCOUNT, columns[rlds.DISCOUNT], tf.float32
    )
    if rlds.IS_TERMINAL in steps:
      discount = tf.where(columns[rlds.IS_TERMINAL], 0.0, discount)
    columns[rlds.DISCOUNT] = discount
  return TransitionRows(columns)


def as_rows(episode: Any) -> TransitionRows:
  """Returns the transition rows of an episode, given as steps or as rows.

  Args:
    episode: `TransitionRows`, which come back as they are; or the steps of one
      episode, a nested data set or stacked `[T + 1, ...]` tensors.

  Returns:
    The rows, whose `columns` are a new dict of tensors.

  Raises:
    ValueError: if `episode` is of another type, or a dict with the field
      `next_observation`, which steps do not have; and see `transition_rows`.
    InvalidArgumentError: if fields or columns differ in length.
  """
  if isinstance(episode, TransitionRows):
    steps_lib.check_dense(episode.columns)
    columns = tf.nest.map_structure(tf.convert_to_tensor, dict(episode.columns))
    return episode._replace(columns=stacked_steps.with_equal_lengths(columns))
  check_steps(episode)
  return transition_rows(episode)


def as_one_step_rows(episode: Any) -> TransitionRows:
  """Does the same as `as_rows`, but refuses n-step rows.

  Raises:
    ValueError: if `episode` is `NStepRows`; and see `as_rows`.
  """
  if isinstance(episode, NStepRows):
    raise ValueError(
        'The rows are n-step transitions already, but this function needs those'
        ' of single steps. Call it before n_step_transitions.'
    )
  return as_rows(episode)


def rows_of_element(element: Any) -> TransitionRows:
  """Returns the rows of an element of a data set: an RLDS episode, or rows."""
  if isinstance(element, TransitionRows):
    return as_rows(element)
  steps_lib.check_has_steps('An element that is no TransitionRows', element)
  return as_rows(element[rlds.STEPS])


def check_steps(steps: Any) -> None:
  """Checks by its type that a value may be the steps of one episode.

  Raises:
    ValueError: if it is not a data set or a dict of fields; if it is a whole
      episode; or if it has `next_observation`, as a dict of rows does.
  """
  if isinstance(steps, tf.data.Dataset):
    fields = steps.element_spec
  elif isinstance(steps, dict):
    fields = steps
  else:
    raise ValueError(
        'An episode must be given as its TransitionRows, or as its steps: a'
        ' dict of fields, or a data set of steps. It is a'
        f' {type(steps).__name__}.'
    )
  if not isinstance(fields, dict):
    return
  # `rows._asdict()` has the columns one level down.
  below = fields.get('columns')
  if NEXT_OBSERVATION in fields or (
      isinstance(below, dict) and NEXT_OBSERVATION in below
  ):
    _refuse_next_observation()
  if isinstance(fields.get(rlds.STEPS), (dict, tf.data.Dataset)):
    raise ValueError(
        'This is a whole episode, but its steps are needed: episode["steps"].'
    )


def stack_dict(steps: Any) -> Dict[str, Any]:
  """Returns steps of either form stacked, as a new dict of tensors.

  Raises:
    ValueError: if a step is not a dict, or a field is ragged or sparse.
    InvalidArgumentError: if stacked fields differ in length.
  """
  steps = stacked_steps.stack_steps(steps)
  if not isinstance(steps, dict):
    raise ValueError(
        'The steps of an episode must be a dict of fields, but are a'
        f' {type(steps).__name__}.'
    )
  steps_lib.check_dense(steps)
  return tf.nest.map_structure(tf.convert_to_tensor, dict(steps))


def add_columns(
    rows: TransitionRows, made: Dict[str, Any], names: rows_lib.Names = None
) -> TransitionRows:
  """Returns `rows` with the columns `made`; see `rows.add_columns`."""
  return rows._replace(columns=rows_lib.add_columns(rows.columns, made, names))


def _refuse_next_observation():
  raise ValueError(
      f'There is a field {NEXT_OBSERVATION!r} already, which transition rows'
      ' have, and steps do not. If these are transition rows, give the'
      ' TransitionRows themselves, not their columns; if they are steps, rename'
      f' the field first: RenameFields({{{NEXT_OBSERVATION!r}: ...}}).'
  )
