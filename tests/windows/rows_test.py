"""Tests of rows as they are given, and of the columns added to them."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.windows import rows as rows_lib

_Pair = collections.namedtuple('_Pair', ['a', 'b'])


class ToTensorsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ([1, 2, 3], tf.int32),
      (range(1, 4), tf.int32),
      ([1.5, 2, 3], tf.float32),
      ([True, False, True], tf.bool),
      (['a', b'b', 'c'], tf.string),
      ([[1, 2], [3, 4], [5, 6]], tf.int32),
      (np.arange(3, dtype=np.uint16), tf.uint16),
      (np.array(['a', 'b', 'c']), tf.string),
      (tf.range(3, dtype=tf.int64), tf.int64),
  )
  def test_a_leaf(self, leaf, dtype):
    expected = tf.constant(list(leaf)) if isinstance(leaf, range) else leaf
    to_tensors = lambda: rows_lib.to_tensors(rows=leaf, other=((leaf,), ()))
    in_map = tf.data.Dataset.range(1).map(lambda _: to_tensors())
    for found in (to_tensors(), in_map.get_single_element()):
      self.assertEqual(found['other'][1], ())
      for column in (found['rows'], found['other'][0][0]):
        self.assertIsInstance(column, tf.Tensor)
        self.assertEqual(column.dtype, dtype)
        self.assertAllEqual(column, tf.constant(expected))

  def test_nests_keep_their_structure(self):
    nest = {'x': _Pair([1, 2], (np.zeros([2, 3]), [np.ones([2]), [3, 4]]))}
    found = rows_lib.to_tensors(rows=nest)['rows']
    tf.nest.assert_same_structure(
        found, {'x': _Pair(0, (0, [0, 0]))}, check_types=True
    )
    self.assertAllEqual(found['x'].b[1][1], [3, 4])

  def test_no_rows_and_no_fields(self):
    self.assertEqual(
        rows_lib.to_tensors(rows={}, states=()), {'rows': {}, 'states': ()}
    )
    self.assertEqual(
        rows_lib.to_tensors(rows=np.zeros([0, 2]))['rows'].shape, [0, 2]
    )

  def test_different_numbers(self):
    with self.assertRaisesRegex(
        ValueError, 'ids has 2, rows/0/a has 3, rows/1 has 3'
    ):
      rows_lib.to_tensors(rows=({'a': [1, 2, 3]}, tf.zeros([3])), ids=[1, 1])
    with self.assertRaisesRegex(ValueError, 'rows/a is one value'):
      rows_lib.to_tensors(rows={'a': 3})

  def test_different_numbers_that_are_known_later(self):
    given = [tf.zeros([3]), tf.zeros([3, 1]), tf.zeros([2])]
    data = tf.data.Dataset.from_generator(
        lambda: [(given[0], given[1]), (given[0], given[2])],
        output_signature=(
            tf.TensorSpec([None]),
            tf.TensorSpec(None, tf.float32),
        ),
    ).map(lambda a, b: rows_lib.to_tensors(a=a, b=b)['a'])
    results = iter(data)
    self.assertAllEqual(next(results), given[0])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, r'(?s)Rows must be.*a.*3.*b.*2'
    ):
      next(results)


class AddColumnsTest(tf.test.TestCase):

  def test_a_column_is_never_replaced(self):
    columns = {'a': 1}
    self.assertEqual(
        rows_lib.add_columns(columns, {'b': 2, 'c': 3}),
        {'a': 1, 'b': 2, 'c': 3},
    )
    with self.assertRaisesRegex(
        ValueError, r"field 'a' already.*RenameFields\({'a': \.\.\.}\)"
    ):
      rows_lib.add_columns(columns, {'a': 3})
    self.assertEqual(columns, {'a': 1})

  def test_other_names(self):
    self.assertEqual(
        rows_lib.add_columns({'a': 1}, {'a': 2, 'b': 3}, {'a': 'x'}),
        {'a': 1, 'x': 2, 'b': 3},
    )
    with self.assertRaisesRegex(ValueError, "field 'a' already.*names={'b'"):
      rows_lib.add_columns({'a': 1}, {'b': 2}, {'b': 'a'})
    with self.assertRaisesRegex(ValueError, 'Did you mean mask'):
      rows_lib.add_columns({'a': 1}, {'mask': 2}, {'masks': 'b'})


if __name__ == '__main__':
  tf.test.main()
