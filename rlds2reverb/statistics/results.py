"""The statistics of a data set, and of its fields.

They are made of moments and quantiles, merged with those of other data sets,
and kept as JSON.
"""

import dataclasses
import functools
import json
from typing import Any, Dict, Mapping, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.statistics import accumulators


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


def of_moments(
    moments: accumulators.Moments,
    dtype: str,
    shape: Sequence[int],
    quantiles: Mapping[float, np.ndarray],
) -> FieldStatistics:
  """Returns the statistics of a field, given its moments in NumPy."""
  count = moments.count.astype(np.int64).reshape(shape)

  def shaped(numbers):
    return np.where(count == 0, np.nan, numbers.reshape(shape))

  return FieldStatistics(
      dtype=dtype,
      mean=shaped(moments.mean),
      std=shaped(np.sqrt(moments.squares / np.maximum(moments.count, 1))),
      min=shaped(moments.min),
      max=shaped(moments.max),
      quantiles={level: shaped(found) for level, found in quantiles.items()},
      count=count,
      not_finite=moments.meant.astype(np.int64).reshape(shape) - count,
  )


def merge_statistics(statistics: Mapping[str, Statistics]) -> Statistics:
  """Merges statistics that were computed for several data sets.

  Counts, minima and maxima are those of all data, and means and deviations
  differ by rounding. Quantiles cannot be merged, and are left out; call
  `compute_statistics` with all data sets for them.

  Args:
    statistics: the statistics of each data set, by its name.

  Returns:
    The statistics of all of them, without quantiles.

  Raises:
    ValueError: if there are none, or their fields differ in name, dtype or
      shape.
  """
  if not statistics:
    raise ValueError('There are no statistics to merge.')
  describe = lambda one: f'{one.dtype} {one.count.shape}'
  check_same(
      {
          name: {path: describe(found) for path, found in one.fields.items()}
          for name, one in statistics.items()
      }
  )

  def merge(*parts):
    if isinstance(parts[0], int):
      return sum(parts)
    if isinstance(parts[0], dict):
      return {path: merge(*(part[path] for part in parts)) for path in parts[0]}
    merge_two = accumulators.Moments.merge
    moments = functools.reduce(merge_two, map(_moments_of, parts))
    moments = tf.nest.map_structure(np.asarray, moments)
    return of_moments(moments, parts[0].dtype, parts[0].count.shape, {})

  parts = [vars(part).values() for part in statistics.values()]
  return Statistics(*map(merge, *parts))


def _moments_of(field: FieldStatistics) -> accumulators.Moments:
  """Returns the moments that lead to statistics of a field."""
  is_empty = field.count == 0
  return accumulators.Moments(
      field.count.astype(np.float64),
      np.where(is_empty, 0.0, field.mean),
      np.where(is_empty, 0.0, field.std) ** 2 * field.count,
      np.where(is_empty, np.inf, field.min),
      np.where(is_empty, -np.inf, field.max),
      (field.count + field.not_finite).astype(np.float64),
  )


def check_same(described: Mapping[str, Mapping[str, str]]) -> None:
  """Raises a ValueError if data sets differ in the fields that count.

  Args:
    described: by the name of each data set, a description of each field.
  """
  (name, fields), *others = described.items()
  for other_name, other_fields in others:
    differences = [
        f'{path}: {fields.get(path, "missing")} in {name}, but'
        f' {other_fields.get(path, "missing")} in {other_name}'
        for path in sorted({*fields, *other_fields})
        if fields.get(path) != other_fields.get(path)
    ]
    if differences:
      raise ValueError(
          'Statistics of data sets with other fields cannot be merged. Map them'
          ' to the same fields first, or name the fields that they have in'
          ' common:\n' + '\n'.join(differences)
      )


def to_json(statistics: Statistics) -> str:
  """Returns statistics as JSON text, in which a NaN is written as `NaN`."""
  plain = dataclasses.asdict(statistics)
  return json.dumps(plain, default=lambda array: array.tolist(), indent=1)


def from_json(text: str) -> Statistics:
  """Returns the statistics from which `to_json` made the text."""

  def field(plain):
    arrays = {k: np.array(v) for k, v in plain.items() if k != 'dtype'}
    quantiles = {float(q): np.array(v) for q, v in plain['quantiles'].items()}
    return FieldStatistics(**{**plain, **arrays, 'quantiles': quantiles})

  plain: Dict[str, Any] = json.loads(text)
  fields = {path: field(one) for path, one in plain['fields'].items()}
  ends = {name: field(plain[name]) for name in ('returns', 'lengths')}
  return Statistics(**{**plain, **ends, 'fields': fields})
