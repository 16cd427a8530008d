"""Statistics of the fields of a data set, in one streaming pass in the graph.

The numbers of a step are laid side by side as one row of float64, with NaN
where a number has no meaning, as the action of an episode's last step. The rows
of many episodes go, a block at a time, into the moments of each column, merged
after Chan, Golub and LeVeque (1979), and into a uniform sample of the rows, for
the quantiles. Memory does not grow with the data.
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
# Of the last step of an episode these carry no meaning.
_OF_TRANSITIONS = (rlds.ACTION, rlds.REWARD, rlds.DISCOUNT)
_MAX_LEAF_SIZE = 1024
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_LENGTH = 4096
_SAMPLE_BYTES = 64 << 20
_NUM_OUTCOMES = 3  # the columns that hold an `Outcome`


@dataclasses.dataclass(frozen=True, eq=False)
class FieldStatistics(identity.ByValue):
  """Statistics of each number of a field, over all steps where it has meaning.

  NaN and infinities are left out of all but the count of them. Of no numbers at
  all, each is NaN.

  Attributes:
    dtype: the name of the field's dtype in the data.
    mean: float64, of the shape of the field in one step.
    std: the standard deviation, of the population.
    min: the least number.
    max: the greatest.
    quantiles: from each quantile, in [0, 1], to its numbers.
    count: int64: how many numbers there were.
    not_finite: int64: how many more were NaN or infinite.
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
    """Returns the numbers of a quantile; 0 is the minimum, 1 the maximum.

    Raises:
      ValueError: if it was not computed.
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
    num_episodes: the number of episodes that have a step.
    num_steps: the number of their steps.
    num_transitions: the number of steps that are not last ones.
    num_terminal: the number of episodes that end in a terminal step.
    num_truncated: the number of all other episodes.
    returns: of the undiscounted returns: the sums of the rewards of all steps
      of an episode but its last.
    lengths: of the numbers of transitions of an episode.
    fields: of each field, by its path.
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
  """Computes the statistics of a data set, going through it once.

  Mean and deviation are accumulated in float64, whatever the dtype. Quantiles
  are those of a uniform sample of the steps (of the episodes, for returns and
  lengths), so they are exact for a data set that is no larger. Of a larger one
  what is called the quantile `q` lies between the true ones `q - e` and
  `q + e`, where the standard error `e` is `sqrt(q * (1 - q) / sample_size)`:
  for 10,000 steps 0.005 in the middle, and 0.001 for `q` = 0.01.

  No image is decoded: the fields of strings are not looked at.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps. It must be
      finite. Of one episode all numbers of `fields` are in memory at a time.
    fields: the paths of the fields; one may lead to several leaves. By default
      all but the flags, strings, and leaves of more than 1024 numbers or an
      unknown number.
    quantiles: which quantiles, in [0, 1].
    sample_size: how many steps and episodes the sample for the quantiles has;
      less where it would take more than 64 MiB.
    seed: of the sample.

  Returns:
    The `Statistics`.

  Raises:
    ValueError: if `rlds_data` has no RLDS steps or no such field, if one of
      `fields` is not a number or its shape is not known, if the reward is not
      one number a step, or an argument is out of its range.
  """
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
  # What needs only the block itself is done for several blocks at a time.
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

  The last columns have the episode's outcome in the row of the last step, and
  NaN elsewhere.
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
  """Of each column: count, mean, sum of squared differences from it, range.

  And the number of all rows, int64 `[]`.
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
  """Adds a block of rows `[B, D]` to the moments and samples."""
  moments, steps_sample, outcomes_sample = state
  ends = block[:, -_NUM_OUTCOMES:]
  # Only a return may be NaN, or infinite.
  ends = tf.boolean_mask(ends, tf.math.is_finite(ends[:, -1]))
  return (
      _merge(moments, block_moments),
      reservoir.add(steps_sample, block, seed),
      reservoir.add(outcomes_sample, ends, seed),
  )


def _columns(moments, steps_sample, outcomes_sample, quantiles):
  """Returns a dict of numpy arrays `[..., D]`: what is known of each column."""
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
  """Takes the columns apart again."""
  num_episodes = int(columns['count'][-1])
  # No outcome holds more or less than one number an episode.
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
