"""Tests of the stages of pipelines, against those of tf.data."""

import collections
import gc

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb.episodes import graphs

_Pair = collections.namedtuple('_Pair', 'number text')


def _elements():
  return tf.data.Dataset.from_tensor_slices(
      {'a': _Pair([1, 2, 3], ['x', 'y', 'z']), 'b': ([0.5, 1.5, 2.5],)}
  )


def _grow(state, element):
  state = tf.concat([state, [element]], 0)
  return state, (tf.reduce_sum(state), state[-2:])


class StagesTest(tf.test.TestCase, parameterized.TestCase):

  def _assert_same(self, found, expected):
    self.assertEqual(found.element_spec, expected.element_spec)
    self.assertAllEqual(found.cardinality(), expected.cardinality())
    for _ in range(2):  # Each pass is the same.
      one, other = (list(x.as_numpy_iterator()) for x in (found, expected))
      self.assertEqual(repr(one), repr(other))

  @parameterized.parameters(None, 2, tf.data.AUTOTUNE)
  def test_map(self, num_parallel_calls):
    offset = tf.constant(10)  # What a function captures is an argument.

    def function(element):
      pair = element['a']
      larger = tf.cond(
          pair.number > 1, lambda: pair.number + offset, lambda: pair.number
      )
      return {'c': (larger, element['b']), 'd': 1, 'e': ()}

    self._assert_same(
        graphs.map_elements(_elements(), function, num_parallel_calls),
        _elements().map(function),
    )

  def test_tuples_are_arguments_and_named_tuples_are_not(self):
    pairs = tf.data.Dataset.from_tensor_slices(([1, 2], [3, 4]))
    self._assert_same(
        graphs.map_elements(pairs, lambda a, b: _Pair(b, a)),
        pairs.map(lambda a, b: _Pair(b, a)),
    )
    named = pairs.map(_Pair)
    self._assert_same(
        graphs.map_elements(named, lambda pair: pair.number),
        named.map(lambda pair: pair.number),
    )

  def test_elements_with_nested_data_sets_and_ragged_tensors(self):
    numbers = tf.data.Dataset.range(1, 4)
    nested = numbers.map(lambda n: {'steps': tf.data.Dataset.range(n)})
    count = lambda element: element['steps'].reduce(_zero(), lambda n, _: n + 1)
    self._assert_same(graphs.map_elements(nested, count), nested.map(count))
    ragged = numbers.map(tf.range).ragged_batch(2)
    total = lambda rows: tf.reduce_sum(rows, axis=1)
    self._assert_same(graphs.map_elements(ragged, total), ragged.map(total))

  def test_ragged_elements_pass_every_stage(self):
    rows = tf.data.Dataset.range(1, 6).map(tf.range).ragged_batch(2)
    plain = tf.data.Dataset.range(3)
    make = lambda n: tf.RaggedTensor.from_row_lengths(
        tf.range(n), tf.stack([n, 0])
    )
    self._assert_same(graphs.map_elements(plain, make), plain.map(make))
    step = lambda state, row: (state + 1, {'row': row, 'place': state})
    self._assert_same(
        graphs.scan(rows, _zero(), step), rows.scan(_zero(), step)
    )
    twice = lambda row: tf.data.Dataset.from_tensors(row).repeat(2)
    self._assert_same(graphs.flat_map(rows, twice), rows.flat_map(twice))

  def test_flat_map(self):
    numbers = tf.data.Dataset.range(4)
    separate = lambda n: graphs.with_each(tf.data.Dataset.range(n), (n, 'x'))
    self._assert_same(
        graphs.flat_map(numbers, separate), numbers.flat_map(separate)
    )

  def test_a_state_that_grows(self):
    numbers = tf.data.Dataset.range(4)
    nothing = tf.zeros([0], tf.int64)
    found = graphs.scan(
        numbers, nothing, _grow, tf.TensorSpec([None], tf.int64)
    )
    self.assertAllEqual(
        [(total, last.tolist()) for total, last in found.as_numpy_iterator()],
        [(0, [0]), (1, [0, 1]), (3, [1, 2]), (6, [2, 3])],
    )

  def test_errors_come_in_their_place(self):
    def check(n):
      return graphs.asserted(n, n < 2, 'Too large:', n)

    iterator = iter(graphs.map_elements(tf.data.Dataset.range(3), check))
    self.assertEqual([int(next(iterator)), int(next(iterator))], [0, 1])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Too large'):
      next(iterator)

  def test_a_generator_lives_as_long_as_what_is_made_of_it(self):
    def made():
      source = tf.data.Dataset.from_generator(
          lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)
      )
      return graphs.map_elements(source, lambda n: 2 * n)

    data = made()
    gc.collect()
    self.assertAllEqual(list(data.as_numpy_iterator()), [0, 2, 4])

  def test_in_the_graph_of_a_function(self):
    @tf.function
    def total(offset):
      data = graphs.map_elements(tf.data.Dataset.range(3), lambda n: n + offset)
      return data.reduce(_zero(), lambda one, other: one + other)

    self.assertAllEqual(total(tf.constant(5, tf.int64)), 18)


def _zero():
  return tf.constant(0, tf.int64)


if __name__ == '__main__':
  tf.test.main()
