"""Importance weights of items that were sampled by their priorities."""

from typing import Any, Dict, Optional, Union

import tensorflow as tf

from rlds2reverb.episodes import checks

_NORMALIZATIONS = ('batch', 'table', 'none')


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

  A sample does not tell the smallest priority of its table, so that the largest
  weight of a batch is 1 is what most agents do. It makes the scale of the loss
  vary from batch to batch; `"table"` does not, and TorchRL does it.

  Args:
    sample_info: Reverb's `SampleInfo`, of `[B]`, `[B, T]` or any other shape.
    beta: how much of the bias is corrected, from 0 (nothing: all weights are
      equal) to 1 (all of it). It may be a scalar tensor that grows over time.
    normalization: which of the above.
    min_priority: the smallest priority in the table; for `"table"` alone.
    priority_exponent: that of the table's sampler; for `"table"` alone.

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
  return _weights(
      sample_info.probability,
      sample_info.priority,
      sample_info.table_size,
      tf.cast(beta, tf.float64),
      normalization,
      min_priority,
      priority_exponent,
  )


@tf.function(autograph=False, reduce_retracing=True)
def _weights(
    probability,
    priority,
    table_size,
    beta,
    normalization,
    min_priority,
    priority_exponent,
):
  """Computes them in a graph: eager operations take several times as long."""
  probability = tf.cast(probability, tf.float64)
  priority = tf.cast(priority, tf.float64)
  with tf.control_dependencies(
      [
          tf.debugging.Assert(
              tf.reduce_all(probability > 0),
              ['The probability of a sample must be above 0.', probability],
          ),
          tf.debugging.Assert(
              tf.reduce_all(priority > 0),
              [
                  'An item of priority 0 was sampled. Reverb does so only where'
                  ' all priorities of a table are 0, and then uniformly. Give'
                  ' some of its items a priority above 0.',
                  priority,
              ],
          ),
      ]
  ):
    if normalization == 'table':
      ratio = priority / tf.cast(min_priority, tf.float64)
      weights = ratio ** (-priority_exponent * beta)
    elif normalization == 'batch':
      weights = (probability / tf.reduce_min(probability)) ** -beta
    else:
      size = tf.cast(table_size, tf.float64)
      weights = (size * probability) ** -beta
  return tf.cast(weights, tf.float32)


class WeightedSamples:
  """A replay buffer whose samples have importance weights."""

  def importance_weights(
      self,
      sample_info: Any,
      beta: Union[float, tf.Tensor],
      *,
      normalization: str = 'batch',
  ) -> tf.Tensor:
    """Returns the weights that correct a loss for prioritized sampling.

    Args:
      sample_info: the `SampleInfo` of a batch.
      beta: how much of the bias is corrected: 0 nothing, 1 all.
      normalization: `"batch"`, `"none"` or, without a server, `"table"`; see
        `replay.importance_weights`.

    Returns:
      The weights, float32, of the shape of `sample_info.probability`.

    Raises:
      ValueError: if items are not sampled by priorities, or an argument is not
        valid.
    """
    return importance_weights(
        sample_info,
        beta,
        normalization=normalization,
        **self._check_weights(sample_info, normalization),
    )

  def _check_weights(
      self, sample_info: Any, normalization: str
  ) -> Dict[str, Any]:
    """Returns what a normalization needs, or raises a ValueError."""
    raise NotImplementedError
