"""Tests of weights that change, against numpy."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import priority_tree

# Around the edges of blocks of 64, and of blocks of blocks.
_SIZES = (1, 2, 63, 64, 65, 128, 4095, 4096, 4097, 70001)


def _random_weights(rng, size):
  """Returns weights of many magnitudes, of which some are 0."""
  weights = 10.0 ** rng.uniform(-3, 3, size)
  weights[rng.uniform(size=size) < 0.3] = 0
  if not weights.any():
    weights[rng.integers(size)] = 1.5
  return weights


class PriorityTreeTest(parameterized.TestCase, tf.test.TestCase):

  def check(self, tree, weights, rng):
    """Compares a tree with the cumulative sums of its weights."""
    self.assertAllClose(tree.total, weights.sum(), rtol=1e-12)
    self.assertEqual(float(tree.minimum), weights[weights > 0].min())
    fractions = np.concatenate(
        [
            rng.uniform(size=500),
            [0.0, np.nextafter(1.0, 0.0), 0.5, 1e-300],
        ]
    )
    found, of = tree.find(fractions)
    self.assertTrue((weights[found] > 0).all())
    np.testing.assert_array_equal(of, weights[found])
    # Each fraction lies in the interval of what was found, up to rounding.
    sums = np.cumsum(weights)
    at = fractions * sums[-1]
    slack = 1e-9 * sums[-1]
    self.assertTrue((at >= sums[found] - weights[found] - slack).all())
    self.assertTrue((at <= sums[found] + slack).all())

  @parameterized.parameters(*_SIZES)
  def test_against_cumulative_sums(self, size):
    rng = np.random.default_rng(size)
    weights = _random_weights(rng, size)
    tree = priority_tree.PriorityTree(weights)
    self.assertEqual(tree.size, size)
    self.check(tree, weights, rng)
    for _ in range(3):
      numbers = rng.permutation(size)[: max(1, size // 3)]
      weights[numbers] = _random_weights(rng, len(numbers))
      if not weights.any():
        weights[numbers[0]] = 2.0
      tree.update(numbers, weights[numbers])
      self.check(tree, weights, rng)

  def test_errors_of_rounding_do_not_add_up(self):
    weights = np.ones(200)
    tree = priority_tree.PriorityTree(weights)
    for weight in [1e17, 1.0] * 20:
      tree.update(np.array([7]), np.array([weight]))
    self.assertEqual(float(tree.total), 200)

  def test_all_zero_and_back(self):
    tree = priority_tree.PriorityTree(np.ones(100))
    numbers = np.arange(100)
    tree.update(numbers, np.zeros(100))
    self.assertEqual(float(tree.total), 0)
    self.assertEqual(float(tree.minimum), np.inf)
    tree.update(numbers[70:71], np.array([0.25]))
    found, weights = tree.find(np.array([0.0, 0.3, 0.999]))
    self.assertEqual(found.tolist(), [70] * 3)
    self.assertEqual(weights.tolist(), [0.25] * 3)

  def test_of_duplicates_the_last_counts(self):
    tree = priority_tree.PriorityTree(np.ones(100))
    tree.update(
        np.array([5, 5, 80, 5]),
        np.array([2.0, 3, 4, 7]),
    )
    self.assertEqual(float(tree.total), 98 + 4 + 7)

  def test_no_update(self):
    tree = priority_tree.PriorityTree(np.arange(5.0))
    tree.update(np.zeros(0, int), np.zeros(0))
    self.assertEqual(float(tree.total), 10)

  def test_each_fraction_has_its_weight(self):
    # Exactly, where the numbers are powers of 2.
    tree = priority_tree.PriorityTree(np.array([1.0, 0, 2, 1, 0, 4, 0]))
    fractions = np.arange(16) / 16
    found, _ = tree.find(fractions)
    self.assertEqual(found.tolist(), [0] * 2 + [2] * 4 + [3] * 2 + [5] * 8)


if __name__ == '__main__':
  tf.test.main()
