"""Tests of data sets by policy."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import agents
from tests import golden
from tests.agents import episodes

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


class PoliciesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(golden.stacked, golden.nested)
  def test_a_data_set_for_each_policy(self, form):
    found = agents.split_by_policy(form(_EPISODES), _POLICIES.get)
    self.assertEqual(list(found), ['striker', 'keeper'])
    # `b` never came in the second episode.
    self.assertEqual(
        _observations(found['striker']),
        [('a', [0, 1, 2]), ('b', [11, 12, 13]), ('a', [0, 1])],
    )
    self.assertEqual(
        _observations(found['keeper']),
        [('c', [20, 21, 22, 23]), ('c', [20, 21])],
    )

  def test_turns(self):
    data = golden.stacked([episodes.TURNS])
    found = agents.split_by_policy(
        data, str, gaps='skip', last_reward='transition'
    )
    self.assertEqual(_observations(found['b']), [('b', [11, 13, 14])])
    (episode,) = found['b']
    # What comes while it is away counts, and the reward of the last step goes
    # to the last transition.
    self.assertAllEqual(episode['steps']['reward'], [20 + 99, 40 + 50, 0])

  def test_bad_arguments(self):
    actions = {'a': np.zeros(4), 'b': np.zeros([4, 2]), 'c': np.zeros(4)}
    other = golden.stacked([{**_EPISODES[0], 'action': actions}])
    for data, policy_of, message in (
        (golden.stacked(_EPISODES), {}.get, "returns None for the agent 'a'"),
        (golden.stacked([golden.COMPLETE]), str, 'There are no agents'),
        (tf.data.Dataset.range(2), str, "a dict with 'steps'"),
        (other, _POLICIES.get, "'striker' is for agents that"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        agents.split_by_policy(data, policy_of)


if __name__ == '__main__':
  tf.test.main()
