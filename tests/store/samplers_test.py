"""Samplers: the contract, and frequencies at fixed seeds."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.store import samplers
from rlds2reverb.store import sum_tree
from tests import chi_square
from tests.replay.local import replay_testing

_SHARD = samplers.Shard(0)


def _items(num_items, **settings):
  return replay_testing.make_store(num_items, **settings).make_items()


def _draw(sampler, items, batch_size, numbers, shard=_SHARD):
  """Returns the items of batches, lists."""
  sampler.batch_size(items, shard, batch_size)
  draw = sampler.bind(items, shard)
  return [draw(number, batch_size).items.tolist() for number in numbers]


class FrequenciesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(
      ('uniform', samplers.Uniform(), [1 / 7] * 7, {}),
      (
          'episode',
          samplers.Weighted(by='episode'),
          [1 / 12] * 4 + [1 / 3] + [1 / 6] * 2,
          {},
      ),
      (
          'weights of episodes',
          samplers.Weighted([3, 1, 0], by='episode'),
          [3 / 16] * 4 + [1 / 4, 0, 0],
          {},
      ),
      (
          'weights by a function',
          samplers.Weighted(lambda e: e.undiscounted_return, by='episode'),
          [3 / 16] * 4 + [1 / 4, 0, 0],
          dict(returns=[6, 100, 2, 0]),
      ),
      (
          'priorities',
          samplers.Weighted(),
          np.array([0, 1, 0, 2, 5, 2, 0]) / 10,
          dict(priorities=[0, 1, 0, 2, 5, 2, 0]),
      ),
      (
          'weights of items',
          samplers.Weighted([0, 1, 0, 2, 5, 2, 0]),
          np.array([0, 1, 0, 2, 5, 2, 0]) / 10,
          {},
      ),
  )
  def test_frequencies(self, sampler, probabilities, settings):
    items = _items([4, 0, 1, 2], **settings)
    drawn = sampler.bind(items, samplers.Shard(0, (1, 0)))(3, 20000)
    actual = drawn.items
    probabilities = np.array(probabilities)
    chi_square.assert_frequencies(
        self, np.bincount(actual, minlength=7), probabilities
    )
    self.assertAllClose(
        drawn.probability,
        probabilities[actual],
        rtol=1e-12,
    )
    # One draw does not depend on the one before.
    half = np.cumsum(probabilities)[actual] > 0.5
    p = half.mean()
    same = (half[1:] == half[:-1]).mean()
    expected = p * p + (1 - p) * (1 - p)
    self.assertLess(abs(same - expected), 4 / np.sqrt(len(half)))

  def test_weights_of_some_items(self):
    store = replay_testing.make_store(
        [2, 2, 1], [1, 3, 100, 100, 4], returns=[2, 1, 2]
    )
    items = store.top_episodes(2).make_items()
    [actual] = _draw(samplers.Weighted(), items, 20000, [0])
    chi_square.assert_frequencies(
        self, np.bincount(actual), [1 / 8, 3 / 8, 1 / 2]
    )
    # If one item has all the weight, only this item is drawn.
    weights = np.eye(1, 1000, 500)[0] * 1e-300
    items = _items([1000], priorities=weights)
    [actual] = _draw(samplers.Weighted(), items, 5000, [0])
    self.assertEqual(set(actual), {500})

  @parameterized.product(
      scale=[1e-323, 1e-310, 1e-200, 1e200, 4e307], by=['item', 'episode']
  )
  def test_sums_neither_overflow_nor_vanish(self, scale, by):
    # Weights 1, 3, 0, 4 and 0, of items or of episodes.
    weights = np.array([1, 3, 0, 4, 0]) * scale
    weights[4] = 0
    items = _items([1] * 5)
    drawn = samplers.Weighted(weights, by=by).bind(items, _SHARD)(0, 20000)
    # The smallest numbers have one digit.
    probabilities = weights / scale
    probabilities /= probabilities.sum()
    chi_square.assert_frequencies(
        self, np.bincount(drawn.items, minlength=5), probabilities
    )
    self.assertAllClose(drawn.probability, probabilities[drawn.items])

  @parameterized.parameters(
      samplers.Uniform(),
      samplers.InOrder(),
      samplers.WithoutReplacement(),
      samplers.WithoutReplacement(drop_last=True),
      samplers.Weighted(by='episode'),
      sum_tree.Prioritized(),
  )
  def test_consecutive_batches(self, sampler):
    draw = sampler.bind(_items([5, 0, 6]), samplers.Shard(1, (0, 0), 1, 2))
    for first, count in (0, 1), (0, 2), (1, 1), (1, 3), (2, 2), (7, 3):
      actual = draw(first, 2, count)
      # A smaller batch, and in random orders an epoch of 5 items, ends them.
      batches = []
      for index in range(first, first + count):
        if batches and isinstance(sampler, samplers.WithoutReplacement):
          if index % sampler.batches_per_epoch(5, 2) == 0:
            break
        batches.append(draw(index, 2))
      for values, parts in zip(actual, zip(*batches)):
        if values is not None:
          self.assertEqual(values.tolist(), np.concatenate(parts).tolist())

  def test_sources_need_batches_of_several_data_sets(self):
    with self.assertRaisesRegex(ValueError, 'random_access.Batches'):
      samplers.Weighted({'a': 1.0}, by='source').bind(_items([5]), _SHARD)
    for weights, by in (
        (None, 'source'),
        ([1.0], 'source'),
        ({'a': 1.0}, 'item'),
        ({'a': 1.0}, 'episode'),
    ):
      with self.assertRaisesRegex(ValueError, 'must be a dict from the names'):
        samplers.Weighted(weights, by=by)


class WithoutReplacementTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.product(num_workers=(1, 2, 3, 5), drop_last=(True, False))
  def test_workers_share_an_epoch(self, num_workers, drop_last):
    sampler = samplers.WithoutReplacement(drop_last)
    items = _items([5, 0, 6])
    epochs = [[] for _ in range(20)]
    for worker in range(num_workers):
      shard = samplers.Shard(4, (0, 0), worker, num_workers)
      own = shard.share_of(11)
      per_epoch = sampler.batches_per_epoch(own, 2)
      batches = _draw(sampler, items, 2, range(20 * per_epoch), shard)
      sizes = [2] * (own // 2) + [1] * (own % 2 and not drop_last)
      self.assertEqual(list(map(len, batches)), sizes * 20)
      for epoch, found in enumerate(epochs):
        found += sum(batches[epoch * per_epoch :][:per_epoch], [])
      self.assertEqual(
          sampler.batch_size(items, shard, 2),
          2 if drop_last or own % 2 == 0 else None,
      )
    left_out = set()
    for found in epochs:
      self.assertLen(set(found), len(found))
      left_out |= set(range(11)) - set(found)
    # Each item once per epoch; otherwise the omitted items change.
    self.assertEqual(bool(left_out), drop_last)

  def test_all_orders_are_equally_likely(self):
    args = samplers.WithoutReplacement(), _items([4]), 4
    orders = np.array(_draw(*args, range(2000)))
    orders, counts = np.unique(orders, axis=0, return_counts=True)
    self.assertLen(orders, 24)
    chi_square.assert_frequencies(self, counts, [1 / 24] * 24)

  @parameterized.parameters((2, 400), (17, 1000), (1000, 200))
  def test_orders(self, count, epochs):
    args = samplers.WithoutReplacement(), _items([count]), count
    orders = np.array(_draw(*args, range(epochs)))
    # In how many bins the items fall.
    bins = min(count, 20)

    def check(numbers, first=0):
      """Checks that numbers from `first` to `count - 1` are as frequent."""
      actual, possible = (
          np.bincount(np.ravel(each) % count * bins // count, minlength=bins)
          for each in (numbers, np.arange(first, count))
      )
      chi_square.assert_frequencies(self, actual, possible / (count - first))

    for position in {0, 1, count // 2, count - 1}:
      check(orders[:, position])
    # The difference between an item and the item of the previous epoch.
    check(orders[1::2] - orders[:-1:2])
    # And from those that are drawn soon after it, which it never equals.
    for lag in (1, 2, 10, 64) if count > 100 else ():
      check(orders[:, lag::lag] - orders[:, :-lag:lag], first=1)


class SeedsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      samplers.Uniform(),
      samplers.Weighted(by='episode'),
      samplers.Weighted(),
      sum_tree.Prioritized(),
      samplers.WithoutReplacement(),
  )
  def test_draws_depend_on_seed_data_set_worker_and_number(self, sampler):
    items = _items([500, 500], priorities=np.arange(1, 1001))

    def draw(seed, data_set, rank, size, number=0):
      shard = samplers.Shard(seed, (data_set, 0), rank, size)
      return tuple(_draw(sampler, items, 20, [number], shard)[0])

    self.assertEqual(draw(0, 0, 0, 1), draw(0, 0, 0, 1))
    actual = [
        draw(*each)
        for each in (
            *((0, 0, 0, 1), (1, 0, 0, 1), (0, 1, 0, 1), (2**31, 0, 0, 1)),
            *((2**62, 0, 0, 1), (0, 0, 0, 1, 1), (0, 0, 0, 1, 2**33)),
            *((0, 0, 0, 2), (0, 0, 1, 2)),
        )
    ]
    # With replacement, the first of two workers may draw what one would.
    self.assertGreaterEqual(len(set(actual)), len(actual) - 1)
    self.assertNotEqual(actual[-2], actual[-1])

  @parameterized.parameters(1, 2, 3)
  def test_in_order(self, num_workers):
    drawn = []
    for worker in range(num_workers):
      shard = samplers.Shard(0, (0, 0), worker, num_workers)
      count = -(-shard.share_of(7) // 3)
      batches = _draw(
          samplers.InOrder(), _items([4, 0, 3]), 3, range(count), shard
      )
      self.assertEqual(sum(batches, []), list(range(worker, 7, num_workers)))
      self.assertEqual({len(batch) for batch in batches[:-1]} - {3}, set())
      drawn += sum(batches, [])
    self.assertEqual(sorted(drawn), list(range(7)))


class ErrorsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ('item', [1, -1, 1], 'item 1 has -1'),
      ('item', [np.inf, 1, 1], 'item 0 has inf'),
      ('item', [0, 0, 0], 'All weights are 0'),
      ('item', [1, 1], r'3 items.*\(2,\)'),
      ('episode', [1, -1], 'episode 1 has -1'),
      ('episode', [1, 1, 1], r'2 episodes.*\(3,\)'),
      ('frame', None, 'by must be one of'),
  )
  def test_weights(self, by, weights, message):
    # The episode that has no items has no weight.
    with self.assertRaisesRegex(ValueError, message):
      samplers.Weighted(weights, by).bind(_items([1, 0, 2]), _SHARD)

  def test_too_few_items_for_processes_or_batch_raise(self):
    with self.assertRaisesRegex(ValueError, '3 items.*4 processes'):
      samplers.InOrder().bind(_items([3]), samplers.Shard(0, (0, 0), 3, 4))
    # Of 11 items, the second of two workers has 5.
    with self.assertRaisesRegex(ValueError, '6 items.*5 items'):
      samplers.WithoutReplacement(True).batch_size(
          _items([11]), samplers.Shard(0, (0, 0), 1, 2), 6
      )


if __name__ == '__main__':
  tf.test.main()
