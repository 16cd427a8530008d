"""Tests of the environments to train in."""

import os

from absl.testing import absltest
import gym
import numpy as np

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from rlds2reverb.training import environments


class EnvironmentsTest(absltest.TestCase):

  def test_position_only_cart_pole_is_cart_pole_without_velocities(self):
    full = gym.make('CartPole-v1')
    hidden = gym.make('PositionOnlyCartPole-v1')
    self.assertEqual(hidden.spec.max_episode_steps, full.spec.max_episode_steps)
    full.seed(3)
    hidden.seed(3)
    generator = np.random.default_rng(0)
    for _ in range(3):
      expected, observation = full.reset(), hidden.reset()
      done = False
      while not done:
        np.testing.assert_array_equal(observation, expected[[0, 2]])
        self.assertIn(observation, hidden.observation_space)
        action = int(generator.integers(2))
        expected, *rest = full.step(action)
        observation, reward, done, _ = hidden.step(action)
        self.assertEqual((reward, done), tuple(rest[:2]))

  def test_seed_sets_the_initial_state(self):
    starts = [
        environments.make_environment('Pendulum-v1', seed).reset().observation
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    self.assertNotAlmostEqual(starts[0][0], starts[2][0])
    with self.assertRaisesRegex(ValueError, 'no Gym environment'):
      environments.make_environment('Nothing-v9', 0)

  def test_lists_each_difference_of_the_data(self):
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    recording.record_episodes('CartPole-v1', directory, 1, max_steps=3)
    data = loading.load_episodes(directory)
    time_step_spec, action_spec = environments.get_specs('CartPole-v1', data)
    self.assertEqual(time_step_spec.observation.shape, [4])
    self.assertEqual(action_spec.maximum, 1)
    with self.assertRaisesRegex(
        ValueError,
        r'action is int64 \(\) in the data, and float32 \(1,\) in the'
        r' environment; observation is float32 \(4,\) in the data, and'
        r' float32 \(3,\)',
    ):
      environments.get_specs('Pendulum-v1', data)


if __name__ == '__main__':
  absltest.main()
