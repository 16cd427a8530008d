"""Tests of the episode of one agent."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

import rlds2reverb
from rlds2reverb import agents
from rlds2reverb.trajectories import options as options_lib
from tests import contract
from tests import golden
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
  steps = {**episodes.TURNS}
  # What `b` gets while it is away is its own, too.
  steps['reward'] = {
      'a': steps['reward']['a'],
      'b': np.float32([10, 20, 30, 40, 99]),
  }
  steps['is_terminal'] = {
      'a': np.array([0, 0, 1, 0, 0], bool),
      'b': np.zeros(5, bool),
  }
  return steps


class SelectTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_agents_that_come_and_go(self, run):
    found = run(
        lambda episode: {
            agent: agents.select_agent(episode, agent) for agent in 'ab'
        },
        [episodes.COME_AND_GO],
    )[0]
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
    self.assertAllEqual(steps['is_first'], [1, 0, 0, 0])
    self.assertAllEqual(steps['is_last'], [0, 0, 0, 1])
    self.assertAllEqual(steps['is_terminal'], [0, 0, 0, 1])

  @parameterized.named_parameters(*ways.ALL)
  def test_turns_as_in_rllib(self, run):
    found = run(
        lambda episode: {
            agent: agents.select_agent(episode, agent, gaps='skip')
            for agent in 'ab'
        },
        [_turns()],
    )[0]
    for agent, (observations, actions, rewards, terminal) in _RLLIB.items():
      steps = found[agent]['steps']
      self.assertAllEqual(steps['observation'], observations)
      self.assertAllEqual(steps['action'][:-1], actions)
      self.assertAllEqual(steps['reward'][:-1], rewards)
      self.assertAllEqual(steps['is_last'], [0, 0, 1])
      self.assertAllEqual(steps['is_terminal'], [0, 0, terminal])

  @parameterized.named_parameters(*ways.ALL)
  def test_a_game_that_ends_while_one_is_away(self, run):
    # x and y move in turns. y wins with its second move, and both learn of it
    # in the last step, at which x is away.
    steps = episodes.make_steps({'x': [1, 0, 1, 0], 'y': [0, 1, 0, 1]})
    steps['reward'] = {
        'x': np.float32([0, 0, 0, -1]),
        'y': np.float32([0, 0, 0, 1]),
    }
    places = {
        'step': {'x': [0, -1], 'y': [0, 1]},
        'transition': {'x': [-1, 0], 'y': [1, 0]},
    }
    found = run(
        lambda episode: {
            place: {
                agent: agents.select_agent(
                    episode, agent, gaps='skip', last_reward=place
                )
                for agent in 'xy'
            }
            for place in places
        },
        [steps],
    )[0]
    for place, rewards in places.items():
      for agent, reward in rewards.items():
        own = found[place][agent]['steps']
        self.assertAllEqual(own['reward'], reward)
        self.assertAllEqual(own['is_last'], [0, 1])
        self.assertAllEqual(own['is_terminal'], [0, 1])

  def test_the_last_reward_of_an_agent_is_counted(self):
    steps = episodes.make_steps({'x': [1, 0, 1, 0], 'y': [0, 1, 0, 0]})
    steps['reward']['x'] = np.float32([1, 2, 3, 4])
    # y has one step, and no transition.
    steps['reward']['y'] = np.float32([10, 20, 30, 40])
    data = golden.stacked([steps])
    for place, expected in (
        ('step', {0: 3 + 4, 1: 20 + 30 + 40}),
        ('transition', {1: 20 + 30 + 40}),
    ):
      (split,) = agents.split_by_policy(
          data, lambda unused_agent: 'both', gaps='skip', last_reward=place
      ).values()
      report = rlds2reverb.ConversionReport()
      list(
          rlds2reverb.convert_rlds_to_trajectories(
              split, options=options_lib.ConversionOptions(report=report)
          )
      )
      self.assertEqual(report.last_rewards, expected)

  def test_an_unfinished_episode_stays_unfinished(self):
    steps = {**episodes.COME_AND_GO, 'is_last': np.zeros(5, bool)}
    steps['is_terminal'] = np.zeros(5, bool)
    for agent, ends in (('a', True), ('b', False)):
      found = agents.select_agent({'steps': steps}, agent)['steps']
      self.assertEqual(bool(found['is_last'][-1]), ends)

  def test_an_agent_that_never_came(self):
    steps = episodes.make_steps({'a': [1, 1], 'b': [0, 0]})
    for gaps in 'error', 'skip':
      found = agents.select_agent({'steps': steps, 'id': 7}, 'b', gaps=gaps)
      self.assertEqual(found['id'], 7)
      self.assertEqual(found['steps']['observation'].shape, [0])

  def test_without_a_presence(self):
    steps = {**episodes.COME_AND_GO}
    del steps['is_present']
    found = agents.select_agent({'steps': steps}, 'a')['steps']
    self.assertAllEqual(found['observation'], [0, 1, 2, 99, 99])

  @parameterized.named_parameters(*ways.ALL)
  def test_away_in_the_middle(self, run):
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'agent b is away in the middle'
    ):
      run(lambda episode: agents.select_agent(episode, 'b'), [episodes.TURNS])

  def test_bad_arguments(self):
    steps = episodes.COME_AND_GO
    episode = {'steps': steps}
    unflagged = {key: steps[key] for key in steps if key != 'is_last'}
    more = {'action': {**steps['action'], 'c': np.arange(5)}}
    for bad, options, message in (
        (episode, {'agent': 'c'}, "no agent 'c'"),
        (episode, {'gaps': 'skp'}, 'gaps must be one of'),
        (steps, {}, "dict with 'steps'"),
        ({**episode, 'agent': 'a'}, {}, "field 'agent' already"),
        (
            {'steps': {**steps, 'action': {'a': np.arange(5)}}},
            {},
            "'action' is by agent, but lacks",
        ),
        ({'steps': {**steps, **more}}, {}, r"has \['c'\] beside the agents"),
        ({'steps': unflagged}, {}, 'have no is_last'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        agents.select_agent(bad, **{'agent': 'a', **options})


if __name__ == '__main__':
  tf.test.main()
