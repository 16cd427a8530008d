"""Tests of horizons."""

from absl.testing import parameterized
import numpy as np
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import horizon
import tensorflow as tf

from tests import contract
from tests import golden


def _cut(steps, start, stop, no_done_at_end):
  """Returns steps `start` to `stop`, both included, with their flags set."""
  last = golden.length_of(steps) - 1
  rows = [golden.step_of(steps, t) for t in range(start, min(stop, last) + 1)]
  rows[0]['is_first'] = np.bool_(True)
  if stop < last:
    rows[-1]['is_last'] = np.bool_(True)
  if no_done_at_end:
    rows[-1]['is_terminal'] = np.bool_(False)
  return rows


class ApplyHorizonTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      (3, [0, 1, 2, 3], False), (5, range(6), True), (9, range(6), True),
      (None, range(6), True),
  )
  def test_terminated(self, limit, observations, is_terminal):
    steps = horizon.apply_horizon(contract.A, limit)
    self.assertAllEqual(steps['observation'], list(observations))
    count = len(observations)
    self.assertAllEqual(steps['is_last'], [False] * (count - 1) + [True])
    self.assertAllEqual(
        steps['is_terminal'], [False] * (count - 1) + [is_terminal]
    )

  def test_no_done_at_end(self):
    steps = horizon.apply_horizon(contract.A, None, no_done_at_end=True)
    self.assertAllEqual(steps['is_terminal'], [False] * 6)
    self.assertAllEqual(steps['is_last'], contract.A['is_last'])

  @parameterized.parameters(False, True)
  def test_edges_against_a_loop(self, no_done_at_end):
    def check(steps, result):
      contract.assert_rows(self, result, _cut(steps, 0, 3, no_done_at_end))

    spec = contract.check_everywhere(
        self,
        lambda steps: horizon.apply_horizon(
            steps, 3, no_done_at_end=no_done_at_end
        ),
        contract.edge_episodes(3),
        check,
    )
    self.assertEqual(
        spec['observation']['camera'], tf.TensorSpec([None, 2, 1], tf.uint8)
    )

  def test_flags_of_another_dtype_and_shape(self):
    steps = dict(contract.A)
    for flag in ('is_first', 'is_last', 'is_terminal'):
      steps[flag] = steps[flag].astype(np.int64)[:, np.newaxis]
    cut = horizon.apply_horizon(steps, 2)
    self.assertEqual(cut['is_last'].dtype, tf.int64)
    self.assertAllEqual(cut['is_last'], [[0], [0], [1]])
    self.assertAllEqual(cut['is_terminal'], [[0], [0], [0]])

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'horizon must be a positive'):
      horizon.apply_horizon(contract.A, 0)
    without = {k: v for k, v in contract.A.items() if k != 'is_last'}
    with self.assertRaisesRegex(ValueError, 'no field is_last'):
      horizon.apply_horizon(without, 2)


class SplitAtHorizonTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.product(
      form=list(golden.FORMS), no_done_at_end=[False, True]
  )
  def test_edges_against_a_loop(self, form, no_done_at_end):
    episodes = contract.edge_episodes(3)
    expected = []
    for steps in episodes:
      count = golden.length_of(steps) - 1
      for start in range(0, max(count, 1), 3):
        expected.append(_cut(steps, start, start + 3, no_done_at_end))
    data = golden.FORMS[form](episodes).map(
        lambda episode: {**episode, 'name': 'x'}
    )
    split = horizon.split_at_horizon(data, 3, no_done_at_end=no_done_at_end)
    found = list(split.as_numpy_iterator())
    self.assertLen(found, len(expected))
    for episode, rows in zip(found, expected):
      self.assertEqual(episode['name'], b'x')
      contract.assert_rows(self, episode['steps'], rows)

  def test_by_hand_and_on_to_trajectories(self):
    split = horizon.split_at_horizon(golden.stacked([contract.A]), 2)
    self.assertEqual(
        [e['steps']['observation'].tolist() for e in split.as_numpy_iterator()],
        [[0, 1, 2], [2, 3, 4], [4, 5]],
    )
    frames = conversion.convert_rlds_to_trajectories(split)
    self.assertAllEqual(
        [frame.discount for frame in frames], [1, 1, 1, 1, 1, 1, 1, 0]
    )

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'horizon must be a positive'):
      horizon.split_at_horizon(golden.stacked([contract.A]), 0)


if __name__ == '__main__':
  tf.test.main()
