"""Tests of importance weights."""

from absl.testing import parameterized
import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb.replay import importance


def _info(priorities, exponent, chosen=slice(None), steps=None):
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
  chosen = reverb.SampleInfo(*(field[chosen] for field in fields))
  if steps:
    chosen = reverb.SampleInfo(
        *(np.repeat(field[:, None], steps, 1) for field in chosen)
    )
  return tf.nest.map_structure(tf.constant, chosen)


_PRIORITIES = [1, 4, 9, 16]


class ImportanceTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(
      ('batch', dict(), 1.0, [1, 1 / 2, 1 / 3, 1 / 4]),
      ('beta', dict(), 0.5, [1, 2**-0.5, 3**-0.5, 1 / 2]),
      ('no_correction', dict(), 0.0, [1, 1, 1, 1]),
      (
          'table',
          dict(normalization='table', min_priority=1, priority_exponent=0.5),
          1.0,
          [1, 1 / 2, 1 / 3, 1 / 4],
      ),
      ('none', dict(normalization='none'), 1.0, [2.5, 1.25, 1 / 1.2, 0.625]),
  )
  def test_weights(self, settings, beta, expected):
    info = _info(_PRIORITIES, 0.5)
    np.testing.assert_allclose(info.probability, [0.1, 0.2, 0.3, 0.4])
    weights = importance.importance_weights(info, beta, **settings)
    self.assertEqual(weights.dtype, tf.float32)
    self.assertAllClose(weights, expected)
    in_graph = tf.function(importance.importance_weights)
    growing = in_graph(info, tf.constant(beta), **settings)
    self.assertAllClose(growing, expected)

  @parameterized.parameters(('batch', [1, 3 / 4]), ('table', [1 / 3, 1 / 4]))
  def test_batch_without_the_smallest_priority(self, normalization, expected):
    info = _info(_PRIORITIES, 0.5, [2, 3])
    settings = {}
    if normalization == 'table':
      settings = dict(min_priority=1, priority_exponent=0.5)
    weights = importance.importance_weights(
        info, 1.0, normalization=normalization, **settings
    )
    self.assertAllClose(weights, expected)

  def test_items_of_several_steps(self):
    info = _info(_PRIORITIES, 0.5, steps=3)
    weights = importance.importance_weights(info, 1.0)
    self.assertAllClose(
        weights, np.repeat([[1], [1 / 2], [1 / 3], [1 / 4]], 3, 1)
    )

  @parameterized.parameters(False, True)
  def test_all_priorities_are_zero(self, is_graph):
    info = _info(_PRIORITIES, 0.5)._replace(
        priority=tf.zeros(4, tf.float64),
        probability=tf.fill([4], tf.constant(0.25, tf.float64)),
    )
    function = importance.importance_weights
    if is_graph:
      function = tf.function(function)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'priorities of a table are 0'
    ):
      function(info, 1.0)

  @parameterized.parameters(False, True)
  def test_probabilities_that_are_none(self, is_graph):
    info = _info(_PRIORITIES, 0.5)
    function = importance.importance_weights
    if is_graph:
      function = tf.function(function)
    for wrong in (0, -0.1, np.nan):
      probability = tf.constant([0.1, wrong, 0.3, 0.4], tf.float64)
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'probability .* must be above 0'
      ):
        function(info._replace(probability=probability), 1.0)

  @parameterized.parameters(
      (dict(normalization='table'), 'needs min_priority and priority_exponent'),
      (dict(min_priority=1.0), "normalization='batch' has min_priority=1.0"),
      (dict(normalization='max'), "must be one of 'batch', 'table', 'none'"),
  )
  def test_arguments(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      importance.importance_weights(_info(_PRIORITIES, 0.5), 1.0, **settings)


class SequencePrioritiesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(False, True)
  def test_max_and_mean(self, is_graph):
    function = importance.sequence_priority
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
        importance.sequence_priority(steps),
        0.9 * steps.max(axis=1) + 0.1 * steps.mean(axis=1),
        rtol=1e-12,
    )

  def test_mask(self):
    steps = [[9.0, 2, 4, np.nan], [1, 1, 1, 1]]
    mask = [[False, True, True, False], [False] * 4]
    self.assertAllClose(
        importance.sequence_priority(steps, mask=mask),
        [0.9 * 4 + 0.1 * 3, 0],
    )

  def test_max_weight_that_is_none(self):
    for wrong in (-0.1, 1.1, float('nan')):
      with self.assertRaisesRegex(ValueError, 'max_weight must be from 0 to 1'):
        importance.sequence_priority([1.0], max_weight=wrong)


if __name__ == '__main__':
  tf.test.main()
