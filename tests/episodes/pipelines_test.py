"""Tests that pipeline stages are equal to tf.data, and of caching."""

import collections
import gc

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import tf_private

_Pair = collections.namedtuple('_Pair', 'number text')
_ZERO = tf.constant(0, tf.int64)
_map, _flat_map, _scan = (
    pipelines.map_elements,
    pipelines.flat_map,
    pipelines.scan,
)
_Data = tf.data.Dataset


def _elements():
  return _Data.from_tensor_slices(
      {'a': _Pair([1, 2, 3], ['x', 'y', 'z']), 'b': ([0.5, 1.5, 2.5],)}
  )


def _change(element):
  number = element['a'].number
  # A captured tensor becomes an argument.
  larger = tf.cond(
      number > 1, lambda: number + tf.cast(_ZERO, tf.int32), lambda: -number
  )
  return {'c': (larger, element['b']), 'd': 1, 'e': ()}


def _pairs():
  return _Data.from_tensor_slices(([1, 2], [3, 4]))


def _some():
  # Of how many elements there are, `scan` of tf.data alone keeps count.
  return _Data.range(5).filter(lambda n: n > 1)


def _nested():
  return _Data.range(1, 4).map(lambda n: {'steps': _Data.range(n)})


def _count(element):
  return element['steps'].reduce(_ZERO, lambda n, _: n + 1)


def _ragged():
  return _Data.range(1, 6).map(tf.range).ragged_batch(2)


def _make_ragged(n):
  return tf.RaggedTensor.from_row_lengths(tf.range(n), tf.stack([n, 0]))


def _step(state, row):
  return state + 1, {'row': row, 'place': state + 0}


def _separate(n):
  return pipelines.pair_each(_Data.range(n), (n, 'x'))


def _twice(row):
  return _Data.from_tensors(row).repeat(2)


class StagesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      ('map', _elements, _map, 'map', (_change,)),
      ('parallel', _elements, _map, 'map', (_change, 2)),
      ('tuples', _pairs, _map, 'map', (lambda a, b: _Pair(b, a),)),
      (
          'named_tuples',
          lambda: _pairs().map(_Pair),
          _map,
          'map',
          (lambda pair: pair.number,),
      ),
      ('nested', _nested, _map, 'map', (_count,)),
      (
          'ragged',
          _ragged,
          _map,
          'map',
          (lambda rows: tf.reduce_sum(rows, axis=1),),
      ),
      ('to_ragged', lambda: _Data.range(3), _map, 'map', (_make_ragged,)),
      ('scan', _some, _scan, 'scan', (_ZERO, _step)),
      ('scan_ragged', _ragged, _scan, 'scan', (_ZERO, _step)),
      ('flat_map', lambda: _Data.range(4), _flat_map, 'flat_map', (_separate,)),
      ('flat_map_ragged', _ragged, _flat_map, 'flat_map', (_twice,)),
  )
  def test_stages_equal_tf_data(self, make, stage, name, arguments):
    data = make()
    actual = stage(data, *arguments)
    expected = getattr(data, name)(*arguments)
    self.assertEqual(actual.element_spec, expected.element_spec)
    self.assertAllEqual(actual.cardinality(), expected.cardinality())
    for _ in range(2):  # Each pass is the same.
      one, other = (list(x.as_numpy_iterator()) for x in (actual, expected))
      self.assertEqual(repr(one), repr(other))

  def test_a_state_that_grows(self):
    def grow(state, element):
      state = tf.concat([state, [element]], 0)
      return state, (tf.reduce_sum(state), state[-2:])

    nothing = tf.zeros([0], tf.int64)
    spec = tf.TensorSpec([None], tf.int64)
    actual = _scan(_Data.range(4), nothing, grow, spec).as_numpy_iterator()
    self.assertEqual(
        [(total, last.tolist()) for total, last in actual],
        [(0, [0]), (1, [0, 1]), (3, [1, 2]), (6, [2, 3])],
    )

  def test_errors_are_raised_at_their_element(self):
    check = lambda n: errors.assert_true(n, n < 2, 'Too large:', n)
    iterator = iter(_map(_Data.range(3), check))
    self.assertEqual([int(next(iterator)), int(next(iterator))], [0, 1])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Too large'):
      next(iterator)

  def test_generator_lives_as_long_as_derived_data_set(self):
    def made():
      source = _Data.from_generator(
          lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)
      )
      return _map(source, lambda n: 2 * n)

    data = made()
    gc.collect()
    self.assertAllEqual(list(data.as_numpy_iterator()), [0, 2, 4])

  def test_map_inside_tf_function(self):
    @tf.function
    def total(offset):
      data = _map(_Data.range(3), lambda n: n + offset)
      return data.reduce(_ZERO, lambda one, other: one + other)

    self.assertAllEqual(total(tf.constant(5, tf.int64)), 18)


