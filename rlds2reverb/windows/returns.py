"""n-step returns, reward-to-go and TD(lambda) on one episode.

The convention is TF-Agents': with `r[t]`, `d[t]` the reward and discount of the
transition from step `t` to `t + 1`, and `d[t] = 0` where that ends in a
terminal step,

    n-step reward      r[t] + g d[t] r[t+1] + g^2 d[t] d[t+1] r[t+2] + ...
    n-step discount    g^k d[t] d[t+1] ... d[t+k-1]

over the `k` transitions that are left, `n` at most. So a target is always
`reward + discount * value(next_observation)`: it bootstraps through an episode
that was truncated, and not through one that terminated.
"""

from typing import Any, Dict, NamedTuple, Union

import rlds
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.windows import transitions


class NStepTransitions(NamedTuple):
  """The n-step transitions of an episode, a row a step that was left.

  Attributes:
    observation: a nest of `[T, ...]`.
    action: a nest of `[T, ...]`.
    reward: `[T, ...]`: the n-step reward.
    discount: float32 `[T]`: the n-step discount, with every factor of gamma; 0
      where the window holds a terminal step.
    next_observation: a nest of `[T, ...]`: that of the step reached.
    steps: int32 `[T]`: how many transitions were taken together.
    gamma: float32 `[T]`: gamma to the power of `steps`.
  """

  observation: Any
  action: Any
  reward: Any
  discount: tf.Tensor
  next_observation: Any
  steps: tf.Tensor
  gamma: tf.Tensor


# A number in [0, 1], or a tensor of one.
_Fraction = Union[float, tf.Tensor]


def n_step_transitions(
    steps: Any, n_step: int, gamma: _Fraction = 1.0
) -> NStepTransitions:
  """Returns the n-step transitions of one episode, which never leave it.

  Rewards 1 to 5, then terminal; n=3 and gamma=.5:

      reward              1     2     3     4    5
      n-step reward       2.75  4.5   6.25  6.5  5
      n-step discount     .125  .125  0     0    0
      next_observation    o3    o4    o5    o5   o5
      steps               3     3     3     2    1

  Inside an episode these are the transitions of
  `tf_agents.trajectories.trajectory.to_n_step_transition`, whose discount
  leaves out one factor of gamma.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors, with reward, discount, is_terminal, observation and action. The
      reward is a nest of numbers or vectors.
    n_step: the most transitions that are taken together.
    gamma: the discount factor, beside the steps' own: a number, or a tensor
      `[]`.

  Returns:
    The `NStepTransitions`. A reward of floats keeps its dtype; another becomes
    float32.

  Raises:
    ValueError: if `n_step` is not positive, gamma is not in [0, 1], a field is
      missing, or the reward is not of numbers.
    InvalidArgumentError: if gamma is a tensor that is known only while it runs,
      and not in [0, 1].
  """
  checks.check_positive('n_step', n_step)
  gamma = tf.cast(_checked_unit('gamma', gamma), tf.float32)
  rows = _checked_rows(steps, rlds.OBSERVATION, rlds.ACTION)
  length = gathering.num_rows(rows)
  index = gathering.window_index(tf.range(length), n_step)
  inside = gathering.is_inside(index, length)
  # What lies outside has a reward of 0, and leaves the product as it is.
  discounts = gathering.take_filled(
      gamma * rows[rlds.DISCOUNT], index, length, before=1, after=1
  )
  weights = tf.math.cumprod(discounts, axis=1, exclusive=True)
  rewards = gathering.take_filled(_floats(rows[rlds.REWARD]), index, length)
  count = tf.reduce_sum(tf.cast(inside, tf.int32), axis=1)
  last = tf.range(length) + tf.cast(count, tf.int64) - 1
  return NStepTransitions(
      observation=rows[rlds.OBSERVATION],
      action=rows[rlds.ACTION],
      reward=tf.nest.map_structure(
          lambda leaf: tf.reduce_sum(
              leaf * _like(weights, leaf), axis=1
          ),
          rewards,
      ),
      discount=tf.reduce_prod(discounts, axis=1),
      next_observation=gathering.take(rows[transitions.NEXT_OBSERVATION], last),
      steps=count,
      gamma=tf.pow(gamma, tf.cast(count, tf.float32)),
  )


def reward_to_go(steps: Any, gamma: _Fraction = 1.0) -> Any:
  """Returns the discounted sum of the rewards from each transition on.

  Rewards 1 to 5 and gamma=.5 give 3.5625, 5.125, 6.25, 6.5, 5, whether the
  episode was terminated or truncated.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors, with reward, discount and is_terminal.
    gamma: the discount factor, beside the steps' own: a number, or a tensor
      `[]`.

  Returns:
    The nest of the reward, `[T, ...]`. Floats keep their dtype; other rewards
    become float32.

  Raises:
    ValueError: if gamma is not in [0, 1], or a field is missing.
    InvalidArgumentError: see `n_step_transitions`.
  """
  gamma = tf.cast(_checked_unit('gamma', gamma), tf.float32)
  rows = _checked_rows(steps)
  return tf.nest.map_structure(
      lambda leaf: _sum_backwards(
          leaf, _like(gamma * rows[rlds.DISCOUNT], leaf)
      ),
      _floats(rows[rlds.REWARD]),
  )


