"""Tests of the evaluation, against playing one episode after the other."""

from absl.testing import absltest
import gym
import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step

from rlds2reverb.training import environments
from rlds2reverb.training import trainer


class _Leaning(tf_policy.TFPolicy):
  """Pushes to where the pole leans, and every third time to the other side.

  Its state counts its actions.
  """

  def __init__(self, env):
    super().__init__(
        tensor_spec.from_spec(env.time_step_spec()),
        tensor_spec.from_spec(env.action_spec()),
        policy_state_spec=tf.TensorSpec([], tf.int64),
    )

  def _action(self, time_step, policy_state, seed):
    leans = tf.cast(time_step.observation[:, 2] > 0, tf.int64)
    action = tf.where(policy_state % 3 == 2, 1 - leans, leans)
    return policy_step.PolicyStep(action, policy_state + 1)


class EvaluatorTest(absltest.TestCase):

  def test_evaluator_returns_one_episode_per_environment(self):
    expected = []
    for seed in range(40, 46):
      env = gym.make('CartPole-v1')
      env.seed(seed)
      observation, done, count = env.reset(), False, 0
      while not done:
        leans = int(observation[2] > 0)
        action = 1 - leans if count % 3 == 2 else leans
        observation, reward, done, _ = env.step(action)
        count += 1
      expected.append(count)  # A reward of 1 for every step.
    self.assertGreater(len(set(expected)), 1)

    policy = _Leaning(environments.make_environment('CartPole-v1', 0))
    evaluator = trainer.Evaluator(policy, 'CartPole-v1', 6, seed=40)
    for _ in range(2):  # It is the same again.
      np.testing.assert_array_equal(evaluator.run().returns, expected)
    with self.assertRaisesRegex(ValueError, 'num_episodes'):
      trainer.Evaluator(policy, 'CartPole-v1', 0)

  def test_mean_and_its_standard_error(self):
    returns = trainer.Returns(np.array([1.0, 2.0, 3.0, 6.0]))
    self.assertEqual(returns.mean, 3.0)
    # The variance is (4 + 1 + 0 + 9) / 3.
    self.assertAlmostEqual(returns.standard_error, np.sqrt(14 / 3 / 4))
    self.assertEqual(str(returns), '3.0 +- 1.1 (4 episodes)')
    one = trainer.Returns(np.array([1.0]))
    self.assertTrue(np.isnan(one.standard_error))


if __name__ == '__main__':
  absltest.main()
