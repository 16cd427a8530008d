"""Episodes cut at a horizon, after RLlib."""

from typing import Any, Dict, Optional

import rlds
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.trajectories import windows


def apply_horizon(
    steps: Any, horizon: Optional[int], *, no_done_at_end: bool = False
) -> Dict[str, Any]:
  """Cuts one episode after `horizon` transitions.

  An episode of 5 transitions that terminates:

      steps            0  1  2  3  4  5    is_last at 5, is_terminal at 5
      horizon=3        0  1  2  3          is_last at 3
      horizon=5        0  1  2  3  4  5    is_last at 5, is_terminal at 5

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors.
    horizon: the most transitions, `H`. None cuts nothing.
    no_done_at_end: whether `is_terminal` is False everywhere, so that learners
      bootstrap at the end of every episode. `is_last` stays.

  Returns:
    The steps, stacked, at most `H + 1`. An episode that was cut is truncated:
    its last step `is_last` and not `is_terminal`. Dtypes are kept.

  Raises:
    ValueError: if `horizon` is not positive, or a flag is missing.
  """
  if horizon is not None:
    checks.check_positive('horizon', horizon)
  steps = _checked(steps)
  if horizon is None:
    return _mark(steps, ends_episode=True, no_done_at_end=no_done_at_end)
  is_whole = windows.num_rows(steps) <= horizon + 1
  kept = tf.nest.map_structure(lambda leaf: leaf[: horizon + 1], steps)
  return _mark(kept, ends_episode=is_whole, no_done_at_end=no_done_at_end)


def split_at_horizon(
    rlds_data: tf.data.Dataset, horizon: int, *, no_done_at_end: bool = False
) -> tf.data.Dataset:
  """Cuts every episode into pseudo-episodes of `horizon` transitions.

  RLlib's soft horizon. They share the observation where they meet, and none but
  the last can be terminal. An episode of 5 transitions, horizon=2:

      steps                0  1  2  3  4  5
      pseudo-episodes      0  1  2
                                 2  3  4
                                       4  5    terminal, if the episode is

  Args:
    rlds_data: an RLDS data set.
    horizon: the most transitions of a pseudo-episode.
    no_done_at_end: whether `is_terminal` is False everywhere.

  Returns:
    An RLDS data set, the steps stacked, with `is_first` on the first step of
    each pseudo-episode and `is_last` on its last. What else an episode has,
    each pseudo-episode has.

  Raises:
    ValueError: if `horizon` is not positive, or a flag is missing.
  """
  checks.check_positive('horizon', horizon)

  def split(episode):
    steps = _checked(episode[rlds.STEPS])
    length = windows.num_rows(steps)
    # An episode of one step is one of no transitions.
    count = tf.maximum((length - 1 + horizon - 1) // horizon, 1)
    count = tf.where(length > 0, count, 0)

    def cut(index):
      start = index * horizon
      rows = tf.nest.map_structure(
          lambda leaf: leaf[start : start + horizon + 1], steps
      )
      rows[rlds.IS_FIRST] = _set(rows[rlds.IS_FIRST], 0, True)
      rows = _mark(
          rows, ends_episode=index == count - 1, no_done_at_end=no_done_at_end
      )
      return {**episode, rlds.STEPS: rows}

    return tf.data.Dataset.range(count).map(cut)

  return rlds_data.flat_map(split)


def _checked(steps) -> Dict[str, Any]:
  steps = windows.stack_dict(steps)
  for flag in (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL):
    paths.get(steps, flag)
  return steps


def _mark(steps, *, ends_episode, no_done_at_end) -> Dict[str, Any]:
  """Sets the flags of steps that may have been cut off behind."""
  terminal = steps[rlds.IS_TERMINAL]
  not_terminal = tf.zeros_like(terminal)
  if not no_done_at_end:
    not_terminal = tf.where(ends_episode, terminal, not_terminal)
  is_last = steps[rlds.IS_LAST]
  return {
      **steps,
      rlds.IS_TERMINAL: not_terminal,
      rlds.IS_LAST: tf.where(
          ends_episode, is_last, _set(is_last, -1, True)
      ),
  }


def _set(column, row, value):
  """Returns `column` with its first (0) or its last (-1) row set."""
  new = tf.cast(tf.fill(tf.shape(column[:1]), value), column.dtype)
  if row == 0:
    return tf.concat([new, column[1:]], 0)
  return tf.concat([column[:-1], new], 0)
