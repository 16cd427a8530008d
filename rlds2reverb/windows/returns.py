"""n-step transitions, reward-to-go, advantages (GAE) and TD(lambda) returns.

The notation is rlax's. `r_t` is the reward of the transition from step `t` to
`t + 1`, `d_t` its discount, `g` is gamma, and `v_t` the value of the
observation of step `t`. As in TF-Agents, `d_t` is 0 if the transition ends in a
terminal step. So a target is always `reward + discount * value(next)`: it
bootstraps at the end of a truncated episode, and not of a terminated one.
"""

import functools
from typing import Any, TypeAlias

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import transitions

STEPS = 'steps'
GAMMA = 'gamma'
REWARD_TO_GO = 'reward_to_go'
TD_LAMBDA_RETURN = 'td_lambda_return'
ADVANTAGE = 'advantage'

# A number in [0, 1], or a scalar tensor.
_Fraction: TypeAlias = float | tf.Tensor


def n_step_transitions(
    episode: Any,
    n_step: int,
    gamma: _Fraction = 1.0,
    *,
    names: transitions.Names = None,
) -> transitions.NStepRows:
  """Computes the n-step transitions of one episode.

      R_t = r_t + g d_t r_{t+1} + ... + g^{k-1} d_t ... d_{t+k-2} r_{t+k-1}
      D_t = g^k d_t d_{t+1} ... d_{t+k-1}

  with `k = min(n, T - t)`: they never leave the episode. Rewards 1 to 5, then
  terminal; n=3 and gamma=.5:

      reward              1     2     3     4    5
      n-step reward       2.75  4.5   6.25  6.5  5
      n-step discount     .125  .125  0     0    0
      next_observation    o3    o4    o5    o5   o5
      steps               3     3     3     2    1

  Inside an episode these are the transitions of
  `tf_agents.trajectories.trajectory.to_n_step_transition`, whose discount has
  one factor of gamma less.

  Args:
    episode: the `TransitionRows` of one episode, or its steps, a nested data
      set or stacked `[T + 1, ...]` tensors, with reward, discount and
      is_terminal. The reward is a nest of numbers or vectors.
    n_step: the maximum number of transitions to combine.
    gamma: the discount factor, a number or a tensor `[]`, by which the
      discounts of the rows are multiplied.
    names: other names for the columns that are added, for example
      `{'steps': 'n_steps'}`.

  Returns:
    The rows, with `reward`, `discount`, `next_observation`, `is_last` and
    `is_terminal` of the n-step transition, and with two more columns: `steps`,
    int32 `[T]`, the number of combined transitions, and `gamma`, float32 `[T]`,
    gamma to the power of `steps`. The discount, float32 `[T]`, has every factor
    of gamma. A floating-point reward keeps its dtype; others become float32.

  Raises:
    ValueError: if `n_step` is not positive, gamma is not in [0, 1], a column is
      missing, the reward is not numeric, `episode` is neither steps nor rows of
      single steps, or a column to be added exists.
    InvalidArgumentError: if a tensor gamma turns out at run time not to be in
      [0, 1]; or if fields or columns differ in length.
  """
  checks.check_positive('n_step', n_step)
  gamma = tf.cast(_check_fraction('gamma', gamma), tf.float32)
  columns = dict(_rows_with_rewards(episode).columns)
  length = rows_lib.num_rows(columns)
  take = functools.partial(
      windows_lib.take_windows,
      starts=tf.range(length),
      length=n_step,
      stop=length,
  )
  # Rows after the episode have a reward of 0, and a discount of 1.
  rewards, mask = take(_to_floats(columns[rlds.REWARD]))
  discounts, _ = take(gamma * columns[rlds.DISCOUNT], fill=1)
  weights = tf.math.cumprod(discounts, axis=1, exclusive=True)
  count = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
  last = tf.range(length) + tf.cast(count, tf.int64) - 1
  columns[rlds.REWARD] = tf.nest.map_structure(
      lambda leaf: tf.reduce_sum(leaf * _cast_like(weights, leaf), axis=1),
      rewards,
  )
  columns[rlds.DISCOUNT] = tf.reduce_prod(discounts, axis=1)
  for name in (transitions.NEXT_OBSERVATION, rlds.IS_LAST, rlds.IS_TERMINAL):
    if name in columns:
      columns[name] = rows_lib.take(columns[name], last)
  new_columns = {STEPS: count, GAMMA: tf.pow(gamma, tf.cast(count, tf.float32))}
  return transitions.NStepRows(
      transitions.add_columns(columns, new_columns, names)
  )


