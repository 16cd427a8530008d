"""Tests of n-step returns, reward-to-go and TD(lambda)."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.windows import returns
from rlds2reverb.windows import transitions
from tests import contract


def _reward_to_go(*args):
  return returns.reward_to_go(*args).columns['reward_to_go']


def _td_lambda(*args):
  return returns.advantages(*args).columns['td_lambda_return']


def _advantages(*args):
  return returns.advantages(*args).columns['advantage']


def _expected_n_step(rows, t, n, gamma):
  """Returns reward, discount, steps of the n-step transition from row t."""
  reward, weight, taken = 0.0, 1.0, 0
  for row in rows[t : t + n]:
    reward += weight * row['reward']
    weight *= gamma * row['discount']
    taken += 1
  return reward, weight, taken


class NStepTest(parameterized.TestCase, tf.test.TestCase):

  def test_terminated(self):
    result = returns.n_step_transitions(contract.A, 3, 0.5).columns
    self.assertAllEqual(result['observation'], [0, 1, 2, 3, 4])
    self.assertAllEqual(result['action'], [1, 2, 3, 4, 5])
    self.assertAllEqual(result['reward'], [2.75, 4.5, 6.25, 6.5, 5])
    self.assertAllEqual(result['discount'], [0.125, 0.125, 0, 0, 0])
    self.assertAllEqual(result['next_observation'], [3, 4, 5, 5, 5])
    self.assertAllEqual(result['steps'], [3, 3, 3, 2, 1])
    self.assertAllEqual(result['gamma'], [0.125, 0.125, 0.125, 0.25, 0.5])
    self.assertEqual(result['steps'].dtype, tf.int32)

  def test_truncated(self):
    result = returns.n_step_transitions(contract.B, 3, 0.5).columns
    self.assertAllEqual(result['reward'], [27.5, 35, 30])
    self.assertAllEqual(result['discount'], [0.125, 0.25, 0.5])
    self.assertAllEqual(result['next_observation'], [13, 13, 13])

  @parameterized.parameters(1, 3)
  def test_edges_against_a_loop(self, n):
    gamma = 0.9

    def check(steps, result):
      rows = contract.transitions(steps)
      self.assertLen(result['reward'], len(rows))
      for t, row in enumerate(rows):
        reward, discount, taken = _expected_n_step(rows, t, n, gamma)
        self.assertAllClose(result['reward'][t], reward, 1e-6, 1e-6)
        self.assertAllClose(result['discount'][t], discount, 1e-6, 1e-6)
        self.assertEqual(result['steps'][t], taken)
        self.assertAllClose(result['gamma'][t], gamma**taken, 1e-6, 1e-6)
        for source, leaf in (
            (row['observation'], result['observation']),
            (row['action'], result['action']),
            (
                rows[t + taken - 1]['next_observation'],
                result['next_observation'],
            ),
        ):
          contract.assert_equal(
              self, tf.nest.map_structure(lambda x: x[t], leaf), source  # pylint: disable=cell-var-from-loop
          )

    spec = contract.check_everywhere(
        self,
        lambda steps: returns.n_step_transitions(steps, n, gamma).columns,
        contract.edge_episodes(3),
        check,
    )
    self.assertEqual(spec['reward'], tf.TensorSpec([None], tf.float64))
    self.assertEqual(spec['discount'], tf.TensorSpec([None], tf.float32))
    self.assertEqual(
        spec['next_observation']['camera'],
        tf.TensorSpec([None, 2, 1], tf.uint8),
    )

  @parameterized.parameters(1, 2, 4)
  def test_inside_an_episode_as_tf_agents(self, n):
    gamma, count = 0.9, 12
    steps = contract.random_steps(np.random.default_rng(3), count)
    steps['reward'] = steps['reward'].astype(np.float32)
    ours = returns.n_step_transitions(steps, n, gamma).columns
    windows = [
        tf.nest.map_structure(lambda leaf: leaf[t : t + n + 1], steps)  # pylint: disable=cell-var-from-loop
        for t in range(count - n)
    ]
    batch = contract.stack(windows)
    shape = batch['reward'].shape
    theirs = trajectory.to_n_step_transition(
        trajectory.Trajectory(
            step_type=tf.fill(shape, ts.StepType.MID),
            observation=batch['observation'],
            action=batch['action'],
            policy_info=(),
            next_step_type=tf.fill(shape, ts.StepType.MID),
            reward=tf.constant(batch['reward']),
            discount=tf.constant(batch['discount']),
        ),
        gamma,
    )
    cut = lambda nest: tf.nest.map_structure(lambda x: x[: count - n], nest)
    self.assertAllClose(
        cut(ours['reward']), theirs.next_time_step.reward, 1e-6, 1e-6
    )
    # TF-Agents leaves one factor of gamma to the learner.
    self.assertAllClose(
        cut(ours['discount']),
        gamma * theirs.next_time_step.discount,
        1e-6,
        1e-6,
    )
    tf.nest.map_structure(
        self.assertAllEqual,
        cut(ours['next_observation']),
        theirs.next_time_step.observation,
    )
    tf.nest.map_structure(
        self.assertAllEqual,
        (cut(ours['observation']), cut(ours['action'])),
        (theirs.time_step.observation, theirs.action_step.action),
    )

  def test_nested_and_vector_rewards(self):
    steps = dict(contract.A)
    reward = steps['reward']
    steps['reward'] = {
        'vector': np.stack([reward, 2 * reward], axis=1),
        'integer': reward.astype(np.int32),
    }
    result = returns.n_step_transitions(steps, 3, 0.5).columns['reward']
    one = np.array([2.75, 4.5, 6.25, 6.5, 5])
    self.assertAllEqual(result['vector'], np.stack([one, 2 * one], axis=1))
    self.assertAllEqual(result['integer'], one)
    self.assertEqual(result['integer'].dtype, tf.float32)
    to_go = _reward_to_go(steps, 0.5)
    self.assertAllEqual(to_go['vector'][:, 1], 2 * to_go['integer'])


class RewardToGoTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      (contract.A, [3.5625, 5.125, 6.25, 6.5, 5]),
      (contract.B, [27.5, 35, 30]),
  )
  def test_contract(self, steps, expected):
    self.assertAllEqual(_reward_to_go(steps, 0.5), expected)

  def test_edges_against_a_loop(self):
    def check(steps, result):
      rows = contract.transitions(steps)
      expected, to_go = [], 0.0
      for row in reversed(rows):
        to_go = row['reward'] + 0.9 * row['discount'] * to_go
        expected.insert(0, to_go)
      self.assertEqual(result.dtype, np.float64)
      self.assertAllClose(result, expected, 1e-6, 1e-6)

    spec = contract.check_everywhere(
        self,
        lambda steps: _reward_to_go(steps, 0.9),
        contract.edge_episodes(3),
        check,
    )
    self.assertEqual(spec, tf.TensorSpec([None], tf.float64))

  def test_a_long_episode(self):
    count = 1000
    steps = contract.make_steps(range(count + 1), [1] * count, terminal=False)
    self.assertAllEqual(_reward_to_go(steps), np.arange(count, 0, -1))


class TdLambdaTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(0.0, 0.8, 1.0)
  def test_edges_against_a_loop(self, lambda_):
    def values(steps):
      return tf.cast(tf.square(steps['state']['h'][:, 0]), tf.float32)

    def check(steps, result):
      rows = contract.transitions(steps)
      value = np.square(steps['state']['h'][:, 0])
      expected, target = [], value[-1]
      for t in reversed(range(len(rows))):
        bootstrap = (1 - lambda_) * value[t + 1] + lambda_ * target
        target = rows[t]['reward'] + 0.9 * rows[t]['discount'] * bootstrap
        expected.insert(0, target)
      self.assertAllClose(result, expected, 1e-6, 1e-6)

    def td_lambda(steps):
      if isinstance(steps, tf.data.Dataset):
        steps = steps.batch(100).get_single_element()
      return _td_lambda(steps, values(steps), 0.9, lambda_)

    spec = contract.check_everywhere(
        self, td_lambda, contract.edge_episodes(3), check
    )
    self.assertEqual(spec, tf.TensorSpec([None], tf.float64))

  def test_by_hand(self):
    self.assertAllClose(
        _td_lambda(contract.B, [1, 2, 3, 4], 0.5, 0.0),
        [10 + 0.5 * 2, 20 + 0.5 * 3, 30 + 0.5 * 4],
    )
    self.assertAllClose(
        _td_lambda(contract.B, [1, 2, 3, 4], 0.5, 1.0),
        [28, 36, 32],
    )
    self.assertAllClose(
        _td_lambda(contract.A, [9] * 6, 0.5, 1.0),
        [3.5625, 5.125, 6.25, 6.5, 5],
    )

  def test_a_value_for_each_step(self):
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'one value a step'
    ):
      _td_lambda(contract.B, [1.0, 2.0, 3.0])
    with self.assertRaisesRegex(ValueError, 'one dimension'):
      _td_lambda(contract.B, [[1.0, 2.0, 3.0, 4.0]])
    steps = {**contract.B, 'reward': np.ones([4, 2])}
    with self.assertRaisesRegex(ValueError, 'one number a step'):
      _td_lambda(steps, [1.0, 2.0, 3.0, 4.0])


class TensorGammaTest(parameterized.TestCase, tf.test.TestCase):

  def _all(self, gamma, lambda_):
    values = [1.0, 2.0, 3.0, 4.0]
    return (
        returns.n_step_transitions(contract.B, 2, gamma),
        _reward_to_go(contract.B, gamma),
        _td_lambda(contract.B, values, gamma, lambda_),
    )

  @parameterized.parameters(tf.float16, tf.float32, tf.float64)
  def test_gives_what_the_number_gives(self, dtype):
    expected = self._all(0.5, 0.25)
    gamma = tf.constant([0.5], dtype)
    in_map = tf.data.Dataset.from_tensor_slices(gamma).map(
        lambda gamma: self._all(gamma, gamma / 2)
    )
    for result in (
        self._all(gamma[0], gamma[0] / 2),
        in_map.get_single_element(),
    ):
      tf.nest.map_structure(self.assertAllEqual, result, expected)
    self.assertAllEqual(expected[0].columns['reward'], [20, 35, 30])

  def test_one_outside_of_the_unit_interval(self):
    for gamma in (-0.5, 1.5, np.nan):
      with self.assertRaisesRegex(ValueError, 'gamma must lie in'):
        _reward_to_go(contract.B, tf.constant(gamma))
      dataset = tf.data.Dataset.from_tensors(gamma).map(
          lambda gamma: _reward_to_go(contract.B, gamma)
      )
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'gamma must lie in'
      ):
        list(dataset)

  def test_lambda_is_as_exact_as_the_rewards(self):
    steps = {**contract.B, 'reward': contract.B['reward'].astype(np.float64)}
    result = _td_lambda(steps, [0.0] * 4, 1.0, 0.1)
    self.assertAllClose(result, [12.3, 23, 30], rtol=1e-14, atol=0)


class AdvantagesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(0.0, 0.8, 1.0)
  def test_edges_against_a_loop(self, lambda_):
    def check(steps, result):
      rows = contract.transitions(steps)
      value = np.square(steps['state']['h'][:, 0])
      expected, advantage = [], 0.0
      for t in reversed(range(len(rows))):
        discount = 0.9 * rows[t]['discount']
        delta = rows[t]['reward'] + discount * value[t + 1] - value[t]
        advantage = delta + discount * lambda_ * advantage
        expected.insert(0, advantage)
      self.assertAllClose(result, expected, 1e-6, 1e-6)

    def gae(steps):
      if isinstance(steps, tf.data.Dataset):
        steps = steps.batch(100).get_single_element()
      values = tf.cast(tf.square(steps['state']['h'][:, 0]), tf.float32)
      return _advantages(steps, values, 0.9, lambda_)

    spec = contract.check_everywhere(
        self, gae, contract.edge_episodes(3), check
    )
    self.assertEqual(spec, tf.TensorSpec([None], tf.float64))

  def test_limits(self):
    zeros = np.zeros(6, np.float32)
    self.assertAllEqual(
        _advantages(contract.A, zeros, 0.5, 1.0), [3.5625, 5.125, 6.25, 6.5, 5]
    )
    # The TD errors: the last value of A does not count, that of B does.
    values = np.float32([1, 2, 4, 8, 16, 99])
    self.assertAllEqual(
        _advantages(contract.A, values, 0.5, 0.0),
        [1 + 1 - 1, 2 + 2 - 2, 3 + 4 - 4, 4 + 8 - 8, 5 - 16],
    )
    self.assertAllEqual(
        _advantages(contract.B, [1.0, 2.0, 3.0, 4.0], 0.5, 0.0),
        [10 + 1 - 1, 20 + 1.5 - 2, 30 + 2 - 3],
    )

  def test_are_the_td_lambda_returns_less_the_values(self):
    rng = np.random.default_rng(5)
    steps = contract.random_steps(rng, 9)
    values = rng.normal(size=10)
    self.assertAllClose(
        _advantages(steps, values, 0.9, 0.7),
        _td_lambda(steps, values, 0.9, 0.7) - values[:-1],
        1e-6,
        1e-6,
    )

  def test_a_value_for_each_step(self):
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'advantages needs one value a step'
    ):
      _advantages(contract.B, [1.0, 2.0, 3.0])


class ColumnsTest(tf.test.TestCase):

  def test_returns_are_added_to_the_rows_and_replace_nothing(self):
    rows = transitions.transition_rows(contract.B)
    values = [1.0, 2.0, 3.0, 4.0]
    calls = {
        'reward_to_go': lambda rows, **names: returns.reward_to_go(
            rows, 0.5, **names
        ),
        'advantage': lambda rows, **names: returns.advantages(
            rows, values, 0.5, **names
        ),
        'steps': lambda rows, **names: returns.n_step_transitions(
            rows, 1, **names
        ),
    }
    for name, call in calls.items():
      added = call(rows)
      self.assertContainsSubset(rows.columns, added.columns)
      self.assertAllEqual(added.columns[name], call(contract.B).columns[name])
      own = rows._replace(columns={**rows.columns, name: tf.range(3)})
      with self.assertRaisesRegex(ValueError, f'field {name!r} already'):
        call(own)
      named = call(own, names={name: 'other'})
      self.assertAllEqual(named.columns[name], [0, 1, 2])
      self.assertAllEqual(named.columns['other'], added.columns[name])

  def test_before_n_step_transitions_and_not_after(self):
    to_go = returns.reward_to_go(contract.A, 0.5)
    both = returns.n_step_transitions(to_go, 3, 0.5)
    self.assertAllEqual(
        both.columns['reward_to_go'], [3.5625, 5.125, 6.25, 6.5, 5]
    )
    self.assertAllEqual(both.columns['reward'], [2.75, 4.5, 6.25, 6.5, 5])
    for call in (
        returns.reward_to_go,
        lambda rows: returns.n_step_transitions(rows, 2),
        lambda rows: returns.advantages(rows, [0.0] * 6),
    ):
      with self.assertRaisesRegex(ValueError, 'before n_step_transitions'):
        call(both)

  def test_flags_of_n_step_transitions(self):
    columns = returns.n_step_transitions(contract.A, 3, 0.5).columns
    self.assertAllEqual(columns['is_last'], [0, 0, 1, 1, 1])
    self.assertAllEqual(columns['is_terminal'], [0, 0, 1, 1, 1])
    columns = returns.n_step_transitions(contract.B, 2).columns
    self.assertAllEqual(columns['is_last'], [0, 1, 1])
    self.assertAllEqual(columns['is_terminal'], [0, 0, 0])

  def test_discounts_of_either_convention(self):
    for function in (
        lambda steps: returns.n_step_transitions(steps, 3, 0.5),
        lambda steps: returns.reward_to_go(steps, 0.5),
        lambda steps: returns.advantages(steps, np.ones(6), 0.5),
    ):
      tf.nest.map_structure(
          self.assertAllEqual,
          function(contract.A),
          function(contract.A_WITH_ZERO_DISCOUNTS),
      )


class BadArgumentsTest(tf.test.TestCase):

  def test_all(self):
    without = {k: v for k, v in contract.A.items() if k != 'discount'}
    for message, call in (
        (
            'n_step must be a positive',
            lambda: returns.n_step_transitions(contract.A, 0),
        ),
        (
            'gamma must lie in',
            lambda: returns.n_step_transitions(contract.A, 1, 1.5),
        ),
        ('gamma must lie in', lambda: returns.reward_to_go(contract.A, -1)),
        (
            'lambda_ must lie in',
            lambda: returns.advantages(contract.A, [0.0] * 6, 1, 2),
        ),
        ('gamma must lie in', lambda: returns.reward_to_go(contract.A, np.nan)),
        (
            'gamma must be one number',
            lambda: returns.reward_to_go(contract.A, [0.5, 0.5]),
        ),
        (
            'gamma must be one number',
            lambda: returns.reward_to_go(contract.A, None),
        ),
        (
            'gamma must be one number',
            lambda: returns.reward_to_go(contract.A, 'half'),
        ),
        ('no field discount', lambda: returns.reward_to_go(without)),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        call()

  def test_reward_that_is_no_number(self):
    steps = {**contract.A, 'reward': {'a': np.array([b'1'] * 6, object)}}
    for call in (
        lambda: returns.reward_to_go(steps),
        lambda: returns.n_step_transitions(steps, 2),
    ):
      with self.assertRaisesRegex(
          ValueError, 'reward/a must be of numbers, but is string'
      ):
        call()


if __name__ == '__main__':
  tf.test.main()
