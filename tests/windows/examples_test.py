"""The worked arrays of functions on transitions, by name.

A has 5 transitions with the observations 0 to 5 and the rewards 1 to 5, and
terminates. B has 3 with 10 to 13 and 10, 20, 30, and is truncated. Actions
are 1, 2, 3 and so on.
"""

from absl.testing import parameterized
import gym
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb import windows
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import transitions
from tests import contract
from tests import golden
from tests.agents import episodes as agent_episodes

_A, _B = contract.A, contract.B
_ONE = contract.make_steps([0, 1], [1], terminal=True)
_SIX = contract.make_steps(range(7), [1, 2, 3, 4, 5, 6], terminal=True)
_SMALL_FLAGS = {
    name: leaf.astype(np.int64)[:, None] if leaf.dtype == bool else leaf
    for name, leaf in _A.items()
}
_OCTO = {
    'observation': np.arange(5),
    'action': np.arange(10, 15),
    'has_action': np.ones(5, bool),
    'goal': np.array([2, 4, 3, 4, 4]),
    'own': np.arange(5),
}
_WHOLE_ZEROS = {**_A, 'discount': np.int32([[1], [1], [1], [1], [0], [0]])}


def _chopped(lengths, max_length=None):
  rows = tf.range(1, sum(lengths) + 1)
  flat = windows.FlatRows.of(rows, lengths=lengths, states=10 * rows)
  return windows.chop_into_sequences(flat, max_length)


def _unroll(steps, *cut, **kwargs):
  cut = windows_lib.Windows(*cut)
  return windows.unroll(steps, cut, state='observation', **kwargs)


def _view(steps, column, shift, **kwargs):
  view = windows.ViewRequirement(column, shift, **kwargs)
  found = windows.compute_views(steps, {'view': view})
  return {'view': found.columns['view'], 'mask': found.mask['view']}


def _horizon(steps, *args, **kwargs):
  data = tf.data.Dataset.from_tensors({'steps': steps})
  cut = windows.apply_horizon(data, *args, **kwargs)
  return cut.get_single_element()['steps']


def _fragments(steps, *args, **kwargs):
  """Returns the lengths of the batches."""
  data = golden.nested([steps] * 4)
  batches = windows.convert_rlds_to_fragments(data, *args, **kwargs)
  return {'lengths': [len(batch['t']) for batch in batches]}


def _burn_in(length, *args, time_major=False):
  value = np.stack([np.arange(length), 100 + np.arange(length)])
  value = tf.constant(value.T if time_major else value)
  columns = {
      'observation': {'a': value},
      'action': (value,),
      'reward': value,
      'is_terminal': value == 0,
      'weight': value,
      'mine': {'deep': value},
  }
  chunks = windows.unrolling.Chunks(columns, value != 2, (tf.range(2),))
  parts = windows.split_burn_in(chunks, *args, time_major=time_major)
  if time_major:
    parts = tf.nest.map_structure(
        lambda x: tf.transpose(x) if x.shape.rank == 2 else x, parts
    )
  return parts._asdict()


