"""Computing the statistics of a data set in one pass, in the graph.

All numbers of a step become one row of float64. A number that has no meaning,
such as the action of an episode's last step, is NaN in it. Blocks of rows, of
many episodes, are then reduced to the moments of each column and to a uniform
sample of the rows, which gives the quantiles. The moments of two blocks are
merged. The memory that this takes does not grow with the data.
"""

import dataclasses
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import moments as moments_lib
from rlds2reverb.statistics import reservoir
from rlds2reverb.statistics import rows as rows_lib

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# The names of two samples that are of no field.
RETURNS = '/returns'
LENGTHS = '/lengths'

_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_LENGTH = 4096
_SAMPLE_BYTES = 64 << 20


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
    acting_only: bool = False,
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
      finite. The numbers of one episode, or of one pack, must fit in memory.
    fields: the paths of the fields. A path may lead to several leaves. By
      default all fields are taken except for the flags, strings, and leaves
      that have more than 1024 numbers or a shape that is not known.
    quantiles: the quantiles to compute, in [0, 1].
    sample_size: the number of steps, and of episodes, of the sample for the
      quantiles. It is reduced where the sample would take more than 64 MiB.
    seed: the seed of the sample, an int.
    acting_only: whether steps whose action does not count are left out of the
      statistics of all fields, observations too. Octo and OpenVLA have only
      steps with an action. By default the last observation counts.

  Returns:
    The `Statistics`.

  Raises:
    ValueError: if `rlds_data` has no RLDS steps or no such field, if one of
      `fields` is not of numbers or its shape is not known, if the reward is not
      one number for every step, or if an argument is out of its range.
  """
  accumulation = Accumulation(
      steps_lib.steps_spec(rlds_data).step,
      fields,
      quantiles=quantiles,
      sample_size=sample_size,
      seed=seed,
      acting_only=acting_only,
  )
  return accumulation.statistics(accumulation.state_of(rlds_data))


class State(NamedTuple):
  """The moments and samples of the rows that an `Accumulation` was given.

  Attributes:
    moments: their moments.
    steps: a sample of them.
    outcomes: a sample of the outcomes of the episodes that they are of.
  """

  moments: moments_lib.Moments
  steps: reservoir.Reservoir
  outcomes: reservoir.Reservoir


class Accumulation:
  """Adds up the statistics of episodes, block by block.

  `compute_statistics` reads a data set with it. A program that reads the data
  for other reasons, too, has the statistics from the same pass:

      state = accumulation.empty()
      for block in ...:  # the `rows` of several episodes, one after the other
        state = accumulation.add(state, moments.of_block(block), block)
      statistics = accumulation.statistics(state)

  Attributes:
    leaves: the keys and the spec of each leaf that has statistics.
    used: the names of the step fields that `rows` reads.
    width: the number of columns of `rows`.
    block_length: the number of rows that make a block of a good size.
  """

  def __init__(
      self,
      step_spec: Dict[str, Any],
      fields: Optional[Sequence[paths.Path]] = None,
      *,
      quantiles: Sequence[float] = QUANTILES,
      sample_size: int = 10_000,
      seed: int = 0,
      acting_only: bool = False,
  ):
    """Args are those of `compute_statistics`; `step_spec` is that of a step."""
    if fields is not None:
      paths.check_list('fields', fields)
    if sample_size < 1 or not all(0 <= q <= 1 for q in quantiles):
      raise ValueError(
          'sample_size must be positive and quantiles in [0, 1], but they are'
          f' {sample_size} and {quantiles}.'
      )
    self.leaves = rows_lib.choose_leaves(step_spec, fields)
    self.used = {keys[0] for keys, _ in self.leaves} | {rlds.REWARD, *_FLAGS}
    self.used |= {last_steps.HAS_ACTION} & set(step_spec)
    self.width = rows_lib.NUM_OUTCOMES + sum(
        spec.shape.num_elements() for _, spec in self.leaves
    )
    self.block_length = min(
        max(_BLOCK_BYTES // (8 * self.width), 1), _MAX_BLOCK_LENGTH
    )
    self._quantiles = tuple(quantiles)
    self._sample_size = max(
        min(sample_size, _SAMPLE_BYTES // (8 * self.width)), 1
    )
    self._seed = seed
    self._acting_only = acting_only

  def state_of(self, rlds_data: tf.data.Dataset) -> State:
    """Returns the state after all episodes of a data set, reading it once.

    Args:
      rlds_data: see `compute_statistics`.
    """
    packs = data_sets.packs_of(rlds_data, fields=self.used)
    rows = packs.map(
        graphs.no_autograph(self.pack_rows),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    # The moments of a block need no other block, so several are made in
    # parallel.
    blocks = rows.rebatch(self.block_length).map(
        lambda block: (moments_lib.of_block(block), block),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return blocks.reduce(
        self.empty(), lambda state, block: self.add(state, *block)
    )

  def rows(self, steps: Dict[str, Any]) -> tf.Tensor:
    """Returns the rows of an episode, float64 `[T, width]`, in graph mode.

    Args:
      steps: a dict of stacked steps `[T, ...]`, with the fields `used`.
    """
    return self.pack_rows(packs_lib.of_one(steps))

  def pack_rows(self, pack: packs_lib.Pack) -> tf.Tensor:
    """Returns the rows of all episodes of a pack, float64 `[N, width]`.

    Args:
      pack: a pack, whose steps have the fields `used`.

    Raises:
      InvalidArgumentError: if the leaves of its steps differ in length.
    """
    steps = stacked_steps.with_equal_lengths(pack.steps)
    return rows_lib.to_rows(
        pack._replace(steps=steps), self.leaves, self._acting_only
    )

  def empty(self) -> State:
    """Returns the state before the first row."""
    return State(
        moments_lib.none(self.width),
        reservoir.empty(self._sample_size, self.width),
        reservoir.empty(self._sample_size, rows_lib.NUM_OUTCOMES),
    )

  def add(
      self, state: State, moments: moments_lib.Moments, block: tf.Tensor
  ) -> State:
    """Returns the state with a block of rows added, in graph mode.

    Args:
      state: the state before.
      moments: the moments of the block.
      block: the rows of any episodes, float64 `[B, width]`.
    """
    ends = block[:, -rows_lib.NUM_OUTCOMES :]
    # The last column is finite in the last row of an episode, where the return
    # need not be.
    ends = tf.boolean_mask(ends, tf.math.is_finite(ends[:, -1]))
    return State(
        moments_lib.merge(state.moments, moments),
        reservoir.add(state.steps, block, self._seed),
        reservoir.add(state.outcomes, ends, self._seed),
    )

  def statistics(self, state: State) -> Statistics:
    """Returns the statistics of all rows that were added."""
    moments = moments_lib.Moments(*(leaf.numpy() for leaf in state.moments))
    steps, outcomes = self._sampled(state)
    columns = _columns(moments, steps, outcomes, self._quantiles)
    return _to_statistics(columns, self.leaves, moments, self._acting_only)

  def samples(self, state: State) -> Dict[str, List[np.ndarray]]:
    """Returns the sample that the quantiles are taken from.

    Args:
      state: the state after the last row.

    Returns:
      For each field, by its path, the finite numbers of each of its columns: a
      list of arrays. So, too, for `RETURNS` and `LENGTHS`.
    """
    steps, ends = self._sampled(state)
    columns = [_finite(column) for column in steps.T]
    sampled = {
        RETURNS: [_finite(ends[:, 0])],
        LENGTHS: [_finite(ends[:, 1])],
    }
    start = 0
    for keys, spec in self.leaves:
      end = start + spec.shape.num_elements()
      sampled[paths.name_of(keys)] = columns[start:end]
      start = end
    return sampled

  def _sampled(self, state):
    """Returns the samples of steps and of outcomes, as far as they are full."""
    return (
        state.steps.rows.numpy()[: state.steps.seen],
        state.outcomes.rows.numpy()[: state.outcomes.seen],
    )


def _finite(column):
  return column[np.isfinite(column)]


def _columns(moments, sample, ends, quantiles):
  """Returns the statistics of all columns, each a numpy array `[..., D]`."""
  is_empty = moments.count == 0

  def or_nan(values):
    return np.where(is_empty, np.nan, values)

  columns = list(sample.T[: -rows_lib.NUM_OUTCOMES]) + list(ends.T)
  finite = [_finite(column) for column in columns]
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
      'levels': quantiles,
  }


def _to_statistics(columns, leaves, moments, acting_only) -> Statistics:
  """Splits the statistics of all columns into those of the fields."""
  num_episodes = int(columns['count'][-1])
  # Every outcome is one number for an episode, so its mean gives the sum.
  num_transitions = int(round(moments.mean[-3] * num_episodes))
  num_actions = int(round(moments.mean[-2] * num_episodes))
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
    total = num_transitions if keys[0] in rows_lib.OF_TRANSITIONS else num_steps
    if acting_only or keys[0] == rlds.ACTION:
      total = num_actions
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
