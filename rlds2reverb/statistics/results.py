"""Statistics of a data set and of its fields: merging and JSON."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import json
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import fingerprints
from rlds2reverb.store import damage

_COUNTS = ('count', 'not_finite')
# The attributes of `Statistics` that have a value for each episode.
_OF_EPISODES = ('returns', 'lengths')


@dataclasses.dataclass(frozen=True, eq=False)
class FieldStatistics(fingerprints.ByValue):
  """Statistics of each number of a field.

  They are computed over all steps in which the field is meaningful. NaN and
  infinities are ignored, except by `not_finite`. Without any finite number, the
  statistics are NaN.

  All arrays are float64 of the field's shape in one step, except for the two
  counts, which are int64.

  Attributes:
    dtype: the name of the field's dtype in the data.
    mean: the mean.
    std: the population standard deviation, `sqrt(mean((x - mean)**2))`.
    min: the minimum.
    max: the maximum.
    quantiles: a dict from each requested quantile, in [0, 1], to its values.
    count: the number of finite values.
    not_finite: the number of NaN and infinite values.
  """

  dtype: str
  mean: np.ndarray
  std: np.ndarray
  min: np.ndarray
  max: np.ndarray
  quantiles: dict[float, np.ndarray]
  count: np.ndarray
  not_finite: np.ndarray

  @property
  def is_floating(self) -> bool:
    return tf.as_dtype(self.dtype).is_floating

  def quantile(self, quantile: float) -> np.ndarray:
    """Returns the values of a quantile.

    Args:
      quantile: a quantile that was computed; or 0 for the minimum, or 1 for the
        maximum.

    Raises:
      ValueError: if the quantile was not computed.
    """
    quantiles = {0.0: self.min, 1.0: self.max, **self.quantiles}
    if quantile not in quantiles:
      raise ValueError(
          f'The quantile {quantile} was not computed, only {sorted(quantiles)}.'
          ' Pass it to compute_statistics.'
      )
    return quantiles[quantile]


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics(fingerprints.ByValue):
  """Statistics of a data set.

  Attributes:
    num_episodes: the number of episodes with at least one step.
    num_steps: the number of steps of these episodes.
    num_transitions: the number of steps other than the last of each episode.
    num_terminal: the number of episodes that end in a terminal step.
    num_truncated: the number of all other episodes.
    returns: statistics of the undiscounted returns. The return of an episode is
      the sum of the rewards of all its steps but the last.
    lengths: statistics of the number of transitions per episode.
    fields: a dict from the path of each field to its statistics.
  """

  num_episodes: int
  num_steps: int
  num_transitions: int
  num_terminal: int
  num_truncated: int
  returns: FieldStatistics
  lengths: FieldStatistics
  fields: dict[str, FieldStatistics]


class Moments(NamedTuple):
  """The moments of the finite numbers of each column, which can be merged.

  Attributes:
    count: float64 `[D]`: the number of finite numbers.
    mean: float64 `[D]`: their mean.
    squares: float64 `[D]`: the sum of their squared deviations from the mean.
    min: float64 `[D]`: their minimum.
    max: float64 `[D]`: their maximum.
    num_valid: float64 `[D]`: the number of meaningful numbers, finite or not.
  """

  count: Any
  mean: Any
  squares: Any
  min: Any
  max: Any
  num_valid: Any

  @classmethod
  def compute(cls, numbers: tf.Tensor, mask: tf.Tensor) -> 'Moments':
    """Returns the moments of a block of rows, `[B, D]`; see `Rows`."""
    is_finite = tf.math.is_finite(numbers)
    count = tf.reduce_sum(tf.cast(is_finite, tf.float64), 0)
    total = tf.reduce_sum(tf.where(is_finite, numbers, 0.0), 0)
    mean = tf.math.divide_no_nan(total, count)
    return cls(
        count,
        mean,
        tf.reduce_sum(tf.where(is_finite, numbers - mean, 0.0) ** 2, 0),
        tf.reduce_min(tf.where(is_finite, numbers, np.inf), 0),
        tf.reduce_max(tf.where(is_finite, numbers, -np.inf), 0),
        tf.reduce_sum(tf.cast(mask, tf.float64), 0),
    )

  def merge(self, other: 'Moments') -> 'Moments':
    """Returns the moments of the rows of both."""
    # The method of Chan, Golub and LeVeque (1979), which is accurate even if
    # the mean is much larger than the deviation.
    count = self.count + other.count
    fraction = tf.math.divide_no_nan(other.count, count)
    delta = other.mean - self.mean
    return Moments(
        count,
        self.mean + delta * fraction,
        self.squares + other.squares + delta**2 * self.count * fraction,
        tf.minimum(self.min, other.min),
        tf.maximum(self.max, other.max),
        self.num_valid + other.num_valid,
    )

  def to_statistics(
      self,
      dtype: str,
      shape: Sequence[int],
      quantiles: Mapping[float, np.ndarray],
  ) -> FieldStatistics:
    """Returns the statistics of a field, from moments in NumPy."""
    count = self.count.astype(np.int64).reshape(shape)

    def to_shape(numbers):
      return np.where(count == 0, np.nan, numbers.reshape(shape))

    return FieldStatistics(
        dtype=dtype,
        mean=to_shape(self.mean),
        std=to_shape(np.sqrt(self.squares / np.maximum(self.count, 1))),
        min=to_shape(self.min),
        max=to_shape(self.max),
        quantiles={level: to_shape(q) for level, q in quantiles.items()},
        count=count,
        not_finite=self.num_valid.astype(np.int64).reshape(shape) - count,
    )

  @classmethod
  def from_statistics(cls, field: FieldStatistics) -> 'Moments':
    """Returns the moments from which the statistics were computed."""
    is_empty = field.count == 0
    return cls(
        field.count.astype(np.float64),
        np.where(is_empty, 0.0, field.mean),
        np.where(is_empty, 0.0, field.std) ** 2 * field.count,
        np.where(is_empty, np.inf, field.min),
        np.where(is_empty, -np.inf, field.max),
        (field.count + field.not_finite).astype(np.float64),
    )


def merge_statistics(statistics: Mapping[str, Statistics]) -> Statistics:
  """Merges statistics that were computed for several data sets.

  Counts, minima and maxima equal the results of one pass over all data; means
  and deviations differ by rounding. Quantiles cannot be merged and are dropped:
  call `compute_statistics` with all data sets to compute them.

  Args:
    statistics: a dict from the name of each data set to its statistics.

  Returns:
    The merged statistics, without quantiles.

  Raises:
    ValueError: if `statistics` is empty, or the fields differ in name, dtype or
      shape.
  """
  if not statistics:
    raise ValueError('There are no statistics to merge.')
  check_same_fields(
      {
          name: {
              path: f'{field.dtype} {field.count.shape}'
              for path, field in of_dataset.fields.items()
          }
          for name, of_dataset in statistics.items()
      }
  )

  def merge(*parts):
    if isinstance(parts[0], int):
      return sum(parts)
    if isinstance(parts[0], dict):
      return {path: merge(*(part[path] for part in parts)) for path in parts[0]}
    moments = functools.reduce(
        Moments.merge, map(Moments.from_statistics, parts)
    )
    moments = tf.nest.map_structure(np.asarray, moments)
    return moments.to_statistics(parts[0].dtype, parts[0].count.shape, {})

  parts = [vars(part).values() for part in statistics.values()]
  return Statistics(*map(merge, *parts))


def check_same_fields(fields: Mapping[str, Mapping[str, str]]) -> None:
  """Raises a ValueError if data sets differ in their fields.

  Args:
    fields: for each data set, a dict from the path of each field to its dtype
      and shape, as text.
  """
  (name, expected), *more = fields.items()
  for other_name, actual in more:
    differences = [
        f'{path}: {expected.get(path, "missing")} in {name}, but'
        f' {actual.get(path, "missing")} in {other_name}'
        for path in sorted({*expected, *actual})
        if expected.get(path) != actual.get(path)
    ]
    if differences:
      raise ValueError(
          'Only statistics of the same fields can be merged. Map the data sets'
          ' to the same fields first, or name their common fields:\n'
          + '\n'.join(differences)
      )


def to_json(statistics: Statistics) -> str:
  """Returns statistics as JSON, with `NaN` for NaN."""
  values = dataclasses.asdict(statistics)
  return json.dumps(values, default=lambda array: array.tolist(), indent=1)


def from_json(text: str) -> Statistics:
  """Parses statistics from the JSON of `to_json`.

  Raises:
    ValueError: if the text is not JSON, or does not hold statistics: counts
      that are negative or do not add up, arrays of different shapes, or minima
      above maxima.
  """
  plain: dict[str, Any] = damage.loads_json(text)
  fields = {
      path: _parse_field(f'the field {path!r}', field)
      for path, field in plain['fields'].items()
  }
  ends = {name: _parse_field(name, plain[name]) for name in _OF_EPISODES}
  statistics = Statistics(**{**plain, **ends, 'fields': fields})
  for name in plain.keys() - ends.keys() - {'fields'}:
    count = plain[name]
    if type(count) is not int or count < 0:
      raise ValueError(f'{name} must be an integer of at least 0, not {count}')
  num_ended = statistics.num_terminal + statistics.num_truncated
  if num_ended != statistics.num_episodes:
    raise ValueError(
        'num_terminal and num_truncated must add up to num_episodes, but are'
        f' {num_ended} of {statistics.num_episodes}'
    )
  if statistics.num_transitions > statistics.num_steps:
    raise ValueError(
        f'num_transitions is {statistics.num_transitions}, but num_steps is'
        f' {statistics.num_steps}'
    )
  return statistics


def _parse_field(name: str, plain: dict[str, Any]) -> FieldStatistics:
  """Returns the statistics of a field in JSON.

  Raises:
    ValueError: if an array is not of numbers, or not in its range.
  """
  tf.as_dtype(plain['dtype'])
  shape = np.shape(plain['count'])

  def parse(key: str, value: Any) -> np.ndarray:
    array = np.array(value)
    kinds = 'iu' if key in _COUNTS else 'iuf'
    if array.size and array.dtype.kind not in kinds or array.shape != shape:
      raise ValueError(
          f'{key} of {name} must be numbers of the shape {list(shape)}, as'
          f' count is, but is {array.dtype} {list(array.shape)}'
      )
    array = array.astype(np.int64 if key in _COUNTS else np.float64)
    if (array < 0).any() and key in ('std', *_COUNTS):
      raise ValueError(f'{key} of {name} must not be negative')
    return array

  arrays = {
      key: parse(key, value)
      for key, value in plain.items()
      if key not in ('dtype', 'quantiles')
  }
  field = FieldStatistics(
      **arrays,
      dtype=plain['dtype'],
      quantiles={
          float(level): parse(f'quantile {level}', value)
          for level, value in plain['quantiles'].items()
      },
  )
  if (field.min > field.max).any():
    raise ValueError(f'min of {name} is above max')
  return field
