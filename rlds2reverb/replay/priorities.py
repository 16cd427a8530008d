"""Priorities of items, and the range of priorities that a table can sample."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


def batched(priority_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """Returns a graph function that computes the priorities of items, `[N]`.

  Args:
    priority_fn: takes the `Trajectory` of an item, and returns its priority.
  """

  @tf.function(reduce_retracing=True)
  def priorities(items):
    # With a copy of the first item there are at least two: tf.squeeze in the
    # priority function would drop a batch dimension of 1.
    padded = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf, leaf[:1]], 0), items
    )
    # A priority function may return a variable.
    return tf.vectorized_map(
        lambda item: tf.convert_to_tensor(priority_fn(item)), padded
    )[:-1]

  return priorities


def check(
    priorities: np.ndarray, table_name: str, frame_of: Callable[[int], int]
) -> None:
  """Raises a ValueError if a priority is negative, infinite or NaN.

  Args:
    priorities: the priorities of items, `[N]`.
    table_name: the name of their table.
    frame_of: a function of the index of an item, which returns its first frame
      in its episode.
  """
  invalid = np.flatnonzero(~(priorities >= 0) | np.isinf(priorities))
  if len(invalid):
    raise ValueError(
        f'The priority function of table {table_name!r} returned'
        f' {priorities[invalid[0]]} for the item that starts at frame'
        f' {frame_of(invalid[0])} of its episode. A priority must be a finite'
        ' number from 0 up.'
    )


def exponents(*selectors: Any) -> list[float]:
  """Returns the exponents of the prioritized selectors of a table.

  Args:
    *selectors: Reverb's `KeyDistributionOptions`.
  """
  return [
      options.prioritized.priority_exponent
      for options in selectors
      if options.HasField('prioritized')
  ]


class PriorityRange(NamedTuple):
  """The priorities above 0 with which Reverb samples a table correctly.

  A prioritized table samples an item of priority p by its weight
  `p**exponent`. If the sum of the weights overflows, or all weights underflow
  to 0, Reverb also samples items of priority 0. Neither happens if every weight
  is at least the smallest normal float64, and at most the largest float64
  divided by twice the size of the table.

  Attributes:
    table_name: the name of the table.
    exponent: the exponent of its priorities.
    lowest: the smallest priority above 0.
    highest: the largest priority.
  """

  table_name: str
  exponent: float
  lowest: float
  highest: float

  @classmethod
  def of_table(cls, info: Any) -> 'PriorityRange':
    """Returns the range of a table.

    Args:
      info: Reverb's `TableInfo` of the table.
    """
    selectors = info.sampler_options, info.remover_options
    exponent = max(exponents(*selectors), default=0.0)
    finfo = np.finfo(np.float64)
    weights = np.array([finfo.tiny, finfo.max / 2 / max(info.max_size, 1)])
    with np.errstate(all='ignore'):
      # With an exponent of 0, all weights are 1.
      root = np.float64(1) / np.float64(exponent)
      lowest, highest = (weights**root).tolist()
    # TensorFlow may round smaller numbers, which are not normal, to 0.
    lowest = max(lowest, float(finfo.tiny))
    return cls(info.name, exponent, lowest, highest)

  def contains(self, priorities: Any) -> Any:
    """Returns which priorities are 0 or in the range, an array or a tensor."""
    is_inside = (priorities >= self.lowest) & (priorities <= self.highest)
    return is_inside | (priorities == 0)

  def advice(self) -> str:
    """Returns a sentence about the range, for errors."""
    return (
        f'Table {self.table_name!r} samples by priority ** {self.exponent:g}.'
        ' So that these weights and their sum fit a float64, priorities must be'
        f' 0 or in [{self.lowest:g}, {self.highest:g}]. Scale the priorities:'
        ' only their ratios matter.'
    )

  def check(self, priorities: Any) -> None:
    """Raises a ValueError if a priority is not in the range."""
    priorities = np.ravel(priorities)
    invalid = np.flatnonzero(~self.contains(priorities))
    if len(invalid):
      raise ValueError(
          f'The priority of an item is {priorities[invalid[0]]:g}.'
          f' {self.advice()}'
      )
