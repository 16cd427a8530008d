"""Tests of data sets by policy."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

import rlds2reverb
from rlds2reverb import agents
from tests import golden
from tests import testing
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

  def test_a_table_for_each_policy(self):
    found = agents.split_by_policy(golden.stacked(_EPISODES), _POLICIES.get)
    spec = rlds2reverb.create_trajectory_data_spec(found['striker'])
    actions = {'striker': [1, 2, 12, 13, 1], 'keeper': [21, 22, 23, 21]}
    with testing.reverb_server(spec, tables=tuple(found)) as client:
      for policy, data in found.items():
        options = rlds2reverb.ConversionOptions(identity={'policy': policy})
        items = rlds2reverb.TableItems(policy)
        rlds2reverb.write_rlds_to_reverb(data, client, items, options=options)
        samples = client.sample(
            policy,
            len(actions[policy]),
            emit_timesteps=False,
            unpack_as_table_signature=True,
        )
        drawn = [sample.data.action[0] for sample in samples]
        self.assertEqual(drawn, actions[policy])

  def test_turns(self):
    data = golden.stacked([episodes.TURNS])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'agent b is away'
    ):
      list(agents.split_by_policy(data, str)['b'])
    found = agents.split_by_policy(data, str, gaps='skip')
    self.assertEqual(_observations(found['b']), [('b', [11, 13, 14])])

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
