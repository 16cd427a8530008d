"""Tests of the priorities of sequences."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.replay import sequence_priorities


class SequencePrioritiesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(False, True)
  def test_max_and_mean(self, is_graph):
    function = sequence_priorities.sequence_priority
    if is_graph:
      function = tf.function(function)
    steps = tf.constant([[1.0, 2, 3, 6], [0, 0, 0, 0], [5, 5, 5, 5]])
    self.assertAllClose(function(steps), [0.9 * 6 + 0.1 * 3, 0, 5])
    self.assertAllClose(function(steps[0]), 5.7)
    self.assertAllClose(function(steps, max_weight=1.0), [6, 0, 5])
    self.assertAllClose(function(steps, max_weight=0.0), [3, 0, 5])
    self.assertEqual(function(steps).dtype, tf.float64)

  def test_random_steps(self):
    steps = np.random.default_rng(3).exponential(size=(7, 11))
    self.assertAllClose(
        sequence_priorities.sequence_priority(steps),
        0.9 * steps.max(axis=1) + 0.1 * steps.mean(axis=1),
        rtol=1e-12,
    )

  def test_mask(self):
    steps = [[9.0, 2, 4, np.nan], [1, 1, 1, 1]]
    mask = [[False, True, True, False], [False] * 4]
    self.assertAllClose(
        sequence_priorities.sequence_priority(steps, mask=mask),
        [0.9 * 4 + 0.1 * 3, 0],
    )

  def test_max_weight_that_is_none(self):
    for wrong in (-0.1, 1.1, float('nan')):
      with self.assertRaisesRegex(ValueError, 'max_weight must be from 0 to 1'):
        sequence_priorities.sequence_priority([1.0], max_weight=wrong)


if __name__ == '__main__':
  tf.test.main()
