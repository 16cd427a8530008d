"""Tests of samples of a stream of rows, and of states in files."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import accumulators
from tests import golden


def _sample(rows, seed=0, size=8, block=13):
  rows = np.array(rows, np.float64)[:, None]
  sample = accumulators.Sample.empty(size, 1)
  for one in np.split(rows, range(block, len(rows), block)):
    sample = sample.add(tf.constant(one), seed)
  return sample


def _assert_as_likely(test, draw, count, repeats=150, size=8):
  """Asserts that `draw(seed)` has each of `count` rows as often."""
  counts = np.zeros(count)
  for seed in range(repeats):
    rows = draw(seed).rows.numpy()[:, 0].astype(int)
    test.assertLen(set(rows), size)
    counts[rows] += 1
  share = size / count
  chi_squared = ((counts - repeats * share) ** 2).sum() / (
      repeats * share * (1 - share)
  )
  # 4.5 deviations of a sum of `count` squares.
  test.assertNear(chi_squared, count, 4.5 * np.sqrt(2 * count))


class AccumulatorsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(1, 3, 7, 100)
  def test_a_sample_has_all_rows_while_they_fit(self, block):
    state = _sample(range(5), block=block)
    self.assertAllEqual(state.rows[:, 0], [0, 1, 2, 3, 4, 0, 0, 0])
    merged = state.merge(_sample([5, 6]), [0])
    self.assertEqual(merged.seen, 7)
    self.assertAllEqual(merged.filled()[:, 0], range(7))

  def test_every_row_is_as_likely(self):
    _assert_as_likely(self, lambda seed: _sample(range(40), seed), 40)

    def draw(seed):
      ours = _sample(range(10), 2 * seed)
      theirs = _sample(range(10, 60), 2 * seed + 1)
      return ours.merge(theirs, [seed])

    _assert_as_likely(self, draw, 60)

  def test_states_are_kept_in_files(self):
    data = golden.stacked([golden.COMPLETE, golden.TRUNCATED])
    state = accumulation_lib.Accumulation(
        steps_lib.steps_spec(data.element_spec).step
    ).state_of(data)
    path = self.create_tempfile().full_path
    accumulation_lib.save(path, state)
    found = accumulation_lib.load(path)
    tf.nest.assert_same_structure(found, state)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(state)):
      self.assertEqual(one.dtype, other.dtype)
      self.assertAllEqual(one, other)


if __name__ == '__main__':
  tf.test.main()
