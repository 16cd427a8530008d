"""Computing the statistics of a data set in one pass, in the graph.

All numbers of a step become one row of float64. A number that has no meaning,
such as the action of an episode's last step, is NaN in it. Blocks of rows, of
many episodes, are then reduced to the moments of each column and to a uniform
sample of the rows, which gives the quantiles. The moments of two blocks are
merged as Chan, Golub and LeVeque (1979) do. The memory that this takes does not
grow with the data.
"""

import dataclasses
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import rlds
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import reservoir

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
# The fields that have no meaning in the last step of an episode.
_OF_TRANSITIONS = (rlds.ACTION, rlds.REWARD, rlds.DISCOUNT)
_MAX_LEAF_SIZE = 1024
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_LENGTH = 4096
_SAMPLE_BYTES = 64 << 20
_NUM_OUTCOMES = 3  # the columns that hold an `Outcome`


@dataclasses.dataclass(frozen=True, eq=False)
class FieldStatistics(identity.ByValue):
  """Statistics of each number of a field.

  They are taken over all steps in which the field has a meaning. NaN and
  infinities are left out; only `not_finite` counts them. Where no numbers are
  left, the statistics are NaN.

  All arrays are float64 of the shape of the field in one step, except for the
  two that count, which are int64.

  Attributes:
    dtype: the name of the field's dtype in the data.
    mean: the mean.
    std: the standard deviation of the population, `sqrt(mean((x - mean)**2))`.
    min: the least number.
    max: the greatest number.
    quantiles: a mapping from each quantile that was asked for, in [0, 1], to
      its numbers.
    count: how many finite numbers there were.
    not_finite: how many more numbers were NaN or infinite.
  """

  dtype: str
  mean: np.ndarray
  std: np.ndarray
  min: np.ndarray
  max: np.ndarray
  quantiles: Dict[float, np.ndarray]
  count: np.ndarray
  not_finite: np.ndarray

  @property
  def is_floating(self) -> bool:
    return tf.as_dtype(self.dtype).is_floating

  def quantile(self, quantile: float) -> np.ndarray:
    """Returns the numbers of a quantile.

    Args:
      quantile: a quantile that was computed; or 0, which is the minimum, or 1,
        which is the maximum.

    Raises:
      ValueError: if the quantile was not computed.
    """
    known = {0.0: self.min, 1.0: self.max, **self.quantiles}
    if quantile not in known:
      raise ValueError(
          f'The quantile {quantile} was not computed, only {sorted(known)}.'
          ' Pass it to compute_statistics.'
      )
    return known[quantile]


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics(identity.ByValue):
  """Statistics of a data set.

  Attributes:
    num_episodes: the number of episodes that have at least one step.
    num_steps: the number of steps of these episodes.
    num_transitions: the number of steps that are not the last of an episode.
    num_terminal: the number of episodes that end in a terminal step.
    num_truncated: the number of all other episodes.
    returns: the statistics of the undiscounted returns. The return of an
      episode is the sum of the rewards of all its steps but the last.
    lengths: the statistics of the numbers of transitions of an episode.
    fields: a mapping from the path of each field to its statistics.
  """

  num_episodes: int
  num_steps: int
  num_transitions: int
  num_terminal: int
  num_truncated: int
  returns: FieldStatistics
  lengths: FieldStatistics
  fields: Dict[str, FieldStatistics]


