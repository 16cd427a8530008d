"""Tests of importance weights."""

from absl.testing import parameterized
import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.replay import importance


def _info(priorities, exponent, chosen=slice(None)):
  """What Reverb says of items of a table with these priorities."""
  priorities = np.array(priorities, np.float64)
  powers = priorities**exponent
  fields = reverb.SampleInfo(
      key=np.arange(len(priorities), dtype=np.uint64),
      probability=powers / powers.sum(),
      table_size=np.full(len(priorities), len(priorities)),
      priority=priorities,
      times_sampled=np.ones(len(priorities), np.int32),
  )
  return tf.nest.map_structure(lambda each: tf.constant(each[chosen]), fields)


_PRIORITIES = [1, 4, 9, 16]
_RUNS = (lambda function: function, tf.function)
_TABLE = dict(normalization='table', min_priority=1, priority_exponent=0.5)


class ImportanceTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ({}, 1.0, slice(None), [1, 1 / 2, 1 / 3, 1 / 4]),
      ({}, 0.5, slice(None), [1, 2**-0.5, 3**-0.5, 1 / 2]),
      ({}, 0.0, slice(None), [1, 1, 1, 1]),
      ({}, 1.0, slice(2, 4), [1, 3 / 4]),
      (_TABLE, 1.0, slice(2, 4), [1 / 3, 1 / 4]),
      (dict(normalization='none'), 1.0, slice(4), [2.5, 1.25, 1 / 1.2, 0.625]),
  )
  def test_weights(self, settings, beta, chosen, expected):
    info = _info(_PRIORITIES, 0.5, chosen)
    for run in _RUNS:
      function = run(importance.importance_weights)
      weights = function(info, tf.constant(beta), **settings)
      self.assertEqual(weights.dtype, tf.float32)
      self.assertAllClose(weights, expected)

  def test_what_is_refused(self):
    info = _info(_PRIORITIES, 0.5)
    for field, wrong, message in (
        ('priority', 0, 'priorities of a table are 0'),
        ('probability', -0.1, 'probability .* must be above 0'),
        ('probability', np.nan, 'probability .* must be above 0'),
    ):
      values = tf.constant([0.1, wrong, 0.3, 0.4], tf.float64)
      for run in _RUNS:
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
          run(importance.importance_weights)(
              info._replace(**{field: values}), 1.0
          )
    for settings, message in (
        ({'normalization': 'table'}, 'needs min_priority and priority_expon'),
        ({'min_priority': 1.0}, "normalization='batch' has min_priority=1.0"),
        ({'normalization': 'max'}, "must be one of 'batch', 'table', 'none'"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        importance.importance_weights(info, 1.0, **settings)


class SequencePrioritiesTest(tf.test.TestCase):

  def test_max_and_mean(self):
    steps = tf.constant([[1.0, 2, 3, 6], [0, 0, 0, 0], [5, 5, 5, 5]])
    for run in _RUNS:
      function = run(importance.sequence_priority)
      self.assertAllClose(function(steps), [0.9 * 6 + 0.1 * 3, 0, 5])
      self.assertAllClose(function(steps[0], max_weight=0.0), 3)
      self.assertEqual(function(steps).dtype, tf.float64)
    steps = [[9.0, 2, 4, np.nan], [1, 1, 1, 1]]
    mask = [[False, True, True, False], [False] * 4]
    masked = importance.sequence_priority(steps, mask=mask)
    self.assertAllClose(masked, [0.9 * 4 + 0.1 * 3, 0])
    for wrong in (-0.1, 1.1, float('nan')):
      with self.assertRaisesRegex(ValueError, 'max_weight must be from 0 to 1'):
        importance.sequence_priority([1.0], max_weight=wrong)


if __name__ == '__main__':
  tf.test.main()