def td_lambda_returns(
    steps: Any,
    values: tf.Tensor,
    gamma: _Fraction = 1.0,
    lambda_: _Fraction = 0.95,
) -> tf.Tensor:
  """Returns the TD(lambda) return of each transition.

      G[t] = r[t] + g d[t] ((1 - lambda) V[t+1] + lambda G[t+1]),  G[T] = V[T]

  Sutton and Barto, Reinforcement Learning (2018), section 12.1. With lambda=0
  it is the one-step target; with lambda=1, the reward-to-go and what is
  bootstrapped from the last value.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors, with reward, discount and is_terminal. The reward is one number.
    values: float `[T + 1]`: the value of each step's observation.
    gamma: the discount factor, beside the steps' own: a number, or a tensor
      `[]`.
    lambda_: how much of the longer returns is mixed in, as gamma.

  Returns:
    `[T]`, of the dtype of the reward, or float32 where that is no float.

  Raises:
    ValueError: if gamma or lambda_ is not in [0, 1], a field is missing, or
      `values` has not one dimension.
    InvalidArgumentError: if there is not one value a step; and see
      `n_step_transitions`.
  """
  gamma = tf.cast(_checked_unit('gamma', gamma), tf.float32)
  lambda_ = _checked_unit('lambda_', lambda_)
  rows = _checked_rows(steps)
  rewards = _floats(rows[rlds.REWARD])
  if not isinstance(rewards, tf.Tensor) or rewards.shape.rank != 1:
    raise ValueError(
        'td_lambda_returns needs a reward of one number a step, but it is'
        f' {tf.nest.map_structure(lambda leaf: leaf.shape, rewards)}.'
    )
  values = tf.convert_to_tensor(values)
  if values.shape.rank != 1:
    raise ValueError(
        'values must have one dimension, [T + 1], but have the shape'
        f' {values.shape}.'
    )
  tf.debugging.assert_equal(
      gathering.num_rows(values),
      gathering.num_rows(rewards) + 1,
      'td_lambda_returns needs one value a step, the last step included.',
  )
  values = tf.cast(values[1:], rewards.dtype)
  discounts = tf.cast(gamma * rows[rlds.DISCOUNT], rewards.dtype)
  # The last transition has nothing to mix in.
  mix = tf.fill(tf.shape(rewards), tf.cast(lambda_, rewards.dtype))
  mix = tf.concat([mix[:-1], tf.zeros_like(mix[-1:])], 0)
  return _sum_backwards(
      rewards + discounts * (1 - mix) * values, discounts * mix
  )


def _sum_backwards(terms, factors):
  """Returns `x[t] = terms[t] + factors[t] * x[t + 1]`, with 0 behind the end.

  By doubling: what a row has summed up over some rows it joins to what the row
  behind these has. So there are log2(T) operations on whole columns.
  """
  length = tf.shape(terms)[0]

  def double(span, total, factor):
    def ahead(column):
      count = tf.minimum(span, length)
      return tf.concat([column[count:], tf.zeros_like(column[:count])], 0)

    return (
        span * 2,
        tf.ensure_shape(total + factor * ahead(total), terms.shape),
        tf.ensure_shape(factor * ahead(factor), factors.shape),
    )

  return tf.while_loop(
      lambda span, *_: span < length,
      double,
      (tf.constant(1), terms, factors),
  )[1]


def _checked_rows(steps, *fields) -> Dict[str, Any]:
  steps = transitions.stack_dict(steps)
  fields = (rlds.REWARD, rlds.DISCOUNT, rlds.IS_TERMINAL, *fields)
  rows = transitions.transition_rows(
      {field: paths.get(steps, field) for field in fields}
  )
  steps_lib.check_numeric(rlds.REWARD, rows[rlds.REWARD])
  return rows


def _floats(nest):
  return tf.nest.map_structure(
      lambda leaf: leaf
      if leaf.dtype.is_floating
      else tf.cast(leaf, tf.float32),
      nest,
  )


def _like(column, leaf):
  """Casts `column`, and gives it dimensions of 1 up to the rank of `leaf`."""
  shape = tf.concat(
      [
          tf.shape(column),
          tf.ones([leaf.shape.rank - column.shape.rank], tf.int32),
      ],
      0,
  )
  return tf.reshape(tf.cast(column, leaf.dtype), shape)


def _checked_unit(name: str, value: _Fraction) -> tf.Tensor:
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
  known = tf.get_static_value(number)
  if known is not None:
    if not 0 <= known <= 1:
      raise ValueError(f'{problem} {known}.')
    return number
  with tf.control_dependencies([
      tf.debugging.Assert((0 <= number) & (number <= 1), [problem, number])
  ]):
    return tf.identity(number)
