"""Priorities that change, compared with sums in plain Python."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.store import prioritized
from rlds2reverb.store import samplers
from tests.replay.local import cuts

# Around the edges of blocks, and of blocks of blocks.
_SIZES = (1, 16, 17, 4096, 4097, 70001)


class PriorityTreeTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*_SIZES)
  def test_against_cumulative_sums(self, size):
    rng = np.random.default_rng(size)
    weights = np.zeros(size)
    tree = prioritized.PriorityTree(weights)
    self.assertEqual(float(tree.minimum), np.inf)
    for _ in range(4):
      numbers = rng.integers(0, size, max(1, size // 2))
      values = 10.0 ** rng.uniform(-3, 3, len(numbers))
      values[rng.uniform(size=len(numbers)) < 0.3] = 0
      values[-1] = 1.5
      # Of duplicates, the last counts.
      for number, value in zip(numbers.tolist(), values.tolist()):
        weights[number] = value
      tree.update(numbers, values)
      self.assertEqual(float(tree.minimum), weights[weights > 0].min())
      places = [0.0, np.nextafter(1.0, 0.0), 0.5, 1e-300]
      places = np.concatenate([rng.uniform(size=500), places])
      found, of, total = tree.find(places)
      self.assertAllClose(total, weights.sum(), rtol=1e-12)
      self.assertTrue((weights[found] > 0).all())
      np.testing.assert_array_equal(of, weights[found])
      # Each fraction lies in the interval of what was found, up to rounding.
      sums = np.cumsum(weights)
      at, slack = places * sums[-1], 1e-9 * sums[-1]
      self.assertTrue((at >= sums[found] - weights[found] - slack).all())
      self.assertTrue((at <= sums[found] + slack).all())


class PrioritizedTest(parameterized.TestCase, tf.test.TestCase):

  def make(self, priorities, alpha=0.5):
    store = cuts.make_store([len(priorities)], priorities=priorities)
    sampler = prioritized.Prioritized(alpha)
    return sampler, sampler.bind(store.make_items(), samplers.Process(0))

  def update(self, sampler, items, priorities):
    sampler.update(np.array(items), np.array(priorities, np.float64))

  def check_frequencies(self, draw, priorities, alpha=0.5, group=0):
    priorities = np.array(priorities, float)
    weights = np.where(priorities > 0, priorities, 0) ** alpha
    probabilities = np.where(priorities > 0, weights, 0)
    probabilities /= probabilities.sum()
    [items], [probability], [priority] = draw(group, 1, 20000)
    cuts.assert_frequencies(
        self, np.bincount(items, minlength=len(priorities)), probabilities
    )
    self.assertAllClose(probability, probabilities[items], rtol=1e-9)
    self.assertAllEqual(priority, priorities[items])

  @parameterized.parameters(0.0, 0.5, 1.0)
  def test_the_contract(self, alpha):
    # p = 1, 4, 9, 16 and alpha = 0.5: .1, .2, .3, .4.
    sampler, draw = self.make([1, 4, 9, 16, 0], alpha)
    self.check_frequencies(draw, [1, 4, 9, 16, 0], alpha)
    self.assertEqual(sampler.min_priority(), 1)
    self.update(sampler, [0, 1, 3], [0, 36, 9])
    self.check_frequencies(draw, [0, 36, 9, 9, 0], alpha, group=7)
    # The least of those that can be drawn counts, not the 0.
    self.assertAlmostEqual(sampler.min_priority(), 9 if alpha else 1)
    self.update(sampler, range(5), [0] * 5)
    with self.assertRaisesRegex(ValueError, 'All priorities are 0'):
      draw(0, 1, 3)
    self.update(sampler, [1, 1], [5, 1e-9])  # The last one counts.
    self.check_frequencies(draw, [0, 1e-9, 0, 0, 0], alpha)

  def test_wrong_updates_change_nothing(self):
    sampler, draw = self.make([1, 4, 9])
    before = sampler.serialize()
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
    self.assertEqual(sampler.serialize(), before)
    self.check_frequencies(draw, [1, 4, 9])

  @parameterized.parameters(
      ([0, 0], 'All priorities are 0'),
      ([1, np.inf], 'item 1 is inf'),
      ([-1, 1], 'item 0 is -1'),
      ([1, 1], 'alpha.*from 0 up', np.nan),
  )
  def test_what_is_refused(self, priorities, message, *alpha):
    with self.assertRaisesRegex(ValueError, message):
      self.make(priorities, *alpha)


if __name__ == '__main__':
  tf.test.main()
