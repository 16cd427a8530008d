"""Tests of the policies to record with."""

import functools
import os

from absl.testing import absltest
from absl.testing import parameterized
import gym
import numpy as np
import tensorflow as tf
from tf_agents.networks import q_rnn_network
from tf_agents.policies import policy_saver
from tf_agents.policies import q_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from rlds2reverb.training import environments


def _returns(environment, policy, num_episodes=5):
  env = gym.make(environment)
  env.seed(0)
  returns = []
  for _ in range(num_episodes):
    observation, done, total = env.reset(), False, 0.0
    policy.reset()
    while not done:
      observation, reward, done, _ = env.step(policy(observation))
      total += reward
    returns.append(total)
  return returns


class ScriptedPoliciesTest(parameterized.TestCase):

  @parameterized.parameters('CartPole-v1', 'PositionOnlyCartPole-v1')
  def test_cart_pole_stays_up_to_the_time_limit(self, environment):
    policy = environments.make_policy('cart_pole', environment)
    self.assertEqual(_returns(environment, policy), [500.0] * 5)

  def test_pendulum_is_swung_up(self):
    policy = environments.make_policy('pendulum', 'Pendulum-v1')
    # Uniformly random actions have -1,200; the best policies about -150.
    self.assertGreater(np.mean(_returns('Pendulum-v1', policy, 10)), -200)

  def test_reset_forgets_the_last_positions(self):
    policy = environments.CartPoleController()
    start, fallen = np.array([0.0, 0.01]), np.array([0.0, -0.1])
    policy(start)
    self.assertEqual(policy(fallen), 0)
    policy(start + [0, 0.1])
    policy.reset()
    # Without the reset, the pole would seem to have moved by -0.1.
    self.assertEqual(policy(start), 1)


class _Constant:

  def reset(self):
    pass

  def __call__(self, observation):
    return 2


class NoisyPolicyTest(absltest.TestCase):

  def test_fraction_of_random_actions_is_drawn_per_episode(self):
    policy = environments.NoisyPolicy(
        _Constant(), gym.spaces.Discrete(100), 0.6, 1
    )
    parts = []
    for _ in range(100):
      policy.reset()
      parts.append(np.mean([policy(None) != 2 for _ in range(100)]))
    # Uniform between 0 and 0.6: a mean of 0.3, and a deviation of 0.17.
    self.assertAlmostEqual(np.mean(parts), 0.3, delta=0.06)
    self.assertAlmostEqual(np.std(parts), 0.17, delta=0.04)

  def test_same_seed_gives_the_same_actions(self):
    make = functools.partial(
        environments.make_policy, 'pendulum', 'Pendulum-v1'
    )
    actions = []
    for seed in 5, 5, 6:
      policy = make(randomness=1.0, seed=seed)
      policy.reset()
      actions.append([policy(np.array([1.0, 0.0, 0.1]))[0] for _ in range(20)])
    self.assertEqual(actions[0], actions[1])
    self.assertNotEqual(actions[0], actions[2])
    with self.assertRaisesRegex(ValueError, r'in \[0, 1\], but is 1.5'):
      make(randomness=1.5)


class SavedPolicyTest(tf.test.TestCase):

  def test_recorded_states_precede_each_action(self):
    tf.keras.utils.set_random_seed(0)
    observation = tf.TensorSpec([2], tf.float32)
    action = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)
    network = q_rnn_network.QRnnNetwork(observation, action, lstm_size=(3,))
    folder = self.create_tempdir().full_path
    directory, data = (os.path.join(folder, name) for name in 'pd')
    specs = ts.time_step_spec(observation), action
    saver = policy_saver.PolicySaver(q_policy.QPolicy(*specs, network))
    saver.save(directory)
    # The policy sees what happens, also where its action is not taken.
    environment = 'PositionOnlyCartPole-v1'
    policy = environments.make_policy(directory, environment, randomness=0.8)
    recording.record_episodes(environment, data, 2, policy=policy, max_steps=6)
    for episode in loading.load_episodes(data):
      steps = episode['steps']
      state = network.get_initial_state(1)
      step_type = [[0]]  # FIRST
      last = len(steps['reward']) - 1
      self.assertGreater(last, 3)
      for t in range(last):
        for i, leaf in enumerate(state):
          self.assertAllClose(
              steps['policy_info']['state'][str(i)][t], leaf[0], atol=1e-6
          )
        _, state = network(
            steps['observation'][tf.newaxis, t : t + 1],
            step_type=tf.constant(step_type),
            network_state=state,
        )
        step_type = [[1]]
      for leaf in steps['policy_info']['state'].values():
        self.assertAllEqual(leaf[last], tf.zeros([3]))
    with self.assertRaisesRegex(
        FileNotFoundError, 'no saved_model.pb.*Did you mean pendulum'
    ):
      environments.make_policy('pendulun', 'Pendulum-v1')


if __name__ == '__main__':
  absltest.main()
