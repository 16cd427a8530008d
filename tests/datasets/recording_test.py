"""Tests of recording real episodes, and of reading them back."""

import os

from absl.testing import parameterized
import gym
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from tests import golden
from tests.formats import expected

_NUM_STEPS = 4


class _Reusing(gym.Env):
  """Gives the same arrays at every step, and writes into what it is given."""

  action_space = gym.spaces.Box(-9, 9, (2,), np.float32)

  observation_space = gym.spaces.Dict(
      a=gym.spaces.Dict(b=gym.spaces.Box(-99, 99, (3,), np.float32))
  )

  def __init__(self):
    self._observation = np.zeros(3, np.float32)
    self._returned = {'a': {'b': self._observation}}

  def seed(self, seed=None):
    del seed

  def reset(self):
    self._observation[:] = 10
    return self._returned

  def step(self, action):
    self._observation += 1
    action[:] = -1
    return (
        self._returned,
        0.0,
        self._observation[0] == 10 + 1.5 * _NUM_STEPS,
        {},
    )


gym.register('Reusing-v0', entry_point=_Reusing)


def _read(directory):
  return [
      episode['steps']
      for episode in loading.load_episodes(directory).as_numpy_iterator()
  ]


class RecordEpisodesTest(parameterized.TestCase, tf.test.TestCase):

  def _directory(self):
    return os.path.join(self.create_tempdir().full_path, 'recorded')

  @parameterized.parameters('CartPole-v1', 'Pendulum-v1')
  @pytest.mark.few(1)
  def test_steps_are_those_of_the_environment(self, name):
    directory = self._directory()
    recording.record_episodes(name, directory, 2, seed=7)

    env = gym.make(name)
    env.seed(7)
    env.action_space.seed(7)
    wanted = []
    for _ in range(2):
      observations, actions, rewards, done = [env.reset()], [], [], False
      while not done:
        actions.append(env.action_space.sample())
        observation, reward, done, info = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
      terminal = not info.get('TimeLimit.truncated', False)
      self.assertEqual(terminal, name == 'CartPole-v1')
      rows = [np.array(observations, np.float32), np.array(actions)]
      rows.append(np.array(rewards, np.float32))
      wanted.append(expected.steps(*rows, terminal=terminal))
    env.close()
    golden.assert_frames_equal(self, _read(directory), wanted)

  def test_a_policy_that_is_reset_and_says_more_than_its_action(self):

    class Counting:
      info_space = gym.spaces.Dict(
          count=gym.spaces.Box(0, 99, (1,), np.float32)
      )

      def reset(self):
        self.count = 0

      def __call__(self, observation):
        self.count += 1
        return int(observation[2] > 0), {'count': [self.count]}

    directory = self._directory()
    recording.record_episodes(
        'CartPole-v1', directory, 2, policy=Counting(), max_steps=4
    )
    for steps in _read(directory):
      counts = steps['policy_info']['count']
      self.assertAllEqual(counts, [[1], [2], [3], [4], [0]])
      self.assertFalse(steps['is_terminal'].any())
      self.assertAllEqual(steps['discount'], np.ones(5))
      self.assertAllEqual(
          steps['action'][:-1], (steps['observation'][:-1, 2] > 0).astype(int)
      )

  def test_arrays_that_are_used_again_and_changed(self):
    directory = self._directory()
    buffer = np.zeros(2, np.float32)

    def policy(observation):
      observation = observation['a']['b']
      buffer[:] = observation[:2] - 10
      observation += 0.5
      return buffer

    recording.record_episodes('Reusing-v0', directory, 2, policy=policy)
    for steps in _read(directory):
      observation = steps['observation']['a']['b']
      times = np.arange(_NUM_STEPS + 1)[:, np.newaxis]
      self.assertAllEqual(observation, np.tile(10 + 1.5 * times, 3))
      self.assertAllEqual(steps['action'][:-1], np.tile(1.5 * times[:-1], 2))
      self.assertAllEqual(steps['action'][-1], [0, 0])

  def test_a_directory_is_checked_before_the_environment_is_made(self):
    for directory in '/proc/data', '/proc', 's3://bucket/data':
      with self.assertRaises(OSError):
        recording.record_episodes('NoSuchEnvironment-v0', directory, 1)

  def test_bad_arguments(self):
    for name, count, kwargs, message in (
        ('NoSuchEnvironment-v0', 1, {}, 'no gym environment'),
        ('CartPole-v1', 0, {}, 'must be positive'),
        ('CartPole-v1', 1, {'max_steps': 0}, 'must be positive'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        recording.record_episodes(name, self._directory(), count, **kwargs)


if __name__ == '__main__':
  tf.test.main()
