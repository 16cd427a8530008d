"""Tests of the stages of pipelines, against those of tf.data."""

import collections
import gc

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb.episodes import graphs

_Pair = collections.namedtuple('_Pair', 'number text')
_ZERO = tf.constant(0, tf.int64)
_map, _flat_map, _scan = graphs.map_elements, graphs.flat_map, graphs.scan
_Data = tf.data.Dataset


def _elements():
  return _Data.from_tensor_slices(
      {'a': _Pair([1, 2, 3], ['x', 'y', 'z']), 'b': ([0.5, 1.5, 2.5],)}
  )


def _change(element):
  number = element['a'].number
  # What a function captures is an argument.
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
  return graphs.with_each(_Data.range(n), (n, 'x'))


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
  def test_as_in_tf_data(self, make, stage, name, arguments):
    data = make()
    found = stage(data, *arguments)
    expected = getattr(data, name)(*arguments)
    self.assertEqual(found.element_spec, expected.element_spec)
    self.assertAllEqual(found.cardinality(), expected.cardinality())
    for _ in range(2):  # Each pass is the same.
      one, other = (list(x.as_numpy_iterator()) for x in (found, expected))
      self.assertEqual(repr(one), repr(other))

  def test_a_state_that_grows(self):
    def grow(state, element):
      state = tf.concat([state, [element]], 0)
      return state, (tf.reduce_sum(state), state[-2:])

    nothing = tf.zeros([0], tf.int64)
    spec = tf.TensorSpec([None], tf.int64)
    found = _scan(_Data.range(4), nothing, grow, spec).as_numpy_iterator()
    self.assertEqual(
        [(total, last.tolist()) for total, last in found],
        [(0, [0]), (1, [0, 1]), (3, [1, 2]), (6, [2, 3])],
    )

  def test_errors_come_in_their_place(self):
    check = lambda n: graphs.asserted(n, n < 2, 'Too large:', n)
    iterator = iter(_map(_Data.range(3), check))
    self.assertEqual([int(next(iterator)), int(next(iterator))], [0, 1])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Too large'):
      next(iterator)

  def test_a_generator_lives_as_long_as_what_is_made_of_it(self):
    def made():
      source = _Data.from_generator(
          lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)
      )
      return _map(source, lambda n: 2 * n)

    data = made()
    gc.collect()
    self.assertAllEqual(list(data.as_numpy_iterator()), [0, 2, 4])

  def test_in_the_graph_of_a_function(self):
    @tf.function
    def total(offset):
      data = _map(_Data.range(3), lambda n: n + offset)
      return data.reduce(_ZERO, lambda one, other: one + other)

    self.assertAllEqual(total(tf.constant(5, tf.int64)), 18)


if __name__ == '__main__':
  tf.test.main()
