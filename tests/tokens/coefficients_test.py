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


class CoefficientsTest(tf.test.TestCase):

  def test_as_torchrl(self):
    coefficient = 0.2
    for penalties, expected in _UPDATES:
      kl = [-penalty / coefficient for penalty in penalties]
      coefficient = coefficients.adaptive_kl_coefficient(
          coefficient, kl, target=6.0, horizon=100
      )
      self.assertAllClose(coefficient, expected, rtol=1e-6)

  def test_in_map(self):
    data = tf.data.Dataset.from_tensors([6.6, 6.6])
    (adapted,) = data.map(
        lambda kl: coefficients.adaptive_kl_coefficient(
            0.5, kl, target=6.0, horizon=10
        )
    )
    self.assertAllClose(adapted, 0.5 * (1 + 0.1 * 2 / 10))

  def test_bad_arguments(self):
    def adapt(kl, **kwargs):
      return coefficients.adaptive_kl_coefficient(
          0.1, kl, **{'target': 1.0, 'horizon': 1.0, **kwargs}
      )

    with self.assertRaisesRegex(ValueError, 'must be positive'):
      adapt([1.0], target=0.0)
    with self.assertRaisesRegex(ValueError, 'must be positive'):
      adapt([1.0], horizon=-1)
    with self.assertRaisesRegex(ValueError, 'one number for each'):
      adapt(1.0)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'must be a divergence'
    ):
      adapt([])

  def test_what_is_not_finite_is_refused(self):
    for coefficient, kl in (
        (0.1, [1.0, np.nan]),
        (0.1, [np.inf]),
        (np.nan, [1.0]),
    ):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must be finite'
      ):
        coefficients.adaptive_kl_coefficient(
            coefficient, kl, target=1.0, horizon=1.0
        )


if __name__ == '__main__':
  tf.test.main()
