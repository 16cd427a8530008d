"""Tests of agents side by side."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import agents
from rlds2reverb.episodes import windows as windows_lib
from tests import contract
from tests import golden
from tests import ways
from tests.agents import episodes


class StackTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_agents_that_come_and_go(self, run):
    (found,) = run(
        lambda episode: agents.stack_agents(episode['steps']),
        [episodes.COME_AND_GO],
    )
    steps = episodes.COME_AND_GO
    contract.assert_equal(
        self,
        found,
        {
            'observation': np.float32(
                [[0, 0], [1, 11], [2, 12], [0, 13], [0, 14]]
            ),
            'action': np.array([[1, 0], [2, 12], [3, 13], [0, 14], [0, 15]]),
            'reward': np.float32([[1, 0], [2, 20], [3, 30], [0, 40], [0, 50]]),
            'agent_mask': np.array(
                [[1, 0], [1, 1], [1, 1], [0, 1], [0, 1]], bool
            ),
            **{
                key: steps[key]
                for key in (
                    'world',
                    'discount',
                    'is_first',
                    'is_last',
                    'is_terminal',
                )
            },
        },
    )

  def test_some_agents_in_their_order(self):
    found = agents.stack_agents(
        episodes.COME_AND_GO, ['b', 'a'], names={'agent_mask': 'mask'}
    )
    self.assertAllEqual(found['observation'][1], [11, 1])
    self.assertAllEqual(found['mask'][0], [False, True])
    found = agents.stack_agents(episodes.COME_AND_GO, ['b'])
    self.assertEqual(found['action'].shape, [5, 1])

  def test_team_rewards(self):
    # The reward at the last step of `a`, 3, has no meaning, and nor do those of
    # the last step.
    found = agents.stack_agents(episodes.COME_AND_GO, team_reward='sum')
    self.assertAllEqual(found['reward'], [1, 22, 30, 40, 0])
    found = agents.stack_agents(episodes.COME_AND_GO, team_reward='mean')
    self.assertAllEqual(found['reward'], [1, 11, 30, 40, 0])

  def test_terminal_agents(self):
    steps = {**episodes.COME_AND_GO}
    steps['is_terminal'] = {
        'a': np.array([0, 0, 1, 0, 0], bool),
        'b': np.array([0, 0, 0, 0, 1], bool),
    }
    found = agents.stack_agents(steps)
    self.assertAllEqual(found['is_terminal'], [0, 0, 0, 0, 1])
    self.assertAllEqual(
        found['agent_is_terminal'],
        [[0, 0], [0, 0], [1, 0], [0, 0], [0, 1]],
    )
    steps['is_terminal']['b'] = np.zeros(5, bool)
    self.assertFalse(tf.reduce_any(agents.stack_agents(steps)['is_terminal']))

  def test_nested_fields_of_many_dtypes(self):
    rng = np.random.default_rng(0)
    steps = [contract.random_steps(rng, 4) for _ in 'ab']
    both = {
        **steps[0],
        **{
            field: {'a': steps[0][field], 'b': steps[1][field]}
            for field in ('observation', 'action', 'reward', 'state')
        },
    }
    (found,) = (
        golden.nested([both])
        .map(lambda episode: agents.stack_agents(episode['steps']))
        .as_numpy_iterator()
    )
    for field in 'observation', 'action', 'reward', 'state':
      contract.assert_equal(
          self,
          found[field],
          tf.nest.map_structure(
              lambda *leaves: np.stack(leaves, 1),
              steps[0][field],
              steps[1][field],
          ),
      )
    self.assertTrue(found['agent_mask'].all())

  def test_bad_arguments(self):
    steps = episodes.COME_AND_GO
    for bad, message in (
        (
            {'observation': {'a': np.zeros(5), 'b': {'x': np.zeros(5)}}},
            'differ in observation, which is',
        ),
        (
            {'action': {'a': np.zeros(5), 'b': np.zeros([5, 2])}},
            'differ in action, which is float64',
        ),
        (
            {'discount': {'a': np.ones(5), 'b': np.ones(5)}},
            'discount is by agent',
        ),
        ({'agent_mask': np.ones(5)}, "field 'agent_mask' already"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        agents.stack_agents({**steps, **bad})
    with self.assertRaisesRegex(ValueError, "no agent 'c'"):
      agents.stack_agents(steps, ['c'])
    with self.assertRaisesRegex(ValueError, 'agents must name'):
      agents.stack_agents(steps, [])
    with self.assertRaisesRegex(ValueError, 'team_reward must be one of'):
      agents.stack_agents(steps, team_reward='all')
    with self.assertRaisesRegex(ValueError, 'one float for each agent'):
      agents.stack_agents(
          {**steps, 'reward': {'a': np.arange(5), 'b': np.arange(5)}},
          team_reward='sum',
      )


class UnrollTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  @pytest.mark.long
  def test_chunks_for_qmix_and_coma(self, run):
    (found,) = run(
        lambda episode: agents.unroll_agents(
            episode['steps'],
            windows_lib.Windows(3, stride=3, end='zero_pad'),
            time_major=True,
        ),
        [episodes.COME_AND_GO],
    )
    columns = found.columns
    # [T, B, A], as DI-engine's coma_data says of its action and weight.
    self.assertAllEqual(
        columns['action'],
        [[[1, 0], [0, 14]], [[2, 12], [0, 0]], [[3, 13], [0, 0]]],
    )
    self.assertAllEqual(
        columns['agent_mask'],
        [[[1, 0], [0, 1]], [[1, 1], [0, 0]], [[0, 1], [0, 0]]],
    )
    self.assertAllEqual(
        columns['next_agent_mask'],
        [[[1, 1], [0, 1]], [[1, 1], [0, 0]], [[0, 1], [0, 0]]],
    )
    self.assertAllEqual(
        columns['next_observation'],
        [[[1, 11], [0, 14]], [[2, 12], [0, 0]], [[0, 13], [0, 0]]],
    )
    # [T, B], as of its reward.
    self.assertAllEqual(columns['reward'], [[1, 40], [22, 0], [30, 0]])
    self.assertAllEqual(columns['is_terminal'], [[0, 1], [0, 0], [0, 0]])
    self.assertAllEqual(found.mask, [[1, 1], [1, 0], [1, 0]])

  def test_a_shared_reward_and_states(self):
    steps = {
        **episodes.COME_AND_GO,
        'reward': np.arange(5.0),
        'state': {
            agent: np.full([5, 2], index + 1.0)
            for index, agent in enumerate('ab')
        },
    }
    found = agents.unroll_agents(
        steps,
        windows_lib.Windows(2, stride=2, end='repeat_last'),
        state='state',
    )
    self.assertAllEqual(found.columns['reward'], [[0, 1], [2, 3]])
    self.assertAllEqual(
        found.initial_state, [np.zeros([2, 2]), [[1, 1], [2, 2]]]
    )


if __name__ == '__main__':
  tf.test.main()
