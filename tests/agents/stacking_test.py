"""Tests of agents side by side."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import agents
from rlds2reverb.episodes import windows as windows_lib
from tests import call_modes
from tests import contract
from tests import golden
from tests.agents import episodes

_STEPS = episodes.COME_AND_GO
_SHARED = ('world', 'discount', 'is_first', 'is_last', 'is_terminal')
_PAIR = {'a': np.arange(5), 'b': np.arange(5)}


class StackTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*call_modes.ALL)
  def test_stack_agents_masks_absent_agents(self, run):
    (actual,) = run(lambda e: agents.stack_agents(e['steps']), [_STEPS])
    mask = np.array([[1, 0], [1, 1], [1, 1], [0, 1], [0, 1]], bool)
    contract.assert_equal(
        self,
        actual,
        {
            'agent_mask': mask,
            **{
                field: np.where(mask, np.stack([*_STEPS[field].values()], 1), 0)
                for field in ('observation', 'action', 'reward')
            },
            **{field: _STEPS[field] for field in _SHARED},
        },
    )

  def test_some_agents_in_their_order(self):
    names = {'agent_mask': 'mask'}
    actual = agents.stack_agents(_STEPS, ['b', 'a'], names=names)
    self.assertAllEqual(actual['observation'][1], [11, 1])
    self.assertAllEqual(actual['mask'][0], [False, True])
    actual = agents.stack_agents(_STEPS, ['b'])
    self.assertEqual(actual['action'].shape, [5, 1])

  @parameterized.parameters(
      ('sum', [1, 22, 30, 40, 0]), ('mean', [1, 11, 30, 40, 0])
  )
  def test_team_rewards(self, how, expected):
    # Neither the reward 3 in the last step of agent `a` nor the rewards of the
    # last step have a meaning.
    actual = agents.stack_agents(_STEPS, team_reward=how)
    self.assertAllEqual(actual['reward'], expected)

  def test_terminal_agents(self):
    ends = {'a': np.arange(5) == 2, 'b': np.arange(5) == 4}
    actual = agents.stack_agents({**_STEPS, 'is_terminal': ends})
    self.assertAllEqual(actual['is_terminal'], ends['b'])
    both = np.stack([ends['a'], ends['b']], 1)
    self.assertAllEqual(actual['agent_is_terminal'], both)
    ends['b'] = np.zeros(5, bool)
    actual = agents.stack_agents({**_STEPS, 'is_terminal': ends})
    self.assertFalse(tf.reduce_any(actual['is_terminal']))

  def test_nested_fields_of_many_dtypes(self):
    rng = np.random.default_rng(0)
    one, other = (contract.random_steps(rng, 4) for _ in 'ab')
    by_agent = ('observation', 'action', 'reward', 'state')
    both = {field: {'a': one[field], 'b': other[field]} for field in by_agent}
    (actual,) = (
        golden.nested([{**one, **both}])
        .map(lambda episode: agents.stack_agents(episode['steps']))
        .as_numpy_iterator()
    )
    side_by_side = lambda *leaves: np.stack(leaves, 1)
    for field in by_agent:
      expected = tf.nest.map_structure(side_by_side, one[field], other[field])
      contract.assert_equal(self, actual[field], expected)
    self.assertTrue(actual['agent_mask'].all())

  @parameterized.parameters(
      (
          {'observation': {'a': np.zeros(5), 'b': {'x': np.zeros(5)}}},
          {},
          'the same observation, but it is',
      ),
      (
          {'action': {'a': np.zeros(5), 'b': np.zeros([5, 2])}},
          {},
          r'the same action, but it is .*float64 \[',
      ),
      ({'discount': _PAIR}, {}, 'discount must be shared'),
      ({'is_terminal': _PAIR, 'is_last': None}, {}, 'no field is_last'),
      ({'agent_mask': np.ones(5)}, {}, "field 'agent_mask' already"),
      ({}, {'agents': ['c']}, "no agent 'c'"),
      ({}, {'agents': []}, 'agents must have at least'),
      ({}, {'team_reward': 'all'}, 'team_reward must be one of'),
      ({'reward': _PAIR}, {'team_reward': 'sum'}, 'one float per agent'),
      ({'is_present': np.ones(5)}, {}, 'is_present must be a dict'),
  )
  def test_bad_arguments(self, changes, options, message):
    steps = {**_STEPS, **changes}
    steps = {name: field for name, field in steps.items() if field is not None}
    with self.assertRaisesRegex(ValueError, message):
      agents.stack_agents(steps, **options)


class UnrollTest(tf.test.TestCase):

  def test_chunks_for_qmix_and_coma(self):
    windows = windows_lib.Windows(3, stride=3, end='zero_pad')
    actual = agents.unroll_agents(_STEPS, windows, time_major=True)
    for field, expected in {
        # [T, B, A], as DI-engine's coma_data says of its action and weight.
        'action': [[[1, 0], [0, 14]], [[2, 12], [0, 0]], [[3, 13], [0, 0]]],
        'agent_mask': [[[1, 0], [0, 1]], [[1, 1], [0, 0]], [[0, 1], [0, 0]]],
        'next_agent_mask': [
            [[1, 1], [0, 1]],
            [[1, 1], [0, 0]],
            [[0, 1], [0, 0]],
        ],
        'next_observation': [
            [[1, 11], [0, 14]],
            [[2, 12], [0, 0]],
            [[0, 13], [0, 0]],
        ],
        # [T, B], as of its reward.
        'reward': [[1, 40], [22, 0], [30, 0]],
        'is_terminal': [[0, 1], [0, 0], [0, 0]],
    }.items():
      self.assertAllEqual(actual.columns[field], expected)
    self.assertAllEqual(actual.mask, [[1, 1], [1, 0], [1, 0]])

  def test_a_shared_reward_and_states(self):
    state = {'a': np.full([5, 2], 1.0), 'b': np.full([5, 2], 2.0)}
    steps = {**_STEPS, 'reward': np.arange(5.0), 'state': state}
    windows = windows_lib.Windows(2, stride=2, end='repeat_last')
    actual = agents.unroll_agents(steps, windows, state='state')
    self.assertAllEqual(actual.columns['reward'], [[0, 1], [2, 3]])
    expected = [np.zeros([2, 2]), [[1, 1], [2, 2]]]
    self.assertAllEqual(actual.initial_state, expected)


if __name__ == '__main__':
  tf.test.main()
