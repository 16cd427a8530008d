"""The priority of a sequence, from those of its steps."""

from typing import Any, Optional

import tensorflow as tf


def sequence_priority(
    step_priorities: Any,
    *,
    mask: Optional[Any] = None,
    max_weight: float = 0.9,
) -> tf.Tensor:
  """Returns `max_weight * max + (1 - max_weight) * mean` of the steps.

  This is the priority of R2D2 ("Recurrent Experience Replay in Distributed
  Reinforcement Learning", Kapturowski et al., 2019), where that of a step is
  the absolute TD error. Steps 1, 2, 3 and 6 have 0.9 * 6 + 0.1 * 3 = 5.7. Use
  it in a train step that updates priorities, or for the first priorities:

      rlds2reverb.TableItems(
          'sequences', rlds2reverb.Windows(80, 40),
          priority=lambda item: replay.sequence_priority(tf.abs(item.reward)))

  Args:
    step_priorities: numbers from 0 up, `[..., T]`.
    mask: bool `[..., T]`, True where a step counts. Burn-in and padding do not.
      By default all steps do.
    max_weight: the weight of the largest, from 0 to 1.

  Returns:
    The priorities, float64 `[...]`. A sequence none of whose steps counts has
    priority 0.

  Raises:
    ValueError: if `max_weight` is not valid.
  """
  if not 0 <= max_weight <= 1:
    raise ValueError(f'max_weight must be from 0 to 1, but is {max_weight}.')
  steps = tf.cast(step_priorities, tf.float64)
  if mask is None:
    mask = tf.ones_like(steps, tf.bool)
  # A product would keep the NaN of masked steps.
  steps = tf.where(mask, steps, tf.zeros_like(steps))
  count = tf.reduce_sum(tf.cast(mask, tf.float64), axis=-1)
  mean = tf.math.divide_no_nan(tf.reduce_sum(steps, axis=-1), count)
  return max_weight * tf.reduce_max(steps, axis=-1) + (1 - max_weight) * mean