def reward_to_go(
    episode: Any, gamma: _Fraction = 1.0, *, names: transitions.Names = None
) -> transitions.TransitionRows:
  """Adds the discounted sum of the rewards from each transition onward.

      G_t = r_t + g d_t G_{t+1},  G_T = 0

  Rewards 1 to 5 and gamma=.5 give 3.5625, 5.125, 6.25, 6.5, 5, for terminated
  and truncated episodes.

  Args:
    episode: the `TransitionRows` of one episode, or its steps, a nested data
      set or stacked `[T + 1, ...]` tensors, with reward, discount and
      is_terminal.
    gamma: the discount factor, a number or a tensor `[]`, by which the
      discounts of the rows are multiplied.
    names: another name for the column that is added, such as
      `{'reward_to_go': 'return'}`.

  Returns:
    The rows, with the column `reward_to_go`: the nest of the reward,
    `[T, ...]`. Floats keep their dtype; other rewards become float32.

  Raises:
    ValueError: if gamma is not in [0, 1], a column is missing, `episode` is
      neither steps nor rows of single steps, or a column `reward_to_go` exists.
    InvalidArgumentError: see `n_step_transitions`.
  """
  gamma = tf.cast(_check_fraction('gamma', gamma), tf.float32)
  rows = _rows_with_rewards(episode)
  discount = gamma * rows.columns[rlds.DISCOUNT]
  returns = tf.nest.map_structure(
      lambda leaf: _sum_backwards(leaf, _cast_like(discount, leaf)),
      _to_floats(rows.columns[rlds.REWARD]),
  )
  columns = {REWARD_TO_GO: returns}
  return rows._replace(
      columns=transitions.add_columns(rows.columns, columns, names)
  )


def advantages(
    episode: Any,
    values: tf.Tensor,
    gamma: _Fraction = 1.0,
    lambda_: _Fraction = 0.95,
    *,
    names: transitions.Names = None,
) -> transitions.TransitionRows:
  """Adds the advantage (GAE) and the TD(lambda) return of each transition.

      delta_t = r_t + g d_t v_{t+1} - v_t
      A_t = delta_t + g lambda d_t A_{t+1},  A_T = 0
      G_t = r_t + g d_t ((1 - lambda) v_{t+1} + lambda G_{t+1}),  G_T = v_T

  Schulman et al., High-Dimensional Continuous Control Using Generalized
  Advantage Estimation (2016), and Sutton and Barto, Reinforcement Learning
  (2018), section 12.1. `A_t` is always `G_t - v_t`. If the episode was
  truncated, both bootstrap from `v_T`; if it terminated, `d` is 0. With
  lambda=0 they are the TD error and the one-step target; with lambda=1, the
  return is the reward-to-go plus the bootstrapped last value.

  Args:
    episode: the `TransitionRows` of one episode, or its steps, a nested data
      set or stacked `[T + 1, ...]` tensors, with reward, discount and
      is_terminal. The reward is one number.
    values: float `[T + 1]`: the value of each step's observation, including the
      last step.
    gamma: the discount factor, a number or a tensor `[]`, by which the
      discounts of the rows are multiplied.
    lambda_: how far the estimate looks ahead, like gamma.
    names: other names for the columns that are added, such as
      `{'advantage': 'gae'}`.

  Returns:
    The rows, with the columns `advantage` and `td_lambda_return`, `[T]`, of the
    dtype of the reward, or float32 if it is not floating-point.

  Raises:
    ValueError: if gamma or `lambda_` is not in [0, 1], a column is missing,
      `values` has not one dimension, `episode` is neither steps nor rows of
      single steps, or a column to be added exists.
    InvalidArgumentError: if there is not one value a step; and see
      `n_step_transitions`.
  """
  gamma = tf.cast(_check_fraction('gamma', gamma), tf.float32)
  lambda_ = _check_fraction('lambda_', lambda_)
  rows = _rows_with_rewards(episode)
  rewards = _to_floats(rows.columns[rlds.REWARD])
  if not isinstance(rewards, tf.Tensor) or rewards.shape.rank != 1:
    raise ValueError(
        'advantages needs a reward of one number a step, but it is'
        f' {tf.nest.map_structure(lambda leaf: leaf.shape, rewards)}.'
    )
  values = tf.convert_to_tensor(values)
  if values.shape.rank != 1:
    raise ValueError(
        'values must have one dimension, [T + 1], but have the shape'
        f' {values.shape}.'
    )
  num_values = rows_lib.num_rows(values)
  values = errors.assert_true(
      tf.cast(values, rewards.dtype),
      num_values == rows_lib.num_rows(rewards) + 1,
      'advantages needs one value a step, the last step included. It has',
      num_values,
  )
  num_steps = tf.size(values)
  next_values = rows_lib.copy_rows(values, 1, num_steps)
  current_values = rows_lib.copy_rows(values, 0, num_steps - 1)
  discounts = tf.cast(gamma * rows.columns[rlds.DISCOUNT], rewards.dtype)
  mix = tf.where(
      batch_lib.last_step_mask(tf.size(rewards)),
      tf.zeros([], rewards.dtype),
      tf.cast(lambda_, rewards.dtype),
  )
  columns = {
      ADVANTAGE: _sum_backwards(
          rewards + discounts * next_values - current_values, discounts * mix
      ),
      TD_LAMBDA_RETURN: _sum_backwards(
          rewards + discounts * (1 - mix) * next_values, discounts * mix
      ),
  }
  return rows._replace(
      columns=transitions.add_columns(rows.columns, columns, names)
  )


