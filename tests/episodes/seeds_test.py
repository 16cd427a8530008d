"""Tests of seeds."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import seeds


class ToPairTest(tf.test.TestCase):

  def test_integers_and_pairs(self):
    for seed, expected in (
        (7, [7, 0]),
        (np.int32(7), [7, 0]),
        (tf.constant(7, tf.uint8), [7, 0]),
        ((7, 3), [7, 3]),
        ([7, np.int64(3)], [7, 3]),
        ((7, tf.constant(3)), [7, 3]),
        (np.array([7, 3], np.uint16), [7, 3]),
        (tf.constant([7, 3]), [7, 3]),
    ):
      pair = seeds.to_pair(seed)
      self.assertEqual(pair.dtype, tf.int64)
      self.assertAllEqual(pair, expected)

  def test_in_map(self):
    pairs = tf.data.Dataset.range(3).map(
        lambda index: seeds.to_pair((7, index))
    )
    self.assertAllEqual(list(pairs), [[7, 0], [7, 1], [7, 2]])
    self.assertEqual(pairs.element_spec, tf.TensorSpec([2], tf.int64))
    alone = tf.data.Dataset.range(3).map(seeds.to_pair)
    self.assertAllEqual(list(alone), [[0, 0], [1, 0], [2, 0]])

  def test_others(self):
    for seed in (0.5, True, 'x', (1, 2, 3), (1, 0.5), (), [[1, 2]], None):
      with self.subTest(str(seed)), self.assertRaisesRegex(
          ValueError, 'seed must be an integer or two'
      ):
        seeds.to_pair(seed)


if __name__ == '__main__':
  tf.test.main()
