"""Tests of CQL-SAC's hyper-parameters."""

from absl.testing import absltest
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.training import cql_sac

_TIME_STEP = ts.time_step_spec(tf.TensorSpec([2], tf.float32))
_ACTION = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
_PAIRS = trajectory.Trajectory(
    step_type=tf.ones([4, 2], tf.int32),
    observation=tf.random.stateless_uniform([4, 2, 2], [0, 1]),
    action=tf.random.stateless_uniform([4, 2, 1], [0, 2], -1, 1),
    policy_info=(),
    next_step_type=tf.ones([4, 2], tf.int32),
    reward=tf.ones([4, 2]),
    discount=tf.ones([4, 2]),
)


class CqlSacTest(tf.test.TestCase):

  @pytest.mark.long
  def test_scale_of_rewards_and_weight_of_the_conservative_loss(self):
    tf.keras.utils.set_random_seed(0)
    agent = cql_sac.CqlSac(
        actor_layers=(4,),
        critic_layers=(4,),
        reward_scale=10.0,
        cql_alpha=0.3,
        gamma=0.0,
    ).make_agent(_TIME_STEP, _ACTION, tf.Variable(0, dtype=tf.int64))
    agent.initialize()
    # All rewards are 1, so that without a future every value should be 10.
    pairs = _PAIRS.observation[:, 0], _PAIRS.action[:, 0]
    errors = [
        10.0 - critic(pairs, _PAIRS.step_type[:, 0])[0].numpy()
        for critic in (agent._critic_network_1, agent._critic_network_2)
    ]
    extra = agent.train(_PAIRS).extra
    self.assertAllClose(
        extra.critic_loss, 0.5 * (errors[0] ** 2 + errors[1] ** 2).mean()
    )
    self.assertAllClose(extra.cql_alpha, 0.3)

  def test_needs_an_action_of_floats(self):
    action = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)
    with self.assertRaisesRegex(ValueError, 'needs an action of floats'):
      cql_sac.CqlSac().make_agent(
          _TIME_STEP, action, tf.Variable(0, dtype=tf.int64)
      )


if __name__ == '__main__':
  absltest.main()
