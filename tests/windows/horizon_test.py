"""Tests of horizons."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.windows import horizon
from rlds2reverb.windows import returns
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
    for t, row in enumerate(rows, start):
      # Neither what leads to a terminal step nor that step itself is an end.
      if steps['is_terminal'][t : t + 2].any():
        row['discount'] = np.float32(1)
      row['is_terminal'] = np.bool_(False)
  return rows


def _apply(steps, *args, **kwargs):
  """Returns the steps of one episode, cut."""
  data = tf.data.Dataset.from_tensors({'steps': steps})
  return horizon.apply_horizon(data, *args, **kwargs).get_single_element()[
      'steps'
  ]


class ApplyHorizonTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      (3, [0, 1, 2, 3], False),
      (5, range(6), True),
      (9, range(6), True),
      (None, range(6), True),
  )
  def test_terminated(self, limit, observations, is_terminal):
    steps = _apply(contract.A, limit)
    self.assertAllEqual(steps['observation'], list(observations))
    count = len(observations)
    self.assertAllEqual(steps['is_last'], [False] * (count - 1) + [True])
    self.assertAllEqual(
        steps['is_terminal'], [False] * (count - 1) + [is_terminal]
    )

  def test_no_done_at_end(self):
    steps = _apply(contract.A, None, no_done_at_end=True)
    self.assertAllEqual(steps['is_terminal'], [False] * 6)
    self.assertAllEqual(steps['is_last'], contract.A['is_last'])

  @parameterized.parameters(False, True)
  def test_edges_against_a_loop(self, no_done_at_end):
    def check(steps, result):
      contract.assert_rows(self, result, _cut(steps, 0, 3, no_done_at_end))

    spec = contract.check_everywhere(
        self,
        lambda steps: _apply(steps, 3, no_done_at_end=no_done_at_end),
        contract.edge_episodes(3),
        check,
    )
    self.assertEqual(
        spec['observation']['camera'], tf.TensorSpec([None, 2, 1], tf.uint8)
    )

  @parameterized.parameters(None, 4, 5, 9)
  def test_learners_bootstrap_where_nothing_is_done(self, at):
    # What is written into the terminal step is 0, on both sides of it.
    steps = {**contract.A, 'discount': np.float32([1, 0.5, 1, 1, 0, 0])}
    transitions = at if at == 4 else 5
    discount = [1, 0.5, 1, 1, 1][:transitions]
    cut = _apply(steps, at, no_done_at_end=True)
    self.assertAllEqual(cut['discount'], [*discount, 1])
    self.assertDTypeEqual(cut['discount'], np.float32)

    rows = returns.n_step_transitions(cut, 1).columns
    self.assertAllEqual(rows['discount'], discount)
    two = returns.n_step_transitions(cut, 2, 0.5).columns
    self.assertAllEqual(
        two['discount'],
        [
            np.prod(discount[t : t + 2]) * 0.5 ** len(discount[t : t + 2])
            for t in range(transitions)
        ],
    )
    # With a value of 8 everywhere: what a learner makes of the last reward.
    values = np.full(transitions + 1, 8, np.float32)
    rows = returns.advantages(cut, values, 0.5)
    self.assertEqual(
        rows.columns['td_lambda_return'][-1], transitions + 0.5 * 8
    )
    to_go = np.zeros(transitions + 1)
    for t in reversed(range(transitions)):
      to_go[t] = t + 1 + 0.5 * discount[t] * to_go[t + 1]
    rows = returns.reward_to_go(cut, 0.5)
    self.assertAllClose(rows.columns['reward_to_go'], to_go[:-1])

    for terminal_discount in ('step', 'transition'):
      frames = golden.frames_of(
          conversion.convert_rlds_to_trajectories(
              horizon.apply_horizon(
                  golden.stacked([steps]), at, no_done_at_end=True
              ),
              options=options_lib.ConversionOptions(
                  rules=rules_lib.ConversionRules(
                      terminal_discount=terminal_discount
                  )
              ),
          )
      )
      self.assertAllEqual([f.discount for f in frames], [*discount, 1])
      self.assertEqual(frames[-1].step_type, golden.LAST)
      self.assertEqual(frames[-2].next_step_type, golden.LAST)

  def test_discount_of_another_dtype_and_shape(self):
    steps = {**contract.A, 'discount': np.int32([[1], [1], [1], [1], [0], [0]])}
    cut = _apply(steps, None, no_done_at_end=True)
    self.assertAllEqual(cut['discount'], np.ones([6, 1]))
    self.assertDTypeEqual(cut['discount'], np.int32)
    without = {k: v for k, v in steps.items() if k != 'discount'}
    cut = _apply(without, None, no_done_at_end=True)
    self.assertNotIn('discount', cut)
    self.assertAllEqual(cut['is_terminal'], [0] * 6)

  def test_flags_of_another_dtype_and_shape(self):
    steps = dict(contract.A)
    for flag in ('is_first', 'is_last', 'is_terminal'):
      steps[flag] = steps[flag].astype(np.int64)[:, np.newaxis]
    cut = _apply(steps, 2)
    self.assertEqual(cut['is_last'].dtype, tf.int64)
    self.assertAllEqual(cut['is_last'], [[0], [0], [1]])
    self.assertAllEqual(cut['is_terminal'], [[0], [0], [0]])

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'horizon must be a positive'):
      _apply(contract.A, 0)
    without = {k: v for k, v in contract.A.items() if k != 'is_last'}
    with self.assertRaisesRegex(ValueError, 'no field is_last'):
      _apply(without, 2)


class SoftHorizonTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.product(form=list(golden.FORMS), no_done_at_end=[False, True])
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
    split = horizon.apply_horizon(
        data, 3, soft=True, no_done_at_end=no_done_at_end
    )
    found = list(split.as_numpy_iterator())
    self.assertLen(found, len(expected))
    for episode, rows in zip(found, expected):
      self.assertEqual(episode['name'], b'x')
      contract.assert_rows(self, episode['steps'], rows)

  def test_by_hand_and_on_to_trajectories(self):
    split = horizon.apply_horizon(golden.stacked([contract.A]), 2, soft=True)
    self.assertEqual(
        [e['steps']['observation'].tolist() for e in split.as_numpy_iterator()],
        [[0, 1, 2], [2, 3, 4], [4, 5]],
    )
    frames = conversion.convert_rlds_to_trajectories(split)
    self.assertAllEqual(
        [frame.discount for frame in frames], [1, 1, 1, 1, 1, 1, 1, 0]
    )

  def test_learners_bootstrap_where_nothing_is_done(self):
    steps = contract.A_WITH_ZERO_DISCOUNTS
    split = horizon.apply_horizon(
        golden.stacked([steps]), 2, soft=True, no_done_at_end=True
    )
    frames = conversion.convert_rlds_to_trajectories(split)
    self.assertAllEqual([frame.discount for frame in frames], [1] * 8)
    rows = [returns.n_step_transitions(e['steps'], 2, 0.5) for e in split]
    self.assertAllEqual(
        np.concatenate([row.columns['discount'] for row in rows]),
        [0.25, 0.5, 0.25, 0.5, 0.5],
    )

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'horizon must be a positive'):
      horizon.apply_horizon(golden.stacked([contract.A]), 0, soft=True)


if __name__ == '__main__':
  tf.test.main()
