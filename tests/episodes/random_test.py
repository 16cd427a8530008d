"""Tests of seeds and of random numbers, in NumPy and in graphs."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import random as random_lib
from rlds2reverb.store import samplers

_MASK = 2**64 - 1


def _split_mix(state):
  """One number of SplitMix64, as its authors write it, in Python."""
  z = state & _MASK
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
  return z ^ (z >> 31)


class DrawsTest(parameterized.TestCase):

  def test_fractions_equal_split_mix(self):
    # The first number of the reference implementation.
    self.assertEqual(_split_mix(random_lib.GOLDEN), 0xE220A8397B1DCDAF)
    [seed] = random_lib.spawn_seeds(7, 1)
    actual = samplers.draw_fractions(seed, 200, 5)
    expected = [
        (_split_mix(int(seed) + (1001 + place) * random_lib.GOLDEN) >> 11)
        / 2**53
        for place in range(5)
    ]
    self.assertEqual(list(actual), expected)
    self.assertEqual(
        list(samplers.draw_fractions(seed, 1003, 1)), expected[3:4]
    )
    keys = [(), (0,), (1,)]
    some = [
        random_lib.spawn_seeds(one, 2, *key) for one in (0, 1) for key in keys
    ]
    self.assertLen(set(np.concatenate(some).tolist()), 12)

  def test_below_and_search_are_never_the_limit(self):
    limits = np.array([1, 3, 2**31 + 1, 2**53 - 1, 2**53 + 2])
    almost = np.full(len(limits), np.nextafter(1, 0))
    actual = random_lib.integers_below(almost, limits)
    self.assertTrue((actual < limits).all())
    self.assertTrue((actual >= limits - 2).all())
    sums = np.cumsum([0, 1, 0, 3, 0]).astype(np.float64)
    actual = random_lib.search_weights(
        sums, np.array([0, 0.2, 0.25, 0.9, almost[0]])
    )
    self.assertEqual(actual.tolist(), [1, 1, 3, 3, 3])


class SeedsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(
      (7, [7, 0]),
      (np.int32(7), [7, 0]),
      ((7, 3), [7, 3]),
      ([7, np.int64(3)], [7, 3]),
      (np.array([7, 3], np.uint16), [7, 3]),
  )
  def test_pairs(self, seed, expected):
    for given in (seed, tf.constant(seed)):
      pair = random_lib.to_seed_pair(given)
      self.assertEqual(pair.dtype, tf.int64)
      self.assertAllEqual(pair, expected)

  def test_in_map(self):
    pairs = tf.data.Dataset.range(3).map(
        lambda index: (
            random_lib.to_seed_pair((7, index)),
            random_lib.to_seed_pair(index),
        )
    )
    self.assertEqual(pairs.element_spec[1], tf.TensorSpec([2], tf.int64))
    for index, (pair, alone) in enumerate(pairs):
      self.assertAllEqual([pair, alone], [[7, index], [index, 0]])

  @parameterized.parameters(
      0.5, True, 'x', ((1, 2, 3),), ((1, 0.5),), ((),), ([[1, 2]],), None
  )
  def test_no_seeds(self, seed):
    with self.assertRaisesRegex(ValueError, 'seed must be an integer or two'):
      random_lib.to_seed_pair(seed)

  def test_fractions_by_counters_alone(self):
    mixed = int(
        random_lib.mix_tensor_bits(tf.constant(random_lib.GOLDEN, tf.uint64))
    )
    self.assertEqual(mixed ^ (mixed >> 31), _split_mix(random_lib.GOLDEN))
    self.assertAllEqual(random_lib.stateless_uniform(0), (mixed >> 11) / 2**53)
    episodes, steps = np.random.default_rng(0).integers(0, 1000, [2, 50])
    actual = random_lib.stateless_uniform(7, episodes, steps)
    self.assertEqual(actual.dtype, tf.float64)
    for row in (0, 17, 49):
      some = slice(row, row + 1)
      alone = random_lib.stateless_uniform(7, episodes[some], steps[some])
      self.assertAllEqual(alone, actual[some])
    self.assertAllEqual(
        tf.function(random_lib.stateless_uniform)(7, episodes, steps), actual
    )

  def test_uniform_and_independent(self):
    grid = np.meshgrid(np.arange(200), np.arange(50), indexing='ij')
    one, other = (
        random_lib.stateless_uniform(seed, *grid).numpy()
        for seed in (-1, 2**70)
    )
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
