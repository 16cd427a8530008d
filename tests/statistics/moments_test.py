"""Tests of the moments of blocks of rows, against numpy."""

import numpy as np
import tensorflow as tf

from rlds2reverb.statistics import moments


class MomentsTest(tf.test.TestCase):

  def test_blocks_of_any_size_merge_to_those_of_all_rows(self):
    rng = np.random.default_rng(0)
    # The mean is far greater than the deviation.
    rows = 1e8 + rng.normal(size=[100, 3])
    rows[rng.uniform(size=rows.shape) < 0.2] = np.nan
    rows[:, 2] = [np.inf] * 99 + [-1]
    found = moments.none(3)
    for block in np.split(rows, [0, 1, 40, 40, 97]):
      found = moments.merge(found, moments.of_block(tf.constant(block)))
    finite = [column[np.isfinite(column)] for column in rows.T]
    self.assertEqual(found.rows, 100)
    self.assertAllEqual(found.count, list(map(len, finite)))
    self.assertAllClose(found.mean, [one.mean() for one in finite], 1e-15)
    self.assertAllClose(
        found.squares, [one.var() * one.size for one in finite], 1e-6
    )
    self.assertAllEqual(found.min, [one.min() for one in finite])
    self.assertAllEqual(found.max, [one.max() for one in finite])


if __name__ == '__main__':
  tf.test.main()
