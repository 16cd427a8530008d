"""Tests of the uniform sample of a stream."""

import numpy as np
import tensorflow as tf

from rlds2reverb.statistics import reservoir


def _sample(size, rows, block, seed=0):
  dataset = tf.data.Dataset.from_tensor_slices(rows).batch(block)
  return dataset.reduce(
      reservoir.empty(size, rows.shape[1]),
      lambda state, block: reservoir.add(state, block, seed),
  )


class ReservoirTest(tf.test.TestCase):

  def test_all_rows_while_they_fit(self):
    rows = np.arange(14.0).reshape(7, 2)
    for block in (1, 3, 7, 100):
      sample = _sample(10, rows, block)
      self.assertAllEqual(sample.rows[:7], rows)
      self.assertAllEqual(sample.rows[7:], np.zeros([3, 2]))
      self.assertEqual(sample.seen, 7)

  def test_rows_stay_whole_and_are_distinct(self):
    rows = np.stack([np.arange(500.0), -np.arange(500.0)], axis=1)
    sample = _sample(50, rows, 64).rows.numpy()
    self.assertAllEqual(sample[:, 0], -sample[:, 1])
    self.assertLen(set(sample[:, 0]), 50)

  def test_no_rows(self):
    nothing = tf.zeros([0, 2], tf.float64)
    state = reservoir.add(reservoir.empty(3, 2), nothing, 0)
    self.assertEqual(state.seen, 0)
    self.assertAllEqual(state.rows, np.zeros([3, 2]))

  def test_every_row_is_as_likely(self):
    # 40 rows, 8 of which stay, 400 times: each stays 80 times, more or less.
    counts = np.zeros(40)
    rows = np.arange(40.0)[:, None]
    add = tf.function(reservoir.add)
    for seed in range(400):
      state = reservoir.empty(8, 1)
      for start in range(0, 40, 13):
        block = rows[start : start + 13]
        state = add(state, block, tf.constant(seed, tf.int64))
      counts[state.rows.numpy()[:, 0].astype(int)] += 1
    # The variance of a count is 400 * .2 * .8; 39 degrees of freedom.
    chi_squared = ((counts - 80) ** 2 / 64).sum() * 39 / 40
    self.assertBetween(chi_squared, 16, 73)  # 0.999 of both tails

  def test_seed(self):
    rows = np.arange(100.0)[:, None]
    self.assertAllEqual(
        _sample(5, rows, 10, 1).rows, _sample(5, rows, 10, 1).rows
    )
    self.assertNotAllEqual(
        _sample(5, rows, 10, 1).rows, _sample(5, rows, 10, 2).rows
    )


if __name__ == '__main__':
  tf.test.main()