def _sum_backwards(terms, factors):
  """Returns `x[t] = terms[t] + factors[t] * x[t + 1]`, with 0 after the end.

  A parallel scan in log2(T) rounds. Each doubles the number of rows that every
  sum covers, by adding the sum that starts after it.
  """
  length = tf.shape(terms)[0]

  def double(span, total, factor):
    def shift(column):
      count = tf.minimum(span, length)
      return tf.concat([column[count:], tf.zeros_like(column[:count])], 0)

    return (
        span * 2,
        tf.ensure_shape(total + factor * shift(total), terms.shape),
        tf.ensure_shape(factor * shift(factor), factors.shape),
    )

  return tf.while_loop(
      lambda span, *_: span < length,
      double,
      (tf.constant(1), terms, factors),
  )[1]


def _rows_with_rewards(episode) -> transitions.TransitionRows:
  """Returns one-step rows after checking the columns of returns."""
  rows = transitions.as_one_step_rows(episode)
  for field in (rlds.REWARD, rlds.DISCOUNT, rlds.IS_TERMINAL):
    paths.get(rows.columns, field)
  steps_lib.check_numeric(rlds.REWARD, rows.columns[rlds.REWARD])
  return rows


def _to_floats(nest):
  return tf.nest.map_structure(
      lambda leaf: leaf
      if leaf.dtype.is_floating
      else tf.cast(leaf, tf.float32),
      nest,
  )


def _cast_like(column, leaf):
  """Casts `column`, and appends dimensions of 1 up to the rank of `leaf`."""
  return rows_lib.expand_to_rank(tf.cast(column, leaf.dtype), leaf)


def _check_fraction(name: str, value: _Fraction) -> tf.Tensor:
  """Returns a number in [0, 1] as a tensor `[]`, a Python float as float64."""
  try:
    number = tf.convert_to_tensor(value, dtype_hint=tf.float64)
  except (TypeError, ValueError):
    number = None
  if (
      number is None
      or number.shape.rank != 0
      or not (number.dtype.is_floating or number.dtype.is_integer)
  ):
    raise ValueError(f'{name} must be one number in [0, 1], but is {value!r}.')
  problem = f'{name} must lie in [0, 1], but is'
  static = tf.get_static_value(number)
  if static is not None:
    if not 0 <= static <= 1:
      raise ValueError(f'{problem} {static}.')
    return number
  is_fraction = (number >= 0) & (number <= 1)
  return errors.assert_true(number, is_fraction, problem, number)
