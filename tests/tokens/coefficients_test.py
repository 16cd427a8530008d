"""Tests of the coefficients of the penalty."""

import numpy as np
import tensorflow as tf

from rlds2reverb.tokens import coefficients

# What AdaptiveKLController(init_kl_coef=0.2, target=6.0, horizon=100) has after
# each of these updates, in TorchRL 0.14.1 (torch 2.13.0).
_UPDATES = (
    ([-1.2, -1.4], 0.2003333419561386),
    ([-3.0], 0.2007340043783188),
    ([0.0, 0.0, 0.0, 0.0], 0.1991281360387802),
    ([-1.21, -1.25], 0.19924557209014893),
)


def _adapt(kl, coefficient=0.1, target=1.0, horizon=1.0):
  return coefficients.adaptive_kl_coefficient(
      coefficient, kl, target=target, horizon=horizon
  )


class CoefficientsTest(tf.test.TestCase):

  def test_as_torchrl(self):
    coefficient = 0.2
    for penalties, expected in _UPDATES:
      kl = tf.constant([-penalty / coefficient for penalty in penalties])
      for adapt in _adapt, tf.function(_adapt):
        found = adapt(kl, coefficient, 6.0, 100.0)
        self.assertAllClose(found, expected, rtol=1e-6)
      coefficient = float(found)

  def test_bad_arguments(self):
    for call, message in (
        (lambda: _adapt([1.0], target=0.0), 'must be positive'),
        (lambda: _adapt([1.0], horizon=-1), 'must be positive'),
        (lambda: _adapt(1.0), 'one number for each'),
        (lambda: _adapt([]), 'must be a divergence'),
        (lambda: _adapt([np.inf]), 'must be finite'),
        (lambda: _adapt([1.0], np.nan), 'must be finite'),
    ):
      with self.assertRaisesRegex(
          (ValueError, tf.errors.InvalidArgumentError), message
      ):
        call()


if __name__ == '__main__':
  tf.test.main()
