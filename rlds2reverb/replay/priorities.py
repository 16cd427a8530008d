"""Prioritized replay: priorities, the range of a table, importance weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

from etils import epy
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors

with epy.lazy_imports():
  from rlds2reverb.store import kernels

_NORMALIZATIONS = ('batch', 'table', 'none')
_IMPOSSIBLE = 'The probability of a sample must be above 0. Found:'
_NO_PRIORITY = (
    'An item of priority 0 was sampled. Reverb does so only where all'
    ' priorities of a table are 0, and then uniformly. Give some of its items a'
    ' priority above 0. Found:'
)


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


def importance_weights(
    sample_info: Any,
    beta: float | tf.Tensor,
    *,
    normalization: str = 'batch',
    min_priority: float | tf.Tensor | None = None,
    priority_exponent: float | None = None,
) -> np.ndarray | tf.Tensor:
  """Returns the weights that correct a loss for prioritized sampling.

  After "Prioritized Experience Replay" (Schaul et al., 2016). `P` is the
  probability of an item and `N` the size of its table. The normalizations
  differ by a constant factor within a batch. For priorities 1, 4, 9, 16,
  `priority_exponent` 0.5 and `beta` 1, the probabilities are .1, .2, .3, .4:

      "batch"  (P / smallest P of the batch) ** -beta
                                      1, .5, .333, .25  if all are in the batch
      "table"  (priority / min_priority) ** (-priority_exponent * beta)
                                      1, .5, .333, .25  whatever is in the batch
      "none"   (N * P) ** -beta       2.5, 1.25, .833, .625

  Most agents use `"batch"`, whose largest weight is 1, because a sample does
  not include the smallest priority of its table. The scale of the loss then
  varies from batch to batch. With `"table"`, which TorchRL uses, it does not.

  Args:
    sample_info: a `SampleInfo`, of `[B]`, `[B, T]` or any other shape.
    beta: the amount of correction, from 0 (none: all weights are equal) to 1
      (full). It may be a scalar tensor that grows over time.
    normalization: one of the above.
    min_priority: the smallest priority in the table; only for `"table"`.
    priority_exponent: the exponent of the table's sampler; only for `"table"`.

  Returns:
    The weights, float32, of the shape of `sample_info.probability`: an array if
    `sample_info` has arrays of NumPy.

  Raises:
    ValueError: if an argument is not valid.
    InvalidArgumentError: while it runs, if a probability is not above 0; or if
      an item has priority 0. Such an item is sampled only if all priorities of
      the table are 0, where Reverb samples uniformly.
  """
  checks.check_choice('normalization', normalization, _NORMALIZATIONS)
  is_table = normalization == 'table'
  if {min_priority is not None, priority_exponent is not None} != {is_table}:
    raise ValueError(
        'Only normalization="table" needs min_priority and priority_exponent,'
        f' and it needs both. But normalization={normalization!r} has'
        f' min_priority={min_priority} and'
        f' priority_exponent={priority_exponent}.'
    )
  if tf.executing_eagerly():
    return _eager_weights(
        sample_info, beta, normalization, min_priority, priority_exponent
    )
  probability = tf.cast(sample_info.probability, tf.float64)
  priority = tf.cast(sample_info.priority, tf.float64)
  exponent = tf.cast(beta, tf.float64)
  checked = [
      *_check_above_0(probability, _IMPOSSIBLE),
      *_check_above_0(priority, _NO_PRIORITY),
  ]
  with tf.control_dependencies(checked):
    if is_table:
      ratio = priority / tf.cast(min_priority, tf.float64)
      exponent = priority_exponent * exponent
    elif normalization == 'batch':
      ratio = probability / tf.reduce_min(probability)
    else:
      ratio = tf.cast(sample_info.table_size, tf.float64) * probability
    # TensorFlow takes several times longer for a power of float64 numbers.
    logs = tf.math.multiply_no_nan(tf.math.log(ratio), -exponent)
    return tf.cast(tf.exp(logs), tf.float32)


def _eager_weights(
    sample_info, beta, normalization, min_priority, priority_exponent
):
  """Computes the weights in NumPy, which is faster than eager TensorFlow."""
  probability = np.asarray(sample_info.probability, np.float64)
  priority = np.asarray(sample_info.priority, np.float64)
  values, divisor, exponent = probability, 1.0, float(beta)
  if normalization == 'table':
    values, divisor = priority, float(min_priority)
    exponent *= priority_exponent
  elif normalization == 'none':
    values = np.asarray(sample_info.table_size, np.float64) * probability
  if not probability.shape == priority.shape == values.shape:
    raise ValueError(
        'The fields of sample_info must have one shape, but probability has'
        f' {probability.shape} and priority {priority.shape}.'
    )
  weights = np.empty(values.shape, np.float32)
  if not kernels.compute_weights(
      probability.ravel(),
      priority.ravel(),
      values.ravel(),
      divisor,
      normalization == 'batch',
      -exponent,
      weights.reshape(-1),
  ):
    for checked, message in (
        (probability, _IMPOSSIBLE),
        (priority, _NO_PRIORITY),
    ):
      invalid = checked[~(checked > 0)][:16].tolist()
      if invalid:
        raise tf.errors.InvalidArgumentError(None, None, f'{message} {invalid}')
  if isinstance(sample_info.probability, np.ndarray):
    return weights
  return tf.convert_to_tensor(weights)


def _check_above_0(values, message):
  """Returns operations of a graph that raise an error."""
  return errors.check_true(tf.reduce_min(values) > 0, message, values)


def sequence_priority(
    step_priorities: Any,
    *,
    mask: Any | None = None,
    max_weight: float = 0.9,
) -> tf.Tensor:
  """Returns `max_weight * max + (1 - max_weight) * mean` of the steps.

  This is the priority of R2D2 ("Recurrent Experience Replay in Distributed
  Reinforcement Learning", Kapturowski et al., 2019), where the priority of a
  step is its absolute TD error. Steps 1, 2, 3 and 6 give 0.9 * 6 + 0.1 * 3 =
  5.7. Use it to update priorities, or for the first priorities:

      rlds2reverb.TableItems(
          'sequences', rlds2reverb.Windows(80, 40),
          priority=lambda item: replay.sequence_priority(tf.abs(item.reward)))

  Args:
    step_priorities: numbers from 0 up, `[..., T]`.
    mask: bool `[..., T]`, True where a step counts. Burn-in and padding do not.
      By default all steps do.
    max_weight: the weight of the largest, from 0 to 1.

  Returns:
    The priorities, float64 `[...]`. A sequence without a step that counts has
    priority 0.

  Raises:
    ValueError: if `max_weight` is not valid.
  """
  if not 0 <= max_weight <= 1:
    raise ValueError(f'max_weight must be from 0 to 1, but is {max_weight}.')
  steps = tf.convert_to_tensor(step_priorities, dtype_hint=tf.float64)
  steps = tf.cast(steps, tf.float64)
  if mask is None:
    mask = tf.ones_like(steps, tf.bool)
  # A product would keep the NaN of masked steps.
  steps = tf.where(mask, steps, tf.zeros_like(steps))
  count = tf.reduce_sum(tf.cast(mask, tf.float64), axis=-1)
  mean = tf.math.divide_no_nan(tf.reduce_sum(steps, axis=-1), count)
  return max_weight * tf.reduce_max(steps, axis=-1) + (1 - max_weight) * mean
