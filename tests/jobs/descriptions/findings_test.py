"""Tests of counting conditions."""

from absl.testing import absltest
import numpy as np

from rlds2reverb.jobs.descriptions import findings


class TallyTest(absltest.TestCase):

  def test_counts_and_finds_the_first_in_any_order(self):
    tally = findings.Tally(3)
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
    self.assertEqual(tally.episodes.tolist(), [1, 5, -1])
    self.assertEqual(tally.steps.tolist(), [-1, 3, -1])


if __name__ == '__main__':
  absltest.main()
