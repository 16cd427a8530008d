"""Tests of samples of a stream of rows, and of states in files."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from tests import golden


def _sample(rows, seed):
  """Returns a sample of 8 rows, which come in blocks of 13."""
  rows = np.array(rows, np.float64)[:, None]
  sample = accumulation_lib.Sample.empty(8, 1)
  for one in np.split(rows, range(13, len(rows), 13)):
    sample = sample.add(tf.constant(one), seed)
  return sample


class AccumulationTest(tf.test.TestCase):

  def test_every_row_is_as_likely(self):
    counts, repeats = np.zeros(60), 100
    for seed in range(repeats):
      ours = _sample(range(10), 2 * seed)
      theirs = _sample(range(10, 60), 2 * seed + 1)
      merged = ours.merge(theirs, [seed])
      rows = merged.rows.numpy()[:, 0].astype(int)
      self.assertLen(set(rows), 8)
      counts[rows] += 1
    share = 8 / 60
    chi_squared = ((counts - repeats * share) ** 2).sum() / (
        repeats * share * (1 - share)
    )
    # 4.5 deviations of a sum of 60 squares.
    self.assertNear(chi_squared, 60, 4.5 * np.sqrt(2 * 60))

  def test_saved_states_are_read_back(self):
    data = golden.stacked([golden.COMPLETE, golden.TRUNCATED])
    accumulation = accumulation_lib.Accumulation(
        steps_lib.get_steps_spec(data.element_spec).step
    )
    state = accumulation.accumulate(data)
    path = self.create_tempfile().full_path
    accumulation_lib.save(path, state)
    actual = accumulation_lib.load(path, accumulation.empty())
    tf.nest.assert_same_structure(actual, state)
    for actual_leaf, expected_leaf in zip(
        tf.nest.flatten(actual), tf.nest.flatten(state)
    ):
      self.assertEqual(actual_leaf.dtype, expected_leaf.dtype)
      self.assertAllEqual(actual_leaf, expected_leaf)

  def test_files_of_other_states_are_refused(self):
    data = golden.stacked([golden.COMPLETE, golden.TRUNCATED])
    accumulation = accumulation_lib.Accumulation(
        steps_lib.get_steps_spec(data.element_spec).step
    )
    state = accumulation.accumulate(data)
    moments = state.moments
    path = self.create_tempfile().full_path
    nan = tf.fill(moments.mean.shape, np.float64('nan'))
    for message, other in (
        ('counts', state._replace(moments=moments._replace(num_valid=nan))),
        ('mean length', state._replace(moments=moments._replace(mean=nan))),
        (
            'counts',
            state._replace(steps=state.steps._replace(num_seen=np.int64(-1))),
        ),
        (
            'arr_1.npy must be int64',
            state._replace(steps=state.steps._replace(num_seen=np.float32(1))),
        ),
        (
            'arr_4.npy must be float64',
            state._replace(moments=moments._replace(count=moments.count[1:])),
        ),
        (
            'arr_2.npy has 8000128 bytes',
            state._replace(
                outcomes=state.outcomes._replace(rows=np.zeros([1000000]))
            ),
        ),
    ):
      accumulation_lib.save(path, other)
      with self.assertRaisesRegex(ValueError, message):
        accumulation_lib.load(path, accumulation.empty())


if __name__ == '__main__':
  tf.test.main()