_PARTS = {
    'burn_in_observation/a': '0 1 2 3; 100 101 102 103',
    'main_observation/a': '2 3; 102 103',
    'target_observation/a': '4 5; 104 105',
    'action/0': '2 3; 102 103',
    'reward': '2 3; 102 103',
    'is_terminal': np.zeros([2, 4]),
    'weight': '2 3 4 5; 102 103 104 105',
    'columns/mine/deep': '2 3; 102 103',
    'mask': '0 1; 1 1',
    'initial_state/0': '0 1',
}
# What each call gives, by the paths of its fields; arrays as in `np.matrix`.
_EXAMPLES = {
    'rows_of_a': (
        lambda: windows.transition_rows(_A).columns,
        {
            'observation': '0 1 2 3 4',
            'next_observation': '1 2 3 4 5',
            'action': '1 2 3 4 5',
            'reward': '1 2 3 4 5',
            'discount': '1 1 1 1 0',
            'is_first': '1 0 0 0 0',
            'is_last': '0 0 0 0 1',
            'is_terminal': '0 0 0 0 1',
        },
    ),
    'rows_of_an_own_next_observation': (
        lambda: windows.transition_rows(
            {'next_observation': tf.range(3)}
        ).columns,
        {'next_observation': '0 1'},
    ),
    'n_step_of_a': (
        lambda: windows.n_step_transitions(_A, 3, 0.5).columns,
        {
            'observation': '0 1 2 3 4',
            'reward': '2.75 4.5 6.25 6.5 5',
            'discount': '0.125 0.125 0 0 0',
            'next_observation': '3 4 5 5 5',
            'steps': '3 3 3 2 1',
            'gamma': '0.125 0.125 0.125 0.25 0.5',
            'is_last': '0 0 1 1 1',
            'is_terminal': '0 0 1 1 1',
        },
    ),
    'n_step_of_nested_rewards': (
        lambda: windows.n_step_transitions(
            {**_B, 'reward': {'v': np.int32([[1, 2]] * 4)}}, 2
        ).columns,
        {'reward/v': '2 4; 2 4; 1 2'},
    ),
    'reward_to_go_of_written_zeros': (
        lambda: windows.reward_to_go(_WHOLE_ZEROS, 0.5).columns,
        {'reward_to_go': '3.5625 5.125 6.25 6.5 5'},
    ),
    'unroll_time_major': (
        lambda: _unroll(_SIX, 4, 4, 'overlap', time_major=True)._asdict(),
        {
            'columns/reward': '1 3; 2 4; 3 5; 4 6',
            'mask': np.ones([4, 2]),
            'initial_state': '0 2',
        },
    ),
    'unroll_rows_from_mid_episode': (
        lambda: _unroll(
            tf.nest.map_structure(
                lambda leaf: leaf[2:], windows.transition_rows(_SIX)
            ),
            2,
            2,
        )._asdict(),
        {'initial_state': '2 4'},
    ),
    'unroll_rows_without_is_first': (
        lambda: _unroll(
            transitions.TransitionRows({'observation': tf.range(5, 11)}), 3, 3
        )._asdict(),
        {'columns/observation': '5 6 7; 8 9 10', 'initial_state': '0 8'},
    ),
    'burn_in': (lambda: _burn_in(6, 2, 2), _PARTS),
    'burn_in_time_major': (lambda: _burn_in(6, 2, 2, time_major=True), _PARTS),
    'chop_no_rows': (
        lambda: windows.chop_into_sequences(
            windows.FlatRows.of(tf.zeros([0, 2]), lengths=[])
        )._asdict(),
        {'rows': np.zeros([0, 0, 2]), 'seq_lens': [], 'mask': np.zeros([0, 0])},
    ),
    'chop_episodes_without_rows': (
        lambda: _chopped([0, 2, 0, 1, 0])._asdict(),
        {
            'rows': '0 0; 1 2; 0 0; 3 0; 0 0',
            'initial_state': '0 10 0 30 0',
            'seq_lens': '0 2 0 1 0',
            'mask': '0 0; 1 1; 0 0; 1 0; 0 0',
        },
    ),
    'chop_only_episodes_without_rows': (
        lambda: _chopped([0, 0])._asdict(),
        {
            'rows': np.zeros([2, 0]),
            'initial_state': '0 0',
            'seq_lens': '0 0',
            'mask': np.zeros([2, 0]),
        },
    ),
    'chop_to_a_length': (
        lambda: _chopped([0, 3, 0], 2)._asdict(),
        {'rows': '1 2; 3 0', 'initial_state': '10 30', 'seq_lens': '2 1'},
    ),
    'fragments_of_agent_steps': (
        lambda: _fragments(
            agent_episodes.COME_AND_GO, 4, count_steps_by='agent_steps'
        ),
        {'lengths': '3 3 4 4 2'},
    ),
    'horizon_of_other_flags': (
        lambda: _horizon(_SMALL_FLAGS, 2),
        {'is_last': '0; 0; 1', 'is_terminal': '0; 0; 0'},
    ),
    'no_horizon_no_done': (
        lambda: _horizon(_WHOLE_ZEROS, None, no_done_at_end=True),
        {
            'is_last': _A['is_last'],
            'is_terminal': np.zeros(6),
            'discount': np.ones([6, 1], np.int32),
        },
    ),
    'no_horizon_no_discount': (
        lambda: _horizon(
            {k: v for k, v in _A.items() if k != 'discount'},
            None,
            no_done_at_end=True,
        ),
        {'is_terminal': np.zeros(6)},
    ),
    'view_of_a_space': (
        lambda: _view(
            _B, 'reward', 0, space=gym.spaces.Box(0, 1, (), np.float32)
        ),
        {'view': '10 20 30'},
    ),
    # `b` comes at the second step, `a` leaves after the third.
    'view_of_an_agent_that_comes': (
        lambda: _view(
            agent_episodes.COME_AND_GO, 'observation', '-1:1', agent='b'
        ),
        {
            'view': '0 0 11; 0 11 12; 11 12 13; 12 13 14',
            'mask': '0 0 1; 0 1 1; 1 1 1; 1 1 1',
        },
    ),
    'view_of_an_agent_that_leaves': (
        lambda: _view(agent_episodes.COME_AND_GO, 'reward', 1, agent='a'),
        {'view': '2 3 0 0', 'mask': '1 1 0 0'},
    ),
    'view_of_a_part_of_an_agent': (
        lambda: _view(
            {**_B, 'x': {'a': {'y': np.arange(4)}}}, 'x/y', 0, agent='a'
        ),
        {'view': '0 1 2'},
    ),
    'actions_of_rows': (
        lambda: windows.stack_and_chunk(
            windows.transition_rows(_B), num_actions=2
        ).columns,
        {'action': '1 2; 2 3; 3 3'},
    ),
    'actions_up_to_a_goal': (
        lambda: windows.stack_and_chunk(
            {**_B, 'goal': np.array([1, 3, 2, 3])}, 2, 2, goal_step='goal'
        ),
        {
            'action_mask': [
                [[0, 0], [1, 0]],
                [[1, 1], [1, 1]],
                [[1, 0], [0, 0]],
                [[1, 0], [0, 0]],
            ]
        },
    ),
    # What `chunk_act_obs` of Octo (241fb351) makes of these actions with
    # window_size=2, action_horizon=3, with TensorFlow 2.15.1.
    'octo': (
        lambda: windows.stack_and_chunk(
            _OCTO, 2, 3, goal_step='goal', mask_rule='octo'
        ),
        {
            'action': [
                [[10, 11, 12], [10, 11, 12]],
                [[10, 11, 12], [11, 12, 13]],
                [[11, 12, 13], [12, 13, 14]],
                [[12, 13, 14], [13, 14, 14]],
                [[13, 14, 14], [14, 14, 14]],
            ],
            'action_mask': [[[1, 1, 1], [1, 1, 1]]] * 4
            + [[[1, 1, 1], [1, 1, 0]]],
            'observation_mask': [[0, 1]] + [[1, 1]] * 4,
        },
    ),
    'octo_each_step_its_own_goal': (
        lambda: windows.stack_and_chunk(
            _OCTO, 2, 4, goal_step='own', mask_rule='octo'
        ),
        {'action_mask': [[[1, 1, 1, 0], [1, 1, 0, 0]]] * 5},
    ),
}


class ExamplesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(
      (name, *example) for name, example in _EXAMPLES.items()
  )
  def test_worked_arrays(self, call, expected):
    actual = call()
    for path, values in expected.items():
      if isinstance(values, str):
        values = np.array([row.split() for row in values.split(';')], float)
        values = values[0] if len(values) == 1 else values
      self.assertAllEqual(paths.get(actual, path), values, path)

  def test_r2d2_in_a_data_set(self):
    view = windows.ViewRequirement('observation', '-1:0')

    def chunks_of(episode):
      rows = windows.transition_rows(episode['steps'])
      rows = windows.n_step_transitions(rows, 2, 0.5)
      return _unroll(
          windows.apply_views(rows, {'frames': view}), 3, 3, 'repeat_last'
      )

    chunks = golden.nested([_SIX]).map(chunks_of).unbatch().batch(2, True)
    parts = chunks.map(
        lambda chunks: windows.split_burn_in(chunks, 1)
    ).get_single_element()
    self.assertAllEqual(parts.burn_in_observation, [[0], [3]])
    self.assertAllEqual(parts.main_observation, [[1, 2], [4, 5]])
    self.assertEqual(parts.target_observation, ())
    self.assertAllEqual(parts.reward, [[3.5, 5], [8, 6]])
    frames = [[[0, 1], [1, 2]], [[3, 4], [4, 5]]]
    self.assertAllEqual(parts.columns['frames'], frames)
    self.assertAllEqual(parts.initial_state, [0, 3])

  @parameterized.parameters(1, 4)
  def test_inside_an_episode_as_tf_agents(self, n):
    count = 12
    steps = contract.random_steps(np.random.default_rng(3), count)
    steps['reward'] = steps['reward'].astype(np.float32)
    batch = contract.stack(
        [
            tf.nest.map_structure(lambda leaf: leaf[t : t + n + 1], steps)
            for t in range(count - n)
        ]
    )
    mid = tf.fill(batch['reward'].shape, ts.StepType.MID)
    theirs = trajectory.to_n_step_transition(
        trajectory.Trajectory(
            step_type=mid,
            observation=batch['observation'],
            action=batch['action'],
            policy_info=(),
            next_step_type=mid,
            reward=tf.constant(batch['reward']),
            discount=tf.constant(batch['discount']),
        ),
        0.9,
    )
    ours = tf.nest.map_structure(
        lambda leaf: leaf[: count - n],
        windows.n_step_transitions(steps, n, 0.9).columns,
    )
    following = theirs.next_time_step
    self.assertAllClose(ours['reward'], following.reward, 1e-6, 1e-6)
    # TF-Agents leaves one factor of gamma to the learner.
    self.assertAllClose(ours['discount'], 0.9 * following.discount, 1e-6, 1e-6)
    tf.nest.map_structure(
        self.assertAllEqual, ours['next_observation'], following.observation
    )

  def test_a_tensor_of_gamma_in_a_data_set(self):
    def all_of(gamma, lambda_):
      steps = {**_B, 'reward': _B['reward'].astype(np.float64)}
      return (
          windows.n_step_transitions(steps, 2, gamma),
          windows.reward_to_go(steps, gamma),
          windows.advantages(steps, [1.0, 2.0, 3.0, 4.0], gamma, lambda_),
      )

    gammas = tf.data.Dataset.from_tensors(tf.constant(0.5, tf.float16))
    found = gammas.map(lambda gamma: all_of(gamma, gamma / 2))
    tf.nest.map_structure(
        self.assertAllEqual, found.get_single_element(), all_of(0.5, 0.25)
    )
    # Lambda is as exact as the rewards.
    exact = all_of(1.0, 0.1)[2].columns['td_lambda_return']
    self.assertAllClose(exact[1:], [20 + 0.9 * 3 + 0.1 * 34, 34], 1e-14, 0)


if __name__ == '__main__':
  tf.test.main()