class AssertedTest(parameterized.TestCase, tf.test.TestCase):

  def test_eager_error_message_is_given_text(self):
    check = lambda fine: errors.assert_true(
        tf.constant(1), fine, 'Lengths are', tf.constant([2, 3]), 'of', b'x'
    )
    self.assertAllEqual(check(tf.constant(True)), 1)
    for is_fine in tf.constant(False), False:
      with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
        check(is_fine)
      self.assertEqual(str(caught.exception).strip(), 'Lengths are [2 3] of x')

  def test_graph_error_message_begins_with_given_text(self):
    @tf.function
    def check(number):
      return errors.assert_true(number, number > 1, 'The number is', number)

    self.assertAllEqual(check(tf.constant(2)), 2)
    data = _Data.range(1).map(check)
    for call in lambda: check(tf.constant(1)), lambda: list(data):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, r'assertion failed: \[The number is\]'
      ):
        call()


_built = []


@pipelines.cache_pipeline
def _add(inputs, number, function=None):
  dataset, tables = inputs
  _built.append((dataset.element_spec, tables != (), number))
  return dataset.map(
      lambda x: (x if function is None else function(x))
      + number
      + (0 if tables == () else tables['sum'])
  )


class CachePipelineTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    _built.clear()
    pipelines._cached_pipeline.cache_clear()

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

  def test_cached_pipeline_uses_tables_of_each_call(self):
    for total in (100, 200):
      tables = {'sum': tf.constant(total, tf.int64)}
      self.assertAllEqual(
          list(_add((tf.data.Dataset.range(2), tables), 1)),
          [total + 1, total + 2],
      )
    self.assertLen(_built, 1)

  def test_cached_pipeline_keeps_source_generator_alive(self):
    gc.freeze()  # Garbage of other tests would take half a minute to collect.

    def numbers():
      yield 5

    dataset = _add(
        (
            tf.data.Dataset.from_generator(
                numbers, output_signature=tf.TensorSpec([], tf.int32)
            ),
            (),
        ),
        1,
    ).map(lambda x: 2 * x)
    gc.collect()
    self.assertAllEqual(list(dataset), [12])

  def test_cached_pipeline_keeps_python_functions_alive(self):

    @pipelines.cache_pipeline
    def double(dataset):
      twice = lambda x: tf.numpy_function(lambda x: 2 * x, [x], tf.int64)
      return dataset.map(twice)

    for _ in range(2):
      with tf_private.temporary_default_graph():
        self.assertAllEqual(list(double(tf.data.Dataset.range(2))), [0, 2])
      gc.collect()

  def test_cached_pipeline_inside_tf_function(self):

    @tf.function
    def total(end):
      dataset = _add((tf.data.Dataset.range(end), ()), 1)
      return dataset.reduce(tf.constant(0, tf.int64), lambda x, y: x + y)

    self.assertEqual(total(tf.constant(3, tf.int64)), 6)

  def test_error_while_building_is_propagated(self):
    with self.assertRaisesRegex(ZeroDivisionError, 'zero'):
      pipelines.cache_pipeline(lambda *_: 1 / 0)(tf.data.Dataset.range(2), None)

  def test_pipelines_with_user_functions_are_not_cached(self):
    for factor in (2, 3):
      actual = _add(
          (tf.data.Dataset.range(2), ()),
          1,
          function=lambda x, by=factor: by * x,
      )
      self.assertAllEqual(list(actual), [1, 1 + factor])
    self.assertLen(_built, 2)


if __name__ == '__main__':
  tf.test.main()
