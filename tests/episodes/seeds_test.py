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


class FractionsTest(tf.test.TestCase):

  def test_splitmix64(self):
    # The first number of the reference implementation from the state 0, whose
    # last step these numbers do without.
    first = 0xE220A8397B1DCDAF
    mixed = int(seeds.mix_bits(tf.constant(seeds.GOLDEN, tf.uint64)))
    self.assertEqual(mixed ^ (mixed >> 31), first)
    self.assertAllEqual(seeds.fractions(0), (mixed >> 11) / 2**53)

  def test_by_counters_alone(self):
    rng = np.random.default_rng(0)
    episodes, steps = rng.integers(0, 1000, [2, 50])
    found = seeds.fractions(7, episodes, steps)
    self.assertEqual(found.dtype, tf.float64)
    for row in (0, 17, 49):
      alone = seeds.fractions(7, episodes[row : row + 1], steps[row : row + 1])
      self.assertAllEqual(alone, found[row : row + 1])
    self.assertAllEqual(tf.function(seeds.fractions)(7, episodes, steps), found)

  def test_uniform_and_independent(self):
    grid = np.meshgrid(np.arange(200), np.arange(50), indexing='ij')
    one, other = (seeds.fractions(seed, *grid).numpy() for seed in (-1, 2**70))
    self.assertAllInRange(one, 0, 1)
    self.assertLen(np.unique(np.stack([one, other])), 20_000)
    # The mean of n numbers has the deviation sqrt(1 / 12 / n).
    for numbers in (one, other, one[0], one[:, 0]):
      bound = 5 * np.sqrt(1 / 12 / numbers.size)
      self.assertAllClose(numbers.mean(), 0.5, 0, bound)
    for first, second in (
        (one[:, 1:], one[:, :-1]),
        (one[1:], one[:-1]),
        (one, other),
        (one[:50], one[:50].T),
    ):
      correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
      self.assertLess(abs(correlation), 5 / np.sqrt(first.size))


if __name__ == '__main__':
  tf.test.main()
