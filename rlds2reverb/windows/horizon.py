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

  def cut(episode):
    steps = _checked(episode[rlds.STEPS], no_done_at_end)
    if horizon is not None:
      is_whole = gathering.num_rows(steps) <= horizon + 1
      steps = _end(_cut(steps, 0, horizon), is_whole)
    return {**episode, rlds.STEPS: steps}

  def split(episode):
    steps = _checked(episode[rlds.STEPS], no_done_at_end)
    length = gathering.num_rows(steps)
    # An episode of one step has no transitions, and stays an episode.
    count = tf.maximum((length - 1 + horizon - 1) // horizon, 1)
    count = tf.where(length > 0, count, 0)

    def part(index):
      rows = _cut(steps, index * horizon, horizon)
      rows[rlds.IS_FIRST] = _set(rows[rlds.IS_FIRST], 0, True)
      return {**episode, rlds.STEPS: _end(rows, index == count - 1)}

    return tf.data.Dataset.range(count).map(part)

  if soft and horizon is not None:
    return rlds_data.flat_map(split)
  return rlds_data.map(cut)


def _checked(steps, no_done_at_end) -> Dict[str, Any]:
  """Returns an episode's steps stacked, none terminal with `no_done_at_end`."""
  steps = transitions.stack_dict(steps)
  for flag in (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL):
    paths.get(steps, flag)
    outcomes.flag(steps, flag)  # or it is no flag
  if not no_done_at_end:
    return steps
  is_terminal = outcomes.flag(steps, rlds.IS_TERMINAL)
  steps[rlds.IS_TERMINAL] = tf.zeros_like(steps[rlds.IS_TERMINAL])
  if rlds.DISCOUNT in steps:
    leads_there = tf.concat(
        [is_terminal[1:], tf.zeros_like(is_terminal[:1])], 0
    )
    bootstraps = tf.reshape(
        is_terminal | leads_there, tf.shape(steps[rlds.DISCOUNT])
    )
    steps[rlds.DISCOUNT] = tf.where(
        bootstraps, tf.ones_like(steps[rlds.DISCOUNT]), steps[rlds.DISCOUNT]
    )
  return steps


def _cut(steps, start, horizon) -> Dict[str, Any]:
  """Returns at most `horizon + 1` steps, from `start` on."""
  length = gathering.num_rows(steps)
  start = tf.cast(start, length.dtype)
  stop = tf.minimum(start + horizon + 1, length)
  return stacked_steps.own_rows(steps, start, stop)


def _end(steps, is_end) -> Dict[str, Any]:
  """Sets the flags of the last step; an episode that was cut is truncated."""
  is_last, is_terminal = steps[rlds.IS_LAST], steps[rlds.IS_TERMINAL]
  return {
      **steps,
      rlds.IS_LAST: tf.where(is_end, is_last, _set(is_last, -1, True)),
      rlds.IS_TERMINAL: tf.where(
          is_end, is_terminal, tf.zeros_like(is_terminal)
      ),
  }


def _set(column, row, value):
  """Returns `column` with its first (0) or its last (-1) row set."""
  new = tf.cast(tf.fill(tf.shape(column[:1]), value), column.dtype)
  if row == 0:
    return tf.concat([new, column[1:]], 0)
  return tf.concat([column[:-1], new], 0)
