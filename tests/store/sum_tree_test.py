"""Priorities that change, compared with sums in plain Python."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.store import samplers
from rlds2reverb.store import sum_tree
from tests import chi_square
from tests.replay.local import replay_testing

# Around powers of two.
_SIZES = (1, 2, 3, 16, 17, 4096, 4097, 70001)


class SumTreeTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*_SIZES)
  def test_tree_equals_cumulative_sums(self, size):
    rng = np.random.default_rng(size)
    weights = np.zeros(size)
    tree = sum_tree.SumTree(weights.copy(), 1.0)
    self.assertEqual(tree.min_priority, np.inf)
    for round_number in range(4):
      numbers = rng.integers(0, size, max(1, size // 2))
      values = 10.0 ** rng.uniform(-3, 3, len(numbers))
      values[rng.uniform(size=len(numbers)) < 0.3] = 0
      values[-1] = 1.5
      # Of duplicates, the last counts.
      for number, value in zip(numbers.tolist(), values.tolist()):
        weights[number] = value
      tree.update(numbers, values, 0, size)
      self.assertEqual(tree.min_priority, weights[weights > 0].min())
      seed = np.uint64(round_number)
      drawn, probability, priority = tree.draw(seed, 5, 500)
      self.assertAllClose(tree.total, weights.sum(), rtol=1e-12)
      self.assertTrue((weights[drawn] > 0).all())
      np.testing.assert_array_equal(priority, weights[drawn])
      self.assertAllClose(
          probability, weights[drawn] / weights.sum(), rtol=1e-12
      )
      # Each fraction lies in the interval of its weight, up to rounding.
      sums = np.cumsum(weights)
      slack = 1e-9 * sums[-1]
      at = samplers.draw_fractions(seed, 0, 505)[5:] * sums[-1]
      self.assertTrue((at >= sums[drawn] - weights[drawn] - slack).all())
      self.assertTrue((at <= sums[drawn] + slack).all())


class PrioritizedTest(parameterized.TestCase, tf.test.TestCase):

  def make(self, priorities, alpha=0.5):
    store = replay_testing.make_store([len(priorities)], priorities=priorities)
    sampler = sum_tree.Prioritized(alpha)
    return sampler, sampler.bind(store.make_items(), samplers.Shard(0))

  def update(self, sampler, items, priorities):
    sampler.update(np.array(items), np.array(priorities, np.float64))

  def check_frequencies(self, draw, priorities, alpha=0.5, group=0):
    priorities = np.array(priorities, float)
    weights = np.where(priorities > 0, priorities, 0) ** alpha
    probabilities = np.where(priorities > 0, weights, 0)
    probabilities /= probabilities.sum()
    items, probability, priority = draw(group, 20000)
    chi_square.assert_frequencies(
        self, np.bincount(items, minlength=len(priorities)), probabilities
    )
    self.assertAllClose(probability, probabilities[items], rtol=1e-9)
    self.assertAllEqual(priority, priorities[items])

  @parameterized.parameters(0.0, 0.5, 1.0)
  def test_draws_follow_priorities_and_alpha(self, alpha):
    # p = 1, 4, 9, 16 and alpha = 0.5: .1, .2, .3, .4.
    sampler, draw = self.make([1, 4, 9, 16, 0], alpha)
    self.check_frequencies(draw, [1, 4, 9, 16, 0], alpha)
    self.assertEqual(sampler.min_priority(), 1)
    self.update(sampler, [0, 1, 3], [0, 36, 9])
    self.check_frequencies(draw, [0, 36, 9, 9, 0], alpha, group=7)
    # The minimum excludes items of priority 0, which cannot be drawn.
    self.assertEqual(sampler.min_priority(), 9)
    self.update(sampler, range(5), [0] * 5)
    with self.assertRaisesRegex(ValueError, 'All priorities are 0'):
      draw(0, 3)
    self.update(sampler, [1, 1], [5, 1e-9])  # The last one counts.
    self.check_frequencies(draw, [0, 1e-9, 0, 0, 0], alpha)

  def test_invalid_updates_change_nothing(self):
    sampler, draw = self.make([1, 4, 9])
    state = sampler.serialize()
    for items, priorities, message in (
        ([0, 1], [5, -1], 'number from 0 up'),
        ([0, 1], [5, np.nan], 'number from 0 up'),
        ([0, 1], [np.inf, 5], 'number from 0 up'),
        ([0, 3], [5, 5], 'no item of this key'),
        ([-1, 0], [5, 5], 'no item of this key'),
        ([2**62, 0], [5, 5], 'no item of this key'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.update(sampler, items, priorities)
    self.assertEqual(sampler.serialize(), state)
    self.check_frequencies(draw, [1, 4, 9])

  @parameterized.product(
      alpha=[0.6, 1.0, 2.0], scale=[1e-315, 1e-300, 1e150, 3e307]
  )
  def test_priorities_of_any_size(self, alpha, scale):
    priorities = np.array([0, 1, 0, 2, 4, 0, 3])
    sampler, draw = self.make(priorities * scale, alpha)
    self.check_scaled(sampler, draw, priorities, scale, alpha)
    # Updates bring the others into another range, and back.
    sampler, draw = self.make([1] * 7, alpha)
    self.update(sampler, range(7), priorities * scale)
    self.check_scaled(sampler, draw, priorities, scale, alpha)
    self.update(sampler, range(7), [0, 1, 2, 0, 0, 4, 0])
    self.check_frequencies(draw, [0, 1, 2, 0, 0, 4, 0], alpha)
    self.assertAlmostEqual(sampler.min_priority(), 1)
    saved = sampler.serialize()
    self.update(sampler, [1, 2, 5], [0, 0, scale])
    self.check_scaled(sampler, draw, [0, 0, 0, 0, 0, 1, 0], scale, alpha)
    sampler.deserialize(saved)
    self.check_frequencies(draw, [0, 1, 2, 0, 0, 4, 0], alpha)

  def test_a_restored_sampler_draws_the_same_items(self):
    # The tree was scaled for a priority that has changed since.
    rng = np.random.default_rng(0)
    sampler, draw = self.make([1.0] * 999, 2.0)
    self.update(sampler, [0], [1e200])
    self.update(sampler, range(999), rng.uniform(1, 2, 999) * 1e190)
    other, draw_other = self.make([1.0] * 999, 2.0)
    other.deserialize(sampler.serialize())
    for number in range(50):
      for values, others in zip(draw(number, 256), draw_other(number, 256)):
        np.testing.assert_array_equal(values, others)

  def check_scaled(self, sampler, draw, priorities, scale, alpha):
    priorities = np.array(priorities)
    weights = np.where(priorities > 0, priorities, 0.0) ** alpha
    weights /= weights.sum()
    items, probability, priority = draw(0, 20000)
    chi_square.assert_frequencies(
        self, np.bincount(items, minlength=7), weights
    )
    # Numbers such as 1e-315 have fewer digits.
    self.assertAllClose(probability, weights[items], rtol=1e-6)
    self.assertAllEqual(priority, (priorities * scale)[items])
    least = priorities[priorities > 0].min() * scale
    self.assertAllClose(sampler.min_priority() / least, 1.0, rtol=1e-6)

  @parameterized.parameters(
      ([0, 0], 'All priorities are 0'),
      ([1, np.inf], 'item 1 has inf'),
      ([-1, 1], 'item 0 has -1'),
      ([1, 1], 'alpha.*from 0 up', np.nan),
  )
  def test_invalid_priorities_raise(self, priorities, message, *alpha):
    with self.assertRaisesRegex(ValueError, message):
      self.make(priorities, *alpha)


if __name__ == '__main__':
  tf.test.main()
