from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.episodes import draws

_MASK = 2**64 - 1


def _split_mix(state):
  """One number of SplitMix64, as its authors write it, in Python."""
  z = state & _MASK
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
  return (z ^ (z >> 31)) >> 11


class DrawsTest(parameterized.TestCase):

  def test_fractions_are_those_of_split_mix(self):
    [seed] = draws.seeds_of(7, 1)
    found = draws.fractions(seed, 1000, 5)
    expected = [
        _split_mix(int(seed) + (1001 + place) * draws.GOLDEN) / 2**53
        for place in range(5)
    ]
    self.assertEqual(list(found), expected)
    self.assertEqual(list(draws.fractions(seed, 1003, 2)), expected[3:])

  def test_seeds_differ(self):
    seeds = [
        draws.seeds_of(seed, 2, *key)
        for seed in (0, 1)
        for key in [(), (0,), (1,)]
    ]
    self.assertLen(set(np.concatenate(seeds).tolist()), 12)

  @parameterized.parameters(1, 2, 3, 5, 16, 17, 1000)
  def test_a_permutation_has_every_item_once(self, count):
    orders = set()
    for epoch in range(3):
      order = draws.Permutation(count, np.uint64(3), epoch)
      items = order(np.arange(count))
      self.assertEqual(sorted(items), list(range(count)))
      places = np.arange(count)[::3]
      self.assertEqual(list(order(places)), list(items[::3]))
      orders.add(tuple(items))
    if count > 5:
      self.assertLen(orders, 3)

  def test_all_orders_are_equally_likely(self):
    seeds = draws.seeds_of(1, 2000)
    found = [
        tuple(draws.Permutation(4, seed, 5)(np.arange(4))) for seed in seeds
    ]
    counts = np.unique(found, axis=0, return_counts=True)[1]
    self.assertLen(counts, 24)
    expected = len(found) / 24
    # The 0.999 quantile of chi-square with 23 degrees of freedom.
    self.assertLess(((counts - expected) ** 2 / expected).sum(), 49.7)

  def test_below_is_never_the_limit(self):
    limits = np.array([1, 3, 2**31 + 1, 2**53 - 1, 2**53 + 2])
    almost = np.full(len(limits), np.nextafter(1, 0))
    found = draws.below(almost, limits)
    self.assertTrue((found < limits).all())
    self.assertTrue((found >= limits - 2).all())


if __name__ == '__main__':
  absltest.main()
