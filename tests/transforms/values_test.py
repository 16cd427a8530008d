"""Tests of the numbers of vectors."""

import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import values


class ValuesTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self.steps = {'a': {'x': np.arange(6.0).reshape(2, 3), 'n': np.arange(2)}}

  def test_take_and_replace(self):
    self.assertAllEqual(values.take(self.steps, 'a/x', 1, 2), [[1, 2], [4, 5]])
    new = tf.constant([[7], [8]])
    found = values.replace(self.steps, 'a/x', 1, 2, new)['a']
    self.assertAllEqual(found['x'], [[0, 7], [3, 8]])
    self.assertEqual(found['x'].dtype, tf.float64)
    self.assertAllEqual(found['n'], [0, 1])

  def test_one_number(self):
    found = values.map_one(lambda x: -x, self.steps, 'a/x', -2)['a']['x']
    self.assertAllEqual(found, [[0, -1, 2], [3, -4, 5]])
    one = values.map_one(lambda x: -x, {'g': tf.ones([4])}, 'g', None)
    self.assertAllEqual(one['g'], [-1] * 4)

  def test_errors(self):
    for path, message in (
        ('a/n', 'a/n must be floats, but is int64'),
        ('a', 'a must be one leaf, but has several: .*n.*x'),
        ('a/y', 'no field a/y'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        values.floats(self.steps, path)
    with self.assertRaisesRegex(ValueError, 'a/x has 3 .*, but 2 are needed'):
      values.take(self.steps, 'a/x', 2, 2)
    with self.assertRaisesRegex(ValueError, 'with index=0.*Cut chunks later'):
      values.map_one(tf.abs, self.steps, 'a/x', 0, num_leading=2)

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def unknown(leaf):
      return values.vector({'x': leaf}, 'x')

    with self.assertRaisesRegex(ValueError, 'last axis of known size'):
      unknown.get_concrete_function()


if __name__ == '__main__':
  tf.test.main()
