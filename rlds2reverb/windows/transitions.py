"""The transition rows of an episode, on which all windows are made."""

from typing import Any, Dict

import rlds
import tensorflow as tf

from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.windows import rows as rows_lib


NEXT_OBSERVATION = 'next_observation'
MASK = 'mask'


def transition_rows(steps: Any) -> Dict[str, Any]:
  """Returns the `T` transitions of one episode of `T + 1` steps.

      steps              o0 a0 r0   o1 a1 r1   o2 a2 r2   o3 (last, terminal)
      observation        o0         o1         o2
      next_observation   o1         o2         o3
      is_first           T          F          F
      is_last            F          F          T
      is_terminal        F          F          T
      discount           d0         d1         0

  A row's `is_last`, `is_terminal` are those of the step that it leads to, as a
  learner's *done* is; its discount is 0 where that step is terminal, as in
  TF-Agents. Every other field is that of the step it leaves.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors. `observation`, `discount` and the flags may each be missing.

  Returns:
    A dict of the steps' fields, and `next_observation`, every leaf `[T, ...]`;
    the flags are bool `[T]`, the discount float32 `[T]`. An episode of one step
    has no rows.

  Raises:
    ValueError: if the steps are no dict of dense tensors, the discount or a
      flag is not one number a step, or there are `observation` and
      `next_observation` already.
    InvalidArgumentError: if stacked fields differ in length.
  """
  steps = stack_dict(steps)
  length = gathering.num_rows(steps)
  first = tf.minimum(length, 1)
  rows = steps_lib.own_rows(steps, 0 * length, length - first)
  if rlds.OBSERVATION in steps:
    rows_lib.add_column(
        rows,
        NEXT_OBSERVATION,
        steps_lib.own_rows(steps[rlds.OBSERVATION], first, length),
    )
  if rlds.IS_FIRST in steps:
    rows[rlds.IS_FIRST] = steps_lib.one_a_step(
        rlds.IS_FIRST, rows[rlds.IS_FIRST], tf.bool
    )
  for flag in (rlds.IS_LAST, rlds.IS_TERMINAL):
    if flag in steps:
      flags = steps_lib.one_a_step(flag, steps[flag], tf.bool)
      rows[flag] = steps_lib.own_rows(flags, first, length)
  if rlds.DISCOUNT in steps:
    discount = steps_lib.one_a_step(
        rlds.DISCOUNT, rows[rlds.DISCOUNT], tf.float32
    )
    if rlds.IS_TERMINAL in steps:
      discount = tf.where(rows[rlds.IS_TERMINAL], 0.0, discount)
    rows[rlds.DISCOUNT] = discount
  return rows


def stack_dict(steps: Any) -> Dict[str, Any]:
  """Returns steps of either form stacked, as a new dict of tensors.

  Raises:
    ValueError: if a step is not a dict, or a field is ragged or sparse.
    InvalidArgumentError: if stacked fields differ in length.
  """
  steps = steps_lib.stack_steps(steps)
  if not isinstance(steps, dict):
    raise ValueError(
        'The steps of an episode must be a dict of fields, but are a'
        f' {type(steps).__name__}.'
    )
  steps_lib.check_dense(steps)
  return tf.nest.map_structure(tf.convert_to_tensor, dict(steps))
