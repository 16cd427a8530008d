"""The statistics of a data set, and of its fields.

They are computed from the moments, and a sample, of its rows.
"""

import dataclasses
from typing import Any, Dict, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.statistics import moments as moments_lib
from rlds2reverb.statistics import rows as rows_lib


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


def from_sample(
    moments: moments_lib.Moments,
    sample: np.ndarray,
    ends: np.ndarray,
    leaves: Sequence[Any],
    quantiles: Sequence[float],
    acting_only: bool,
) -> Statistics:
  """Returns the statistics of a data set.

  Args:
    moments: the moments of its rows, in NumPy.
    sample: a sample of them, for the quantiles.
    ends: a sample of the outcomes of its episodes.
    leaves: the keys and the spec of each leaf.
    quantiles: see `compute.compute_statistics`.
    acting_only: see `compute.compute_statistics`.
  """
  # Every outcome is one number for an episode, so its mean gives the sum.
  num_steps, num_episodes = int(moments.rows), int(moments.count[-1])
  num_transitions, num_actions, num_terminal = (
      int(round(mean * num_episodes)) for mean in moments.mean[-3:]
  )
  columns = [*sample.T[: -rows_lib.NUM_OUTCOMES], *ends.T]

  def field(start, shape, dtype, total):
    span = slice(start, start + int(np.prod(shape)))
    count = moments.count[span].astype(np.int64)

    def values(found):
      return np.where(count == 0, np.nan, found).reshape(shape)

    levels = np.array(
        [
            np.quantile(column, quantiles)
            if column.size
            else np.full(len(quantiles), np.nan)
            for column in map(finite, columns[span])
        ]
    ).reshape(len(count), len(quantiles))
    return FieldStatistics(
        dtype=dtype.name,
        mean=values(moments.mean[span]),
        std=values(np.sqrt(moments.squares[span] / np.maximum(count, 1))),
        min=values(moments.min[span]),
        max=values(moments.max[span]),
        quantiles={
            float(level): values(numbers)
            for level, numbers in zip(quantiles, levels.T)
        },
        count=count.reshape(shape),
        not_finite=total - count.reshape(shape),
    )

  fields = {}
  start = 0
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


def finite(column: np.ndarray) -> np.ndarray:
  """Returns the finite numbers of a column."""
  return column[np.isfinite(column)]
