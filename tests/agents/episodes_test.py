"""Tests of the episodes of single agents and of policies."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import agents
from tests import call_modes
from tests import contract
from tests import golden
from tests.agents import episodes

# What RLlib 2.60.0 has in the episodes of the agents, where they take turns as
# in `episodes.TURNS`: the observations, actions and rewards of a
# MultiAgentEpisode to which the same was added step by step.
_RLLIB = {
    'a': ([0, 1, 2], [1, 2], [1, 2], True),
    'b': ([11, 13, 14], [12, 14], [20 + 30, 40], False),
}


def _turns():
  """Returns steps in which `a` is terminal when it leaves, as in `_RLLIB`."""
  # What `b` gets while it is away is its own, too.
  rewards = {**episodes.TURNS['reward'], 'b': np.float32([10, 20, 30, 40, 99])}
  ends = {'a': np.arange(5) == 2, 'b': np.zeros(5, bool)}
  return {**episodes.TURNS, 'reward': rewards, 'is_terminal': ends}


def _game():
  """Returns a game that y wins by the last move, at which x is away."""
  steps = episodes.make_steps({'x': [1, 0, 1, 0], 'y': [0, 1, 0, 1]})
  end = np.float32([0, 0, 0, 1])
  return {**steps, 'reward': {'x': -end, 'y': end}}


_EPISODES = [
    episodes.make_steps(
        {'a': [1, 1, 1, 0], 'b': [0, 1, 1, 1], 'c': [1, 1, 1, 1]}
    ),
    episodes.make_steps({'a': [1, 1], 'b': [0, 0], 'c': [1, 1]}),
]
_POLICIES = {'a': 'striker', 'b': 'striker', 'c': 'keeper'}


def _observations(data):
  return [
      (episode['agent'].decode(), episode['steps']['observation'].tolist())
      for episode in data.as_numpy_iterator()
  ]


class SelectTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*call_modes.ALL)
  def test_select_agent_equals_worked_example_in_all_call_modes(self, run):
    select = agents.select_agent
    (actual,) = run(
        lambda e: {agent: select(e, agent) for agent in 'ab'},
        [episodes.COME_AND_GO],
    )
    self.assertEqual(actual['a']['agent'], b'a')
    contract.assert_equal(
        self,
        actual['a']['steps'],
        {
            'observation': np.float32([0, 1, 2]),
            'action': np.array([1, 2, 3]),
            'reward': np.float32([1, 2, 3]),
            'world': np.array([100, 101, 102]),
            'discount': np.ones(3, np.float32),
            'is_first': np.array([True, False, False]),
            'is_last': np.array([False, False, True]),
            # It left; the episode went on.
            'is_terminal': np.zeros(3, bool),
        },
    )
    steps = actual['b']['steps']
    self.assertAllEqual(steps['observation'], [11, 12, 13, 14])
    for flag, at in (('first', 0), ('last', 3), ('terminal', 3)):
      self.assertAllEqual(steps[f'is_{flag}'], np.arange(4) == at)

    (actual,) = run(
        lambda e: {agent: select(e, agent, gaps='skip') for agent in 'ab'},
        [_turns()],
    )
    for agent, (observations, actions, rewards, terminal) in _RLLIB.items():
      steps = actual[agent]['steps']
      self.assertAllEqual(steps['observation'], observations)
      self.assertAllEqual(steps['action'][:-1], actions)
      self.assertAllEqual(steps['reward'][:-1], rewards)
      self.assertAllEqual(steps['is_last'], [0, 0, 1])
      self.assertAllEqual(steps['is_terminal'], [0, 0, terminal])

    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'agent b is absent in the middle'
    ):
      run(lambda episode: select(episode, 'b'), [episodes.TURNS])

  @parameterized.parameters(
      ('step', 'x', [0, -1]), ('transition', 'x', [-1, 0])
  )
  def test_last_reward_of_agent_absent_at_end_of_game(
      self, place, agent, reward
  ):
    actual = agents.select_agent(
        {'steps': _game()}, agent, gaps='skip', last_reward=place
    )
    self.assertAllEqual(actual['steps']['reward'], reward)
    self.assertAllEqual(actual['steps']['is_last'], [0, 1])
    self.assertAllEqual(actual['steps']['is_terminal'], [0, 1])

  def test_unfinished_episodes_and_agents_without_presence_flags(self):
    steps = {**episodes.COME_AND_GO, 'is_last': np.zeros(5, bool)}
    steps['is_terminal'] = np.zeros(5, bool)
    for agent, ends in (('a', True), ('b', False)):
      actual = agents.select_agent({'steps': steps}, agent)['steps']
      self.assertEqual(bool(actual['is_last'][-1]), ends)
    del steps['is_present']
    actual = agents.select_agent({'steps': steps}, 'a')['steps']
    self.assertAllEqual(actual['observation'], [0, 1, 2, 99, 99])
    steps = episodes.make_steps({'a': [1, 1], 'b': [0, 0]})
    for gaps in 'error', 'skip':
      actual = agents.select_agent({'steps': steps, 'id': 7}, 'b', gaps=gaps)
      self.assertEqual(actual['id'], 7)
      self.assertEqual(actual['steps']['observation'].shape, [0])

  def test_bad_arguments(self):
    steps = episodes.COME_AND_GO
    episode = {'steps': steps}
    unflagged = {key: steps[key] for key in steps if key != 'is_last'}
    more = {'action': {**steps['action'], 'c': np.arange(5)}}
    fewer = {'action': {'a': np.arange(5)}}
    for bad, options, message in (
        (episode, {'agent': 'c'}, "no agent 'c'"),
        (episode, {'gaps': 'skp'}, 'gaps must be one of'),
        (steps, {}, "dict with 'steps'"),
        ({**episode, 'agent': 'a'}, {}, "not have a field 'agent'"),
        ({'steps': {**steps, **fewer}}, {}, r"'action' .* but has \['a'\]"),
        ({'steps': {**steps, **more}}, {}, r"has \['a', 'b', 'c'\]"),
        ({'steps': unflagged}, {}, 'the field is_last'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        agents.select_agent(bad, **{'agent': 'a', **options})


class PoliciesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(golden.stacked, golden.nested)
  def test_a_data_set_for_each_policy(self, form):
    actual = agents.split_by_policy(form(_EPISODES), _POLICIES.get)
    self.assertEqual(list(actual), ['striker', 'keeper'])
    # `b` never came in the second episode.
    self.assertEqual(
        _observations(actual['striker']),
        [('a', [0, 1, 2]), ('b', [11, 12, 13]), ('a', [0, 1])],
    )
    self.assertEqual(
        _observations(actual['keeper']),
        [('c', [20, 21, 22, 23]), ('c', [20, 21])],
    )

  def test_turns(self):
    data = golden.stacked([episodes.TURNS])
    actual = agents.split_by_policy(
        data, str, gaps='skip', last_reward='transition'
    )
    self.assertEqual(_observations(actual['b']), [('b', [11, 13, 14])])
    (episode,) = actual['b']
    # What comes while it is away counts, and the reward of the last step goes
    # to the last transition.
    self.assertAllEqual(episode['steps']['reward'], [20 + 99, 40 + 50, 0])

  def test_bad_arguments(self):
    actions = {'a': np.zeros(4), 'b': np.zeros([4, 2]), 'c': np.zeros(4)}
    other = golden.stacked([{**_EPISODES[0], 'action': actions}])
    for data, policy_mapping_fn, message in (
        (golden.stacked(_EPISODES), {}.get, "returned None for the agent 'a'"),
        (golden.stacked([golden.COMPLETE]), str, 'have no agents'),
        (tf.data.Dataset.range(2), str, "a dict with 'steps'"),
        (other, _POLICIES.get, "'striker' must have steps"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        agents.split_by_policy(data, policy_mapping_fn)


if __name__ == '__main__':
  tf.test.main()
