"""Importance weights and sequence priorities for prioritized replay."""

from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors

_NORMALIZATIONS = ('batch', 'table', 'none')
_IMPOSSIBLE = 'The probability of a sample must be above 0. Found:'
_NO_PRIORITY = (
    'An item of priority 0 was sampled. Reverb does so only where all'
    ' priorities of a table are 0, and then uniformly. Give some of its items a'
    ' priority above 0. Found:'
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
    return tf.cast(ratio**-exponent, tf.float32)


def _eager_weights(
    sample_info, beta, normalization, min_priority, priority_exponent
):
  """Computes the weights in NumPy, which is faster than eager TensorFlow."""
  probability = np.asarray(sample_info.probability, np.float64)
  priority = np.asarray(sample_info.priority, np.float64)
  for values, message in (probability, _IMPOSSIBLE), (priority, _NO_PRIORITY):
    if not (values > 0).all():
      invalid = values[~(values > 0)][:16].tolist()
      raise tf.errors.InvalidArgumentError(None, None, f'{message} {invalid}')
  exponent = float(beta)
  with np.errstate(divide='ignore', invalid='ignore'):  # As in a graph.
    if normalization == 'table':
      ratio = priority / float(min_priority)
      exponent *= priority_exponent
    elif normalization == 'batch':
      ratio = probability / probability.min(initial=np.inf)
    else:
      ratio = np.asarray(sample_info.table_size, np.float64) * probability
    weights = (ratio**-exponent).astype(np.float32)
  if isinstance(sample_info.probability, np.ndarray):
    return weights
  return tf.convert_to_tensor(weights)


def _check_above_0(values, message):
  """Returns operations of a graph that raise an error."""
  return errors.check_true(tf.reduce_all(values > 0), message, values)


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
