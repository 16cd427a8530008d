"""Tests of samplers: the contract, and frequencies at fixed seeds."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import draws
from rlds2reverb.replay.local import local_buffer
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import samplers
from tests.replay.local import cuts

_PROCESS = samplers.Process(0)


def _population(num_items, **settings):
  return population_lib.Population(cuts.make_store(num_items, **settings))


def _draw(
    sampler, population, batch_size, groups, process=_PROCESS, per_group=1
):
  """Returns the draws of some groups, numpy `[K, B]` each."""
  sampler.batch_size(population, process, batch_size)
  draw = sampler.bind(population, process)
  return [draw(group * per_group, per_group, batch_size) for group in groups]


def _items(*args, **kwargs):
  """Returns the items of batches."""
  return [
      batch.tolist()
      for draws in _draw(*args, **kwargs)
      for batch in draws.items
  ]


class FrequenciesTest(parameterized.TestCase, tf.test.TestCase):

  def check(self, sampler, population, probabilities, seed=0):
    [draws] = _draw(
        sampler, population, 20000, [3], samplers.Process(seed, (1, 0))
    )
    probabilities = np.array(probabilities)
    counts = np.bincount(draws.items[0], minlength=len(probabilities))
    cuts.assert_frequencies(self, counts, probabilities)
    self.assertAllClose(
        draws.probability[0], probabilities[draws.items[0]], rtol=1e-12
    )
    # One draw does not depend on the one before.
    half = np.cumsum(probabilities)[draws.items[0]] > 0.5
    p = half.mean()
    same = (half[1:] == half[:-1]).mean()
    expected = p * p + (1 - p) * (1 - p)
    self.assertLess(abs(same - expected), 4 / np.sqrt(len(half)))

  @parameterized.parameters(0, 1, 2**40)
  def test_uniform(self, seed):
    population = _population([3, 1, 6])
    self.check(samplers.Uniform(), population, [0.1] * 10, seed)

  def test_episode_first(self):
    population = _population([4, 0, 1, 2])
    self.check(
        samplers.EpisodeFirst(),
        population,
        [1 / 12] * 4 + [1 / 3] + [1 / 6] * 2,
    )

  @parameterized.parameters(
      [[3, 1, 0]],
      [np.array([0.75, 0.25, 0], np.float32)],
      [lambda runs: runs.undiscounted_return],
  )
  def test_episode_first_with_weights(self, weights):
    population = _population([4, 0, 1, 2], returns=[6, 100, 2, 0])
    self.check(
        samplers.EpisodeFirst(weights),
        population,
        [3 / 16] * 4 + [1 / 4] + [0, 0],
    )

  def test_weighted(self):
    priorities = np.array([0, 1, 0, 0, 2, 5, 2, 0])
    population = _population([3, 5], priorities=priorities)
    self.check(samplers.Weighted(), population, priorities / 10)
    [draws] = _draw(samplers.Weighted(), population, 50, [0])
    np.testing.assert_array_equal(draws.priority, priorities[draws.items])

  def test_weighted_without_priorities(self):
    self.check(samplers.Weighted(), _population([3, 1]), [0.25] * 4)

  def test_weighted_of_the_top_episodes(self):
    store = cuts.make_store([2, 2, 1], [1, 3, 100, 100, 4], returns=[2, 1, 2])
    population = population_lib.Population(store.top_episodes(2))
    self.check(samplers.Weighted(), population, [1 / 8, 3 / 8, 1 / 2])

  def test_fractions_at_the_limits(self):
    # Of weights that are all in one item, nothing else is drawn.
    weights = np.zeros(1000)
    weights[500] = 1e-300
    population = _population([1000], priorities=weights)
    [items] = _items(samplers.Weighted(), population, 5000, [0])
    self.assertEqual(set(items), {500})


class WithoutReplacementTest(parameterized.TestCase, tf.test.TestCase):

  def test_short_batches(self):
    population = _population([5, 3])
    sampler = samplers.WithoutReplacement()
    batches = _items(sampler, population, 3, range(6))
    self.assertEqual(list(map(len, batches)), [3, 3, 2] * 2)
    first, second = sum(batches[:3], []), sum(batches[3:], [])
    self.assertEqual(sorted(first), list(range(8)))
    self.assertEqual(sorted(second), list(range(8)))
    self.assertNotEqual(first, second)
    self.assertIsNone(sampler.batch_size(population, _PROCESS, 3))
    self.assertEqual(sampler.batch_size(population, _PROCESS, 4), 4)

  def test_drop_last(self):
    population = _population([8])
    sampler = samplers.WithoutReplacement(drop_last=True)
    self.assertEqual(sampler.batch_size(population, _PROCESS, 3), 3)
    batches = _items(sampler, population, 3, range(40))
    self.assertEqual({len(batch) for batch in batches}, {3})
    left_out = collections.Counter()
    for epoch in range(20):
      items = sum(batches[2 * epoch : 2 * epoch + 2], [])
      self.assertLen(set(items), 6)
      left_out.update(set(range(8)) - set(items))
    # Not always the same two items.
    self.assertLen(left_out, 8)

  @parameterized.parameters(9, 100)
  def test_drop_last_of_less_than_a_batch(self, batch_size):
    sampler = samplers.WithoutReplacement(drop_last=True)
    with self.assertRaisesRegex(ValueError, f'{batch_size} items.*8 items'):
      _draw(sampler, _population([8]), batch_size, [0])

  def test_a_batch_of_an_epoch_or_more(self):
    population = _population([8])
    for drop_last, batch_size in ((True, 8), (False, 8), (False, 9)):
      batches = _items(
          samplers.WithoutReplacement(drop_last), population, batch_size, [0, 1]
      )
      self.assertEqual([sorted(b) for b in batches], [list(range(8))] * 2)

  @parameterized.parameters((12, 3, False), (13, 4, True), (16, 16, False))
  def test_groups_of_batches_are_the_same_batches(self, count, size, drop_last):
    population = _population([count])
    sampler = samplers.WithoutReplacement(drop_last)
    one_by_one = _items(sampler, population, size, range(20))
    together = _items(sampler, population, size, range(4), per_group=5)
    self.assertEqual(together, one_by_one)

  @parameterized.parameters(
      (1, 3), (2, 400), (5, 500), (17, 1000), (100, 1000), (1000, 200)
  )
  def test_orders(self, count, epochs):
    population = _population([count])
    [draws] = _draw(
        samplers.WithoutReplacement(), population, count, [0], per_group=epochs
    )
    orders = draws.items
    np.testing.assert_array_equal(
        np.sort(orders, 1), np.tile(np.arange(count), [epochs, 1])
    )
    if count == 1:
      return
    # In how many bins the items fall.
    bins = min(count, 20)

    def check(numbers, first=0):
      """Checks that numbers from `first` to `count - 1` are as frequent."""
      found, possible = (
          np.bincount(np.ravel(each) % count * bins // count, minlength=bins)
          for each in (numbers, np.arange(first, count))
      )
      cuts.assert_frequencies(self, found, possible / (count - first))

    for position in {0, 1, count // 2, count - 1}:
      check(orders[:, position])
    # How much an item differs from that of the epoch before.
    check(orders[1::2] - orders[:-1:2])
    if count < 100:
      return
    # And from those that are drawn soon after it, which it never equals.
    for lag in 1, 2, 10, 64:
      check(orders[:, lag::lag] - orders[:, :-lag:lag], first=1)

  def test_neighbours_in_the_order_of_many_items(self):
    count, bins = 70000, 100
    items = draws.Permutation(count, np.uint64(123456789), 0)(np.arange(count))
    for lag in 1, 2, 3, 64:
      numbers = (items[lag:] - items[:-lag]) % count * bins // count
      cuts.assert_frequencies(
          self, np.bincount(numbers, minlength=bins), np.full(bins, 1 / bins)
      )

  def test_all_orders_of_three(self):
    [draws] = _draw(
        samplers.WithoutReplacement(), _population([3]), 3, [0], per_group=600
    )
    counts = collections.Counter(map(tuple, draws.items.tolist()))
    self.assertLen(counts, 6)
    cuts.assert_frequencies(self, list(counts.values()), np.full(6, 1 / 6))

  @parameterized.product(num_workers=(2, 3, 5), drop_last=(True, False))
  def test_workers_share_an_epoch(self, num_workers, drop_last):
    population = _population([11])
    sampler = samplers.WithoutReplacement(drop_last)
    drawn = []
    for worker in range(num_workers):
      process = samplers.Process(4, (0, 0), worker, num_workers)
      own = len(range(worker, 11, num_workers))
      per_epoch = own // 2 if drop_last else -(-own // 2)
      batches = _items(sampler, population, 2, range(2 * per_epoch), process)
      drawn.append([sum(batches[:per_epoch], []), sum(batches[per_epoch:], [])])
      if not drop_last:
        self.assertLen(drawn[-1][0], own)
    for epoch in range(2):
      items = sum([of_worker[epoch] for of_worker in drawn], [])
      self.assertLen(set(items), len(items))
      if not drop_last:
        self.assertEqual(sorted(items), list(range(11)))

  def test_drop_last_counts_the_share_of_a_worker(self):
    sampler = samplers.WithoutReplacement(drop_last=True)
    process = samplers.Process(0, (0, 0), 1, 2)
    with self.assertRaisesRegex(ValueError, '6 items.*5 items'):
      _draw(sampler, _population([11]), 6, [0], process)


class SeedsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      samplers.Uniform(),
      samplers.EpisodeFirst(),
      samplers.Weighted(),
      samplers.WithoutReplacement(),
  )
  def test_draws_depend_on_seed_data_set_worker_and_number(self, sampler):
    population = _population([500, 500], priorities=np.arange(1, 1001))

    def draw(*process, group=0):
      process = samplers.Process(process[0], (process[1], 0), *process[2:])
      return tuple(_items(sampler, population, 20, [group], process)[0])

    self.assertEqual(draw(0, 0, 0, 1), draw(0, 0, 0, 1))
    found = [
        draw(0, 0, 0, 1),
        draw(1, 0, 0, 1),
        draw(0, 1, 0, 1),
        draw(2**31, 0, 0, 1),
        draw(2**62, 0, 0, 1),
        draw(0, 0, 0, 1, group=1),
        draw(0, 0, 0, 1, group=2**33),
        draw(0, 0, 0, 2),
        draw(0, 0, 1, 2),
    ]
    # With replacement, the first of two workers may draw what one would.
    self.assertGreaterEqual(len(set(found)), len(found) - 1)
    self.assertNotEqual(found[-2], found[-1])


class InOrderTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(1, 2, 3)
  def test_every_item_once(self, num_workers):
    population = _population([4, 0, 3])
    drawn = []
    for worker in range(num_workers):
      process = samplers.Process(0, (0, 0), worker, num_workers)
      draw = local_buffer.in_order(population, process)
      count = -(-process.share_of(7) // 3)
      items = [draw(group, 1, 3).items[0].tolist() for group in range(count)]
      self.assertEqual(sum(items, []), list(range(worker, 7, num_workers)))
      self.assertEqual({len(batch) for batch in items[:-1]} - {3}, set())
      self.assertNotEmpty(items[-1])
      drawn += sum(items, [])
    self.assertEqual(sorted(drawn), list(range(7)))


class ErrorsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ([1, -1, 1], 'item 1 is -1'),
      ([1, 1, np.nan], 'item 2 is nan'),
      ([np.inf, 1, 1], 'item 0 is inf'),
      ([0, 0, 0], 'All priorities are 0'),
  )
  def test_weighted(self, priorities, message):
    population = _population([3], priorities=priorities)
    with self.assertRaisesRegex(ValueError, message):
      samplers.Weighted().bind(population, _PROCESS)

  @parameterized.parameters(
      ([1, -1], 'episode 1 is -1'),
      ([np.nan, 1], 'episode 0 is nan'),
      ([0, 0], 'All weights are 0'),
      ([1, 1, 1], r'2 episodes.*\(3,\)'),
      (1.0, r'2 episodes.*\(\)'),
  )
  def test_episode_first(self, weights, message):
    # The episode that has no items has no weight.
    population = _population([1, 0, 2])
    with self.assertRaisesRegex(ValueError, message):
      samplers.EpisodeFirst(weights).bind(population, _PROCESS)

  def test_episode_first_of_items_that_cross_episodes(self):
    population = _population([2], crosses_episodes=True)
    with self.assertRaisesRegex(ValueError, 'cross episodes'):
      samplers.EpisodeFirst().bind(population, _PROCESS)

  def test_more_processes_than_items(self):
    process = samplers.Process(0, (0, 0), 3, 4)
    for bind in samplers.WithoutReplacement().bind, local_buffer.in_order:
      with self.assertRaisesRegex(ValueError, '3 items.*4 processes'):
        bind(_population([3]), process)


if __name__ == '__main__':
  tf.test.main()
