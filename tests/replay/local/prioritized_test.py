"""Tests of priorities that change."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import prioritized
from rlds2reverb.replay.local import samplers
from tests.replay.local import cuts

_PROCESS = samplers.Process(0)


class PrioritizedTest(parameterized.TestCase, tf.test.TestCase):

  def make(self, priorities, alpha=0.5):
    count = 5 if priorities is None else len(priorities)
    population = population_lib.Population(
        cuts.make_store([count], priorities=priorities)
    )
    sampler = prioritized.Prioritized(alpha)
    return sampler, sampler.bind(population, _PROCESS)

  def check_frequencies(self, draw, probabilities, priorities, group=0):
    probabilities = np.array(probabilities)
    draws = tf.nest.map_structure(lambda leaf: leaf[0], draw(group, 1, 20000))
    counts = np.bincount(draws.items, minlength=len(probabilities))
    cuts.assert_frequencies(self, counts, probabilities)
    self.assertAllClose(
        draws.probability, probabilities[draws.items], rtol=1e-9
    )
    self.assertAllEqual(draws.priority, np.array(priorities)[draws.items])

  def update(self, sampler, items, priorities):
    sampler.update(np.array(items), np.array(priorities, np.float64))

  def test_the_contract(self):
    # p = 1, 4, 9, 16 and alpha = 0.5.
    sampler, draw = self.make([1, 4, 9, 16])
    self.check_frequencies(draw, [0.1, 0.2, 0.3, 0.4], [1, 4, 9, 16])
    self.assertEqual(sampler.min_priority(), 1)

  def test_updates(self):
    sampler, draw = self.make(None)
    self.check_frequencies(draw, [0.2] * 5, [1] * 5)
    self.update(sampler, [3, 0], [16, 0])
    self.check_frequencies(
        draw, [0, 1 / 7, 1 / 7, 4 / 7, 1 / 7], [0, 1, 1, 16, 1]
    )
    # The least of those that can be drawn counts, not the 0.
    self.assertEqual(sampler.min_priority(), 1)
    self.update(sampler, [1, 2, 4, 3, 0], [0, 0, 0, 4, 36])
    self.check_frequencies(draw, [3 / 4, 0, 0, 1 / 4, 0], [36, 0, 0, 4, 0], 7)
    self.assertEqual(sampler.min_priority(), 4)

  @parameterized.parameters((0.0, [0.5, 0.5, 0]), (1.0, [0.2, 0.8, 0]))
  def test_alpha(self, alpha, probabilities):
    _, draw = self.make([1, 4, 0], alpha)
    self.check_frequencies(draw, probabilities, [1, 4, 0])

  def test_all_priorities_become_zero(self):
    sampler, draw = self.make([1, 4])
    self.update(sampler, [0, 1], [0, 0])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'All priorities are 0'
    ):
      draw(0, 1, 3)
    self.update(sampler, [1], [1e-9])
    self.check_frequencies(draw, [0, 1], [0, 1e-9])

  def test_of_duplicates_the_last_counts(self):
    sampler, draw = self.make([1, 1, 1])
    self.update(sampler, [2, 2, 0, 2], [100, 49, 1, 4])
    self.check_frequencies(draw, [1 / 4, 1 / 4, 1 / 2], [1, 1, 4])

  @parameterized.parameters(
      ([0, 1], [5, -1], 'number from 0 up'),
      ([0, 1], [5, np.nan], 'number from 0 up'),
      ([0, 1], [np.inf, 5], 'number from 0 up'),
      ([0, 3], [5, 5], 'no item of this key'),
      ([-1, 0], [5, 5], 'no item of this key'),
      ([2**62, 0], [5, 5], 'no item of this key'),
  )
  def test_wrong_updates_change_nothing(self, items, priorities, message):
    sampler, draw = self.make([1, 4, 9])
    before = sampler.serialize()
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      self.update(sampler, items, priorities)
    self.assertEqual(sampler.serialize(), before)
    self.check_frequencies(draw, [1 / 6, 1 / 3, 1 / 2], [1, 4, 9])

  @parameterized.parameters(
      ([0, 0], 'All priorities are 0'),
      ([1, np.inf], 'item 1 is inf'),
      ([1, np.nan], 'item 1 is nan'),
      ([-1, 1], 'item 0 is -1'),
  )
  def test_wrong_priorities_to_begin_with(self, priorities, message):
    with self.assertRaisesRegex(ValueError, message):
      self.make(priorities)

  @parameterized.parameters(-0.1, np.nan, np.inf)
  def test_wrong_alpha(self, alpha):
    with self.assertRaisesRegex(ValueError, 'alpha.*from 0 up'):
      prioritized.Prioritized(alpha)

  def test_of_one_replay_buffer_alone(self):
    sampler, _ = self.make([1, 4])
    other = population_lib.Population(cuts.make_store([2]))
    with self.assertRaisesRegex(ValueError, 'one replay buffer'):
      sampler.bind(other, _PROCESS)

  def test_more_items_than_a_block_of_the_tree(self):
    rng = np.random.default_rng(0)
    priorities = rng.uniform(0.5, 2, 5000)
    sampler, draw = self.make(priorities, alpha=1.0)
    changed = rng.permutation(5000)[:700]
    priorities[changed] = rng.uniform(0, 50, 700)
    self.update(sampler, changed, priorities[changed])
    items = np.concatenate([draw(k, 1, 5000).items[0] for k in range(10)])
    # In parts of 100 items.
    weights = priorities.reshape([50, 100]).sum(1)
    cuts.assert_frequencies(
        self, np.bincount(items // 100, minlength=50), weights / weights.sum()
    )


if __name__ == '__main__':
  tf.test.main()
