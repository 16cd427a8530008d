"""Chi-square tests of how often random outcomes occur."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# By degrees of freedom: the value that the statistic exceeds with a probability
# of one in a million, from the tables of the distribution.
LIMITS = {1: 23.93, 2: 27.63, 3: 30.66, 4: 33.38, 5: 35.89, 7: 40.52}


def compute_statistic(counts, probabilities):
  """Returns Pearson's statistic of counts against expected probabilities."""
  counts = np.asarray(counts, np.float64)
  expected = counts.sum() * np.asarray(probabilities, np.float64)
  return float(np.sum((counts - expected) ** 2 / expected))


def assert_frequencies(
    test: tf.test.TestCase,
    counts: Sequence[int],
    probabilities: Sequence[float],
) -> None:
  """Asserts by a chi-square test that counts have given probabilities.

  Args:
    test: the test case. It fails by chance once in a million calls.
    counts: how often each outcome occurred, `[N]`.
    probabilities: the expected probabilities, `[N]`, which sum to 1. An outcome
      of probability 0 must not have occurred.
  """
  counts, probabilities = np.array(counts), np.array(probabilities)
  test.assertEqual(counts[probabilities == 0].sum(), 0)
  if np.count_nonzero(probabilities) == 1:
    return
  counts = counts[probabilities > 0]
  expected = counts.sum() * probabilities[probabilities > 0]
  test.assertGreater(expected.min(), 5, 'There are too few draws.')
  statistic = ((counts - expected) ** 2 / expected).sum()
  # The quantile of Wilson and Hilferty (1931).
  k = len(counts) - 1
  limit = k * (1 - 2 / (9 * k) + 4.753 * np.sqrt(2 / (9 * k))) ** 3
  test.assertLess(statistic, limit)
