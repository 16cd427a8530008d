"""The coefficient of the penalty for straying from a reference policy.

The training loop keeps this number; the function here updates it.
"""

from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import graphs

# The largest error that a coefficient follows, as in the paper.
_MAX_ERROR = 0.2


def adaptive_kl_coefficient(
    coefficient: Any, kl: Any, *, target: float, horizon: float
) -> tf.Tensor:
  """Returns a coefficient that brings the divergence towards a target.

  After section 2.2 of Ziegler et al., Fine-Tuning Language Models from Human
  Preferences (2019). TorchRL's `AdaptiveKLController` does it with penalties
  rather than divergences: `kl = -penalty / coefficient`.

  Args:
    coefficient: float `[]`: the coefficient that was used.
    kl: floats `[n]`: the divergences that were observed with it, in nats.
    target: the mean of `kl` at which the coefficient stays.
    horizon: how many observations it takes to change the coefficient by as much
      as the error, of which at most 0.2 counts.

  Returns:
    float32 `[]`.

  Raises:
    ValueError: if `target` or `horizon` is not positive, or `kl` is a scalar.
    InvalidArgumentError: if there is no divergence, or one of them or the
      coefficient is not finite: it would stay so for ever.
  """
  if target <= 0 or horizon <= 0:
    raise ValueError(
        f'target and horizon must be positive, but are {target} and {horizon}.'
    )
  kl, coefficient = tf.cast(kl, tf.float32), tf.cast(coefficient, tf.float32)
  if kl.shape.rank == 0:
    raise ValueError('kl must be one number for each observation, [n].')
  count = tf.size(kl)
  kl = graphs.asserted(
      kl, count > 0, 'There must be a divergence to adapt a coefficient to.'
  )
  kl = graphs.asserted(
      kl,
      tf.reduce_all(tf.math.is_finite(kl)) & tf.math.is_finite(coefficient),
      'The divergences and the coefficient must be finite, or the coefficient'
      ' stays NaN. They are:',
      *(kl, coefficient),
  )
  error = tf.reduce_mean(kl) / target - 1.0
  error = tf.clip_by_value(error, -_MAX_ERROR, _MAX_ERROR)
  return coefficient * (1.0 + error * tf.cast(count, tf.float32) / horizon)
