"""Importance weights of items that were sampled by their priorities."""

from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks

_NORMALIZATIONS = ('batch', 'table', 'none')
_IMPOSSIBLE = 'The probability of a sample must be above 0.'
_NO_PRIORITY = (
    'An item of priority 0 was sampled. Reverb does so only where all'
    ' priorities of a table are 0, and then uniformly. Give some of its items a'
    ' priority above 0.'
)


def importance_weights(
    sample_info: Any,
    beta: Union[float, tf.Tensor],
    *,
    normalization: str = 'batch',
    min_priority: Optional[Union[float, tf.Tensor]] = None,
    priority_exponent: Optional[float] = None,
) -> tf.Tensor:
  """Returns the weights that correct a loss for prioritized sampling.

  After "Prioritized Experience Replay" (Schaul et al., 2016). `P` is the
  probability of an item and `N` the size of its table. All normalizations
  differ by a factor alone. For priorities 1, 4, 9, 16, `priority_exponent` 0.5
  and `beta` 1, the probabilities are .1, .2, .3, .4, and:

      "batch"  (P / smallest P of the batch) ** -beta
                                      1, .5, .333, .25  if all are in the batch
      "table"  (priority / min_priority) ** (-priority_exponent * beta)
                                      1, .5, .333, .25  whatever is in the batch
      "none"   (N * P) ** -beta       2.5, 1.25, .833, .625

  Most agents use `"batch"`, whose largest weight is 1, because a sample does
  not tell the smallest priority of its table. The scale of the loss then varies
  from batch to batch. With `"table"`, which TorchRL uses, it does not.

  Args:
    sample_info: Reverb's `SampleInfo`, of `[B]`, `[B, T]` or any other shape.
    beta: how much of the bias is corrected, from 0 (nothing: all weights are
      equal) to 1 (all of it). It may be a scalar tensor that grows over time.
    normalization: which of the above.
    min_priority: the smallest priority in the table; for `"table"` alone.
    priority_exponent: the exponent of the table's sampler; for `"table"` alone.

  Returns:
    The weights, float32, of the shape of `sample_info.probability`.

  Raises:
    ValueError: if an argument is not valid.
    InvalidArgumentError: while it runs, if a probability is not above 0; or if
      an item has priority 0. Such an item is sampled only if all priorities of
      the table are 0, where Reverb samples uniformly.
  """
  checks.check_choice('normalization', normalization, _NORMALIZATIONS)
  is_table = normalization == 'table'
  if is_table != (min_priority is not None) or is_table != (
      priority_exponent is not None
  ):
    raise ValueError(
        'normalization="table" needs min_priority and priority_exponent, and'
        f' the others need neither, but normalization={normalization!r} has'
        f' min_priority={min_priority} and'
        f' priority_exponent={priority_exponent}.'
    )
  # In eager mode, one operation of TensorFlow takes longer than all in NumPy.
  is_eager = tf.executing_eagerly()
  cast = lambda values: (
      np.asarray(values, np.float64)
      if is_eager
      else tf.cast(values, tf.float64)
  )
  probability = cast(sample_info.probability)
  priority = cast(sample_info.priority)
  check = _check_in_numpy if is_eager else _check_in_graph
  with tf.control_dependencies(check(probability, priority)):
    if is_table:
      ratio = priority / cast(min_priority)
      weights = ratio ** (-priority_exponent * cast(beta))
    elif normalization == 'batch':
      least = np.min if is_eager else tf.reduce_min
      weights = (probability / least(probability)) ** -cast(beta)
    else:
      weights = (cast(sample_info.table_size) * probability) ** -cast(beta)
  if is_eager:
    weights = weights.astype(np.float32)
  return tf.cast(weights, tf.float32)


def _check_in_numpy(probability, priority):
  for values, message in ((probability, _IMPOSSIBLE), (priority, _NO_PRIORITY)):
    if not (values > 0).all():
      raise tf.errors.InvalidArgumentError(
          None, None, f'{message} Found: {values[~(values > 0)][:16].tolist()}'
      )
  return []


def _check_in_graph(probability, priority):
  return [
      tf.debugging.Assert(tf.reduce_all(values > 0), [message, values])
      for values, message in (
          (probability, _IMPOSSIBLE),
          (priority, _NO_PRIORITY),
      )
  ]
