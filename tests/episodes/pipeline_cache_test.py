"""Tests of pipelines that are kept."""

import gc

import tensorflow as tf

from rlds2reverb.episodes import pipeline_cache
from rlds2reverb.episodes import private

_built = []


@pipeline_cache.cache_pipeline
def _add(inputs, number, function=None):
  dataset, tables = inputs
  _built.append((dataset.element_spec, tables != (), number))
  return dataset.map(
      lambda x: (x if function is None else function(x))
      + number
      + (0 if tables == () else tables['sum'])
  )


class KeptTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    _built.clear()
    pipeline_cache._pipeline.cache_clear()

  def test_builds_once_for_a_spec_and_settings(self):
    for first in (0, 10):
      dataset = tf.data.Dataset.range(first, first + 2)
      for number in (1, 2):
        self.assertAllEqual(
            list(_add((dataset, ()), number)),
            [first + number, first + 1 + number],
        )
    self.assertLen(_built, 2)
    floats = tf.data.Dataset.from_tensors(0.5)
    self.assertAllEqual(list(_add((floats, ()), 1)), [1.5])
    self.assertLen(_built, 3)

  def test_tables_are_those_of_the_call(self):
    for total in (100, 200):
      tables = {'sum': tf.constant(total, tf.int64)}
      self.assertAllEqual(
          list(_add((tf.data.Dataset.range(2), tables), 1)),
          [total + 1, total + 2],
      )
    self.assertLen(_built, 1)

  def test_what_the_data_set_reads_lives_on(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.

    def numbers():
      yield 5

    kept = _add(
        (
            tf.data.Dataset.from_generator(
                numbers, output_signature=tf.TensorSpec([], tf.int32)
            ),
            (),
        ),
        1,
    ).map(lambda x: 2 * x)
    gc.collect()
    self.assertAllEqual(list(kept), [12])

  def test_a_python_function_in_it_lives_on(self):

    @pipeline_cache.cache_pipeline
    def double(dataset):
      twice = lambda x: tf.numpy_function(lambda x: 2 * x, [x], tf.int64)
      return dataset.map(twice)

    for _ in range(2):
      with private.own_default_graph():
        self.assertAllEqual(list(double(tf.data.Dataset.range(2))), [0, 2])
      gc.collect()

  def test_in_a_function(self):

    @tf.function
    def total(end):
      dataset = _add((tf.data.Dataset.range(end), ()), 1)
      return dataset.reduce(tf.constant(0, tf.int64), lambda x, y: x + y)

    self.assertEqual(total(tf.constant(3, tf.int64)), 6)

  def test_an_error_while_building_is_that_of_the_function(self):
    with self.assertRaisesRegex(ZeroDivisionError, 'zero'):
      pipeline_cache.cache_pipeline(lambda *_: 1 / 0)(
          tf.data.Dataset.range(2), None
      )

  def test_with_a_function_of_the_users_it_is_not_kept(self):
    for factor in (2, 3):
      found = _add(
          (tf.data.Dataset.range(2), ()),
          1,
          function=lambda x, by=factor: by * x,
      )
      self.assertAllEqual(list(found), [1, 1 + factor])
    self.assertLen(_built, 2)


if __name__ == '__main__':
  tf.test.main()
