"""Episodes that are cut at a horizon, after RLlib."""

from typing import Any, Dict, Optional

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.windows import transitions


def apply_horizon(
    rlds_data: tf.data.Dataset,
    horizon: Optional[int],
    *,
    soft: bool = False,
    no_done_at_end: bool = False,
) -> tf.data.Dataset:
  """Cuts every episode after `horizon` transitions, as RLlib did.

  A soft horizon keeps the rest as pseudo-episodes, which share the observation
  where they meet. An episode of 5 transitions that terminates, horizon=2:

      steps        0  1  2  3  4  5    terminal at 5
      hard         0  1  2
      soft         0  1  2
                         2  3  4
                               4  5    terminal at 5

  Args:
    rlds_data: an RLDS data set.
    horizon: the most transitions, `H`. None cuts nothing.
    soft: whether the transitions after the horizon are kept.
    no_done_at_end: whether learners bootstrap at the end of every episode.
      `is_terminal` is then False everywhere, and the discount is 1 on a
      terminal step and on the step before it, from which the transition leads
      there. `is_last` stays as it is.

  Returns:
    An RLDS data set, the steps stacked, at most `H + 1` an episode, with all
    other fields of the episode. An episode that was cut is truncated: its last
    step `is_last` and not `is_terminal`. Each pseudo-episode has `is_first` on
    its first step. Dtypes are kept.

  Raises:
    ValueError: if `horizon` is not positive, or a flag is missing or not one
      number or bool a step.
    InvalidArgumentError: while iterating, if stacked fields differ in length.
  """
  if horizon is not None:
    checks.check_positive('horizon', horizon)

  def steps_of(episode):
    steps = transitions.stack_dict(episode[rlds.STEPS])
    for flag in rlds.FLAGS:
      paths.get(steps, flag)
      outcomes.flag(steps, flag)  # or it is no flag
    return _without_end(steps) if no_done_at_end else steps

  def part(steps, index):
    """Returns at most `horizon + 1` steps, with the flags of an episode."""
    length = gathering.num_rows(steps)
    start = index * horizon
    stop = tf.minimum(start + horizon + 1, length)
    row = tf.range(start, stop)
    is_cut = (row == stop - 1) & (stop < length)
    steps = stacked_steps.own_rows(steps, start, stop)
    if soft:
      steps = _set(steps, rlds.IS_FIRST, row == start, 1)
    steps = _set(steps, rlds.IS_LAST, is_cut, 1)
    return _set(
        steps, rlds.IS_TERMINAL, tf.fill(tf.shape(row), stop < length), 0
    )

  def cut(episode):
    steps = steps_of(episode)
    if horizon is not None:
      steps = part(steps, tf.constant(0, tf.int64))
    return {**episode, rlds.STEPS: steps}

  def split(episode):
    steps = steps_of(episode)
    length = gathering.num_rows(steps)
    # An episode of one step has no transitions, and stays an episode.
    count = tf.maximum((length - 1 + horizon - 1) // horizon, 1)
    count = tf.where(length > 0, count, 0)
    return tf.data.Dataset.range(count).map(
        lambda index: {**episode, rlds.STEPS: part(steps, index)}
    )

  if soft and horizon is not None:
    return rlds_data.flat_map(split)
  return rlds_data.map(cut)


def _without_end(steps) -> Dict[str, Any]:
  """Returns steps of which none is terminal, so that learners bootstrap."""
  is_terminal = outcomes.flag(steps, rlds.IS_TERMINAL)
  steps = _set(steps, rlds.IS_TERMINAL, is_terminal, 0)
  if rlds.DISCOUNT not in steps:
    return steps
  leads_there = tf.concat([is_terminal[1:], is_terminal[:1] & False], 0)
  return _set(steps, rlds.DISCOUNT, is_terminal | leads_there, 1)


def _set(steps, field, rows, value) -> Dict[str, Any]:
  """Sets a field of one number a step in some rows, bool `[T]`."""
  column = steps[field]
  rows = tf.reshape(rows, tf.shape(column))
  value = tf.cast(value, column.dtype)
  return {**steps, field: tf.where(rows, value, column)}
