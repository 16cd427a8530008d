"""Tests of importance weights."""

import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.replay import priorities

_INFO = reverb.SampleInfo(
    key=tf.range(4),
    probability=tf.constant([0.1, 0.2, 0.3, 0.4]),
    table_size=tf.fill([4], 4),
    priority=tf.constant([1.0, 4.0, 9.0, 16.0]),
    times_sampled=tf.ones([4], tf.int32),
)
_RUNS = (lambda function: function, tf.function)


class ImportanceTest(tf.test.TestCase):
  """Weights themselves are in `contract_test`."""

  def test_invalid_priorities_and_settings_raise(self):
    for field, invalid, message in (
        ('priority', 0, 'priorities of a table are 0'),
        ('probability', -0.1, 'probability .* must be above 0'),
        ('probability', np.nan, 'probability .* must be above 0'),
    ):
      values = tf.constant([0.1, invalid, 0.3, 0.4], tf.float64)
      for run in _RUNS:
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
          run(priorities.importance_weights)(
              _INFO._replace(**{field: values}), 1.0
          )
    for settings, message in (
        ({'normalization': 'table'}, 'needs min_priority and priority_expon'),
        ({'min_priority': 1.0}, "normalization='batch' has min_priority=1.0"),
        ({'normalization': 'max'}, "must be one of 'batch', 'table', 'none'"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        priorities.importance_weights(_INFO, 1.0, **settings)

    with self.assertRaisesRegex(ValueError, 'must have one shape'):
      priorities.importance_weights(_INFO._replace(priority=[1.0, 2.0]), 1.0)

  def test_graphs_and_eager_calls_agree_on_zeros(self):
    table = {'normalization': 'table', 'priority_exponent': 0.5}
    for info, settings, expected in (
        (_INFO, {**table, 'min_priority': 0.0}, [0.0] * 4),
        (_INFO, {**table, 'min_priority': 4.0}, [2, 1, 2 / 3, 0.5]),
        (
            _INFO._replace(table_size=tf.constant([0, 4, 4, 4])),
            {'normalization': 'none'},
            [np.inf, 1 / 0.8, 1 / 1.2, 1 / 1.6],
        ),
        (_INFO, {}, [1, 1 / 2, 1 / 3, 1 / 4]),
    ):
      for run in _RUNS:
        weights = run(priorities.importance_weights)(info, 1.0, **settings)
        self.assertAllClose(weights, expected)


class SequencePrioritiesTest(tf.test.TestCase):

  def test_max_and_mean(self):
    steps = tf.constant([[1.0, 2, 3, 6], [0, 0, 0, 0], [5, 5, 5, 5]])
    for run in _RUNS:
      function = run(priorities.sequence_priority)
      self.assertAllClose(function(steps), [0.9 * 6 + 0.1 * 3, 0, 5])
      self.assertAllClose(function(steps[0], max_weight=0.0), 3)
      self.assertEqual(function(steps).dtype, tf.float64)
    steps = [[9.0, 2, 4, np.nan], [1, 1, 1, 1]]
    mask = [[False, True, True, False], [False] * 4]
    masked = priorities.sequence_priority(steps, mask=mask)
    self.assertAllClose(masked, [0.9 * 4 + 0.1 * 3, 0])
    for invalid in (-0.1, 1.1, float('nan')):
      with self.assertRaisesRegex(ValueError, 'max_weight must be from 0 to 1'):
        priorities.sequence_priority([1.0], max_weight=invalid)


if __name__ == '__main__':
  tf.test.main()