def compute_statistics(
    rlds_data: tf.data.Dataset,
    fields: Optional[Sequence[paths.Path]] = None,
    *,
    quantiles: Sequence[float] = QUANTILES,
    sample_size: int = 10_000,
    seed: int = 0,
) -> Statistics:
  """Computes the statistics of a data set, reading it once.

  The mean and the standard deviation are accumulated in float64, whatever the
  dtype of the field. The quantiles are those of a uniform sample of the steps
  or, for returns and lengths, of the episodes. They are exact where the sample
  holds all of them. Otherwise the number that is returned for the quantile `q`
  is the quantile of a rank near `q` in the data, with a standard error of
  `sqrt(q * (1 - q) / sample_size)`: with 10,000 steps that is 0.005 for
  `q = 0.5`, and 0.001 for `q = 0.01`.

  Fields of strings are left out, so no image is decoded.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps. It must be
      finite. The numbers of one episode must fit in memory.
    fields: the paths of the fields. A path may lead to several leaves. By
      default all fields are taken except for the flags, strings, and leaves
      that have more than 1024 numbers or a shape that is not known.
    quantiles: the quantiles to compute, in [0, 1].
    sample_size: the number of steps, and of episodes, of the sample for the
      quantiles. It is reduced where the sample would take more than 64 MiB.
    seed: the seed of the sample, an int.

  Returns:
    The `Statistics`.

  Raises:
    ValueError: if `rlds_data` has no RLDS steps or no such field, if one of
      `fields` is not of numbers or its shape is not known, if the reward is not
      one number for every step, or if an argument is out of its range.
  """
  if fields is not None:
    paths.check_list('fields', fields)
  if sample_size < 1 or not all(0 <= q <= 1 for q in quantiles):
    raise ValueError(
        'sample_size must be positive and quantiles in [0, 1], but they are'
        f' {sample_size} and {quantiles}.'
    )
  spec = steps_lib.steps_spec(rlds_data)
  leaves = _choose_leaves(spec.step, fields)
  used = {keys[0] for keys, _ in leaves} | {rlds.REWARD, *_FLAGS}

  def to_rows(episode):
    steps = episode[rlds.STEPS]
    if not spec.stacked:
      steps = steps.map(lambda step: {field: step[field] for field in used})
    return _rows(steps_lib.stack_steps(steps), leaves)

  rows = rlds_data.map(to_rows, num_parallel_calls=tf.data.AUTOTUNE)
  width = rows.element_spec.shape[1]
  blocks = rows.rebatch(
      min(max(_BLOCK_BYTES // (8 * width), 1), _MAX_BLOCK_LENGTH)
  )
  sample_size = max(min(sample_size, _SAMPLE_BYTES // (8 * width)), 1)
  # The moments of a block need no other block, so several are made in parallel.
  blocks = blocks.map(
      lambda block: (_block_moments(block), block),
      num_parallel_calls=tf.data.AUTOTUNE,
  )
  moments, steps_sample, outcomes_sample = blocks.reduce(
      (
          _no_moments(width),
          reservoir.empty(sample_size, width),
          reservoir.empty(sample_size, _NUM_OUTCOMES),
      ),
      lambda state, block: _add_block(state, *block, seed),
  )
  moments = _Moments(*(leaf.numpy() for leaf in moments))
  columns = _columns(moments, steps_sample, outcomes_sample, quantiles)
  return _to_statistics(columns, leaves, moments)


def _choose_leaves(step_spec, fields) -> List[Tuple[paths.Keys, tf.TensorSpec]]:
  """Returns the keys and specs of the leaves that have statistics."""
  named = paths.leaves(step_spec)
  keys = {name: paths.find(step_spec, name) for name in named}
  if fields is None:
    return [
        (keys[name], spec)
        for name, spec in named.items()
        if keys[name][0] not in _FLAGS
        and _is_numbers(spec)
        and spec.shape.num_elements() <= _MAX_LEAF_SIZE
    ]
  chosen = {}
  for path in fields:
    above = paths.find(step_spec, path)
    for name, spec in named.items():
      if keys[name][: len(above)] != above:
        continue
      if not _is_numbers(spec):
        raise ValueError(
            f'{name} must have numbers of a known shape, but its spec is'
            f' {spec}. Name the fields one by one.'
        )
      chosen[keys[name]] = spec
  return list(chosen.items())


def _is_numbers(spec) -> bool:
  return (
      isinstance(spec, tf.TensorSpec)
      and spec.dtype != tf.string
      and spec.shape.is_fully_defined()
  )


def _rows(steps, leaves) -> tf.Tensor:
  """Returns the numbers of stacked steps, float64 `[T, D]`.

  The last columns hold the outcome of the episode in the row of its last step,
  and NaN in all other rows.
  """
  is_last = outcomes.flag(steps, rlds.IS_LAST)[:, None]
  length = tf.size(is_last)
  columns = []
  for keys, spec in leaves:
    leaf = tf.cast(paths.get(steps, keys), tf.float64)
    leaf = tf.reshape(leaf, [length, spec.shape.num_elements()])
    if keys[0] in _OF_TRANSITIONS:
      leaf = tf.where(~is_last, leaf, np.nan)
    columns.append(leaf)
  is_end = (tf.range(length) == length - 1)[:, None]
  for value in outcomes.outcome(steps):
    columns.append(tf.where(is_end, tf.cast(value, tf.float64), np.nan))
  return tf.concat(columns, axis=1)


class _Moments(NamedTuple):
  """The moments of the finite numbers of each column.

  Attributes:
    count: float64 `[D]`: how many there are.
    mean: float64 `[D]`: their mean.
    squares: float64 `[D]`: the sum of their squared differences from the mean.
    min: float64 `[D]`: the least of them.
    max: float64 `[D]`: the greatest of them.
    rows: int64 `[]`: the number of all rows.
  """

  count: tf.Tensor
  mean: tf.Tensor
  squares: tf.Tensor
  min: tf.Tensor
  max: tf.Tensor
  rows: tf.Tensor


def _no_moments(width) -> _Moments:
  zeros = tf.zeros([width], tf.float64)
  return _Moments(
      zeros, zeros, zeros, zeros + np.inf, zeros - np.inf,
      tf.constant(0, tf.int64),
  )


def _merge(one: _Moments, other: _Moments) -> _Moments:
  count = one.count + other.count
  share = tf.math.divide_no_nan(other.count, count)
  delta = other.mean - one.mean
  return _Moments(
      count,
      one.mean + delta * share,
      one.squares + other.squares + delta**2 * one.count * share,
      tf.minimum(one.min, other.min),
      tf.maximum(one.max, other.max),
      one.rows + other.rows,
  )


def _block_moments(block) -> _Moments:
  is_finite = tf.math.is_finite(block)
  count = tf.reduce_sum(tf.cast(is_finite, tf.float64), 0)
  total = tf.reduce_sum(tf.where(is_finite, block, 0.0), 0)
  mean = tf.math.divide_no_nan(total, count)
  return _Moments(
      count,
      mean,
      tf.reduce_sum(tf.where(is_finite, block - mean, 0.0) ** 2, 0),
      tf.reduce_min(tf.where(is_finite, block, np.inf), 0),
      tf.reduce_max(tf.where(is_finite, block, -np.inf), 0),
      tf.shape(block, tf.int64)[0],
  )


def _add_block(state, block_moments, block, seed):
  """Adds a block of rows `[B, D]` to the moments and the samples."""
  moments, steps_sample, outcomes_sample = state
  ends = block[:, -_NUM_OUTCOMES:]
  # The last column is finite in the last row of an episode, where the return
  # need not be.
  ends = tf.boolean_mask(ends, tf.math.is_finite(ends[:, -1]))
  return (
      _merge(moments, block_moments),
      reservoir.add(steps_sample, block, seed),
      reservoir.add(outcomes_sample, ends, seed),
  )


def _columns(moments, steps_sample, outcomes_sample, quantiles):
  """Returns the statistics of all columns, each a numpy array `[..., D]`."""
  sample = steps_sample.rows.numpy()[: steps_sample.seen]
  ends = outcomes_sample.rows.numpy()[: outcomes_sample.seen]
  is_empty = moments.count == 0

  def or_nan(values):
    return np.where(is_empty, np.nan, values)

  columns = list(sample.T[:-_NUM_OUTCOMES]) + list(ends.T)
  finite = [column[np.isfinite(column)] for column in columns]
  return {
      'mean': or_nan(moments.mean),
      'std': or_nan(np.sqrt(moments.squares / np.maximum(moments.count, 1))),
      'min': or_nan(moments.min),
      'max': or_nan(moments.max),
      'count': moments.count.astype(np.int64),
      'quantiles': np.stack(
          [
              np.quantile(column, quantiles)
              if column.size
              else np.full(len(quantiles), np.nan)
              for column in finite
          ],
          axis=-1,
      ),
      'levels': tuple(quantiles),
  }


def _to_statistics(columns, leaves, moments) -> Statistics:
  """Splits the statistics of all columns into those of the fields."""
  num_episodes = int(columns['count'][-1])
  # Every outcome is one number for an episode, so its mean gives the sum.
  num_transitions = int(round(moments.mean[-2] * num_episodes))
  num_terminal = int(round(moments.mean[-1] * num_episodes))

  def field(start, shape, dtype, total):
    end = start + int(np.prod(shape))

    def values(name):
      return columns[name][..., start:end]

    count = values('count').reshape(shape)
    return FieldStatistics(
        dtype=dtype.name,
        mean=values('mean').reshape(shape),
        std=values('std').reshape(shape),
        min=values('min').reshape(shape),
        max=values('max').reshape(shape),
        quantiles={
            float(level): numbers.reshape(shape)
            for level, numbers in zip(columns['levels'], values('quantiles'))
        },
        count=count,
        not_finite=total - count,
    )

  fields = {}
  start = 0
  num_steps = int(moments.rows)
  for keys, spec in leaves:
    total = num_transitions if keys[0] in _OF_TRANSITIONS else num_steps
    fields[paths.name_of(keys)] = field(start, spec.shape, spec.dtype, total)
    start += spec.shape.num_elements()
  return Statistics(
      num_episodes=num_episodes,
      num_steps=num_steps,
      num_transitions=num_transitions,
      num_terminal=num_terminal,
      num_truncated=num_episodes - num_terminal,
      returns=field(start, (), tf.float64, num_episodes),
      lengths=field(start + 1, (), tf.int64, num_episodes),
      fields=fields,
  )
