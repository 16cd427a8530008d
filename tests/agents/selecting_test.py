"""Tests of the episode of one agent."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import agents
from tests import contract
from tests import ways
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


class SelectTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_in_every_way(self, run):
    select = agents.select_agent
    (found,) = run(
        lambda e: {agent: select(e, agent) for agent in 'ab'},
        [episodes.COME_AND_GO],
    )
    self.assertEqual(found['a']['agent'], b'a')
    contract.assert_equal(
        self,
        found['a']['steps'],
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
    steps = found['b']['steps']
    self.assertAllEqual(steps['observation'], [11, 12, 13, 14])
    for flag, at in (('first', 0), ('last', 3), ('terminal', 3)):
      self.assertAllEqual(steps[f'is_{flag}'], np.arange(4) == at)

    (found,) = run(
        lambda e: {agent: select(e, agent, gaps='skip') for agent in 'ab'},
        [_turns()],
    )
    for agent, (observations, actions, rewards, terminal) in _RLLIB.items():
      steps = found[agent]['steps']
      self.assertAllEqual(steps['observation'], observations)
      self.assertAllEqual(steps['action'][:-1], actions)
      self.assertAllEqual(steps['reward'][:-1], rewards)
      self.assertAllEqual(steps['is_last'], [0, 0, 1])
      self.assertAllEqual(steps['is_terminal'], [0, 0, terminal])

    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'agent b is away in the middle'
    ):
      run(lambda episode: select(episode, 'b'), [episodes.TURNS])

  @parameterized.parameters(
      ('step', 'x', [0, -1]), ('transition', 'x', [-1, 0])
  )
  def test_a_game_that_ends_while_one_is_away(self, place, agent, reward):
    found = agents.select_agent(
        {'steps': _game()}, agent, gaps='skip', last_reward=place
    )
    self.assertAllEqual(found['steps']['reward'], reward)
    self.assertAllEqual(found['steps']['is_last'], [0, 1])
    self.assertAllEqual(found['steps']['is_terminal'], [0, 1])

  def test_unfinished_absent_and_always_there(self):
    steps = {**episodes.COME_AND_GO, 'is_last': np.zeros(5, bool)}
    steps['is_terminal'] = np.zeros(5, bool)
    for agent, ends in (('a', True), ('b', False)):
      found = agents.select_agent({'steps': steps}, agent)['steps']
      self.assertEqual(bool(found['is_last'][-1]), ends)
    del steps['is_present']
    found = agents.select_agent({'steps': steps}, 'a')['steps']
    self.assertAllEqual(found['observation'], [0, 1, 2, 99, 99])
    steps = episodes.make_steps({'a': [1, 1], 'b': [0, 0]})
    for gaps in 'error', 'skip':
      found = agents.select_agent({'steps': steps, 'id': 7}, 'b', gaps=gaps)
      self.assertEqual(found['id'], 7)
      self.assertEqual(found['steps']['observation'].shape, [0])

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
        ({**episode, 'agent': 'a'}, {}, "field 'agent' already"),
        ({'steps': {**steps, **fewer}}, {}, r"'action' .* but has \['a'\],"),
        ({'steps': {**steps, **more}}, {}, r"has \['a', 'b', 'c'\], where"),
        ({'steps': unflagged}, {}, 'have no is_last'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        agents.select_agent(bad, **{'agent': 'a', **options})


if __name__ == '__main__':
  tf.test.main()
