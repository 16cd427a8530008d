"""Tests of counting conditions, and of numbers in the order of a data set."""

from absl.testing import absltest
import numpy as np

from rlds2reverb.jobs.descriptions import tallies


class TallyTest(absltest.TestCase):

  def test_counts_and_finds_the_first_in_any_order(self):
    tally = tallies.Tally(3)
    tally.add(
        np.array([7, 5]),
        np.array([[True, True, False], [False, True, False]]),
        np.array([[2, 4, -1], [-1, 3, -1]]),
    )
    tally.add(
        np.array([1]),
        np.array([[True, False, False]]),
        np.array([[-1, -1, -1]]),
    )
    self.assertEqual(tally.counts.tolist(), [2, 2, 0])
    self.assertEqual(tally.example(0), (1, None))
    self.assertEqual(tally.example(1), (5, 3))
    self.assertIsNone(tally.example(2))


class OrderedNumbersTest(absltest.TestCase):

  def test_bins_are_those_of_all_numbers(self):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=1000)
    numbers[17] = np.nan
    found = tallies.OrderedNumbers(max_bins=16)
    order = rng.permutation(1000)
    for part in np.array_split(order, 7):
      found.add(part, numbers[part])
    bins = found.bins()
    # 1000 positions in 16 bins, whose width is a power of 2.
    self.assertEqual([one['first'] for one in bins], list(range(0, 1000, 64)))
    for one in bins:
      inside = numbers[one['first'] : one['first'] + 64]
      inside = inside[np.isfinite(inside)]
      self.assertEqual(one['count'], inside.size)
      self.assertAlmostEqual(one['mean'], inside.mean())
      self.assertEqual((one['min'], one['max']), (inside.min(), inside.max()))

  def test_no_numbers(self):
    found = tallies.OrderedNumbers()
    found.add(np.array([3]), np.array([np.inf]))
    self.assertEqual(found.bins(), [])


if __name__ == '__main__':
  absltest.main()
