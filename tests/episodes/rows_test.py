"""Tests of gathering, slicing and filling rows."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import rows as rows_lib


def _rows():
  return {
      'number': tf.range(4) + 10,
      'pair': (tf.constant([[1.0, 2], [3, 4], [5, 6], [7, 8]]),),
      'text': tf.constant(['a', 'b', 'c', 'd']),
  }


class RowsTest(tf.test.TestCase, parameterized.TestCase):

  def check(self, rows, number, pair, text):
    self.assertAllEqual(rows['number'], number)
    self.assertAllEqual(rows['pair'][0], pair)
    self.assertAllEqual(rows['text'], [value.encode() for value in text])

  @parameterized.parameters(False, True)
  def test_slices_and_concatenation(self, in_graph):
    run = tf.function if in_graph else lambda function: function
    for function in (rows_lib.copy_rows, rows_lib.slice_rows):
      part = run(function)(_rows(), tf.constant(1), tf.constant(3))
      self.check(part, [11, 12], [[3, 4], [5, 6]], 'bc')
    both = run(rows_lib.concat_rows)(part, part)
    self.check(both, [11, 12] * 2, [[3, 4], [5, 6]] * 2, 'bcbc')
    self.assertEqual(rows_lib.num_rows(both), 4)
    with self.assertRaisesRegex(ValueError, 'must have a field'):
      rows_lib.num_rows(())

  def test_copies_do_not_share_memory(self):
    data = tf.data.Dataset.from_generator(
        lambda: iter([source] * 2),
        output_signature=tf.TensorSpec([3], tf.float32),
    )
    source = np.array([1, 2, 3], np.float32)
    for part in data.map(lambda leaf: rows_lib.copy_rows(leaf, 0, 2) * 2.0):
      self.assertAllEqual(part, [2, 4])
    self.assertAllEqual(source, [1, 2, 3])

  @parameterized.parameters(False, True)
  def test_rows_outside_of_a_range_are_filled(self, in_graph):
    run = tf.function if in_graph else lambda function: function
    index = tf.constant([[-1, 0], [2, 3]])
    fill = lambda before, after: run(
        lambda: rows_lib.take_filled(
            _rows()['number'], index, 3, before=before, after=after
        )
    )()
    self.assertAllEqual(fill('zeros', 'zeros'), [[0, 10], [12, 0]])
    self.assertAllEqual(fill('repeat', 'repeat'), [[10, 10], [12, 12]])
    self.assertAllEqual(fill('repeat', 7), [[10, 10], [12, 7]])
    self.assertAllEqual(fill(-5, 'repeat'), [[-5, 10], [12, 12]])
    self.assertAllEqual(fill(6, 7), [[6, 10], [12, 7]])
    taken = run(lambda: rows_lib.take_filled(_rows(), index, 3, start=1))()
    self.assertAllEqual(taken['number'], [[0, 0], [12, 0]])
    self.assertAllEqual(taken['pair'][0], [[[0, 0], [0, 0]], [[5, 6], [0, 0]]])
    self.assertAllEqual(taken['text'], [[b'', b''], [b'c', b'']])

  @parameterized.parameters(
      (tf.uint8, 256),
      (tf.uint8, -1),
      (tf.int32, 0.5),
      (tf.bool, 2),
      (tf.float16, 1e6),
      (tf.int64, float('inf')),
  )
  def test_numbers_that_a_dtype_cannot_hold(self, dtype, value):
    with self.assertRaisesRegex(ValueError, f'{dtype.name}, which cannot hold'):
      rows_lib.fill_unless(tf.constant([True]), tf.zeros([1], dtype), value)

  def test_expand_to_rank_and_swap_time(self):
    pair = _rows()['pair'][0]
    column = rows_lib.expand_to_rank(tf.constant([1, 2, 3, 4]), pair)
    self.assertAllEqual(column, [[1], [2], [3], [4]])
    swapped = rows_lib.swap_time({'x': tf.reshape(tf.range(6), [2, 3, 1])})
    self.assertAllEqual(swapped['x'][..., 0], [[0, 3], [1, 4], [2, 5]])


if __name__ == '__main__':
  tf.test.main()
