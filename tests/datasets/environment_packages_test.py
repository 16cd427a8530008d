"""Tests of recording from Atari, the DeepMind Control Suite and robotics.

These packages are large. CI runs this file with them; elsewhere it is skipped:

    EXTRA=recording bash -c '. scripts/environment.sh'
    PYTHONPATH=$(echo .venv-recording/lib/*/site-packages) \
        python -m pytest tests/datasets/environment_packages_test.py
"""

import importlib.util
import os

from absl.testing import absltest
import gymnasium
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from tests import golden
from tests.formats import expected

_PACKAGES = 'ale_py', 'dm_control', 'gymnasium_robotics'
_NUM_STEPS = 12


def _stack(rows):
  rows = [dict(row) if hasattr(row, 'items') else row for row in rows]
  return tree.map_structure(lambda *leaves: np.array(leaves), *rows)


@absltest.skipUnless(
    all(importlib.util.find_spec(name) for name in _PACKAGES),
    'requirements/recording.txt is not installed.',
)
class EnvironmentPackagesTest(tf.test.TestCase):

  def _read(self, environment, seed):
    directory = os.path.join(self.create_tempdir().full_path, 'data')
    recording.record_episodes(
        environment, directory, 2, max_steps=_NUM_STEPS, seed=seed
    )
    episodes = loading.load_episodes(directory).as_numpy_iterator()
    return [episode['steps'] for episode in episodes]

  def _check(self, name, seed, reset, step, action_space):
    """Compares with a plain loop, to the last bit."""
    wanted = []
    action_space.seed(seed)
    for episode in range(2):
      observations, actions, rewards = [reset(episode)], [], []
      while len(actions) < _NUM_STEPS:
        actions.append(action_space.sample())
        observation, reward = step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
      rewards = np.array(rewards, np.float32)
      wanted.append(
          expected.steps(_stack(observations), _stack(actions), rewards)
      )
    golden.assert_frames_equal(self, self._read(name, seed), wanted)

  def test_gymnasium_ids_of_packages(self):
    for name in 'ALE/Pong-v5', 'PointMaze_UMaze-v3':
      with self.subTest(name):
        recorded = self._read(name, 3)
        # The package is imported by now.
        env = gymnasium.make(name)
        reset = lambda episode: env.reset(**({} if episode else {'seed': 3}))[0]
        step = lambda action: env.step(action)[:2]
        self._check(name, 3, reset, step, env.action_space)
        self.assertLen(recorded, 2)

  def test_dm_control(self):
    from dm_control import suite

    env = suite.load('walker', 'walk', task_kwargs={'random': 5})
    spec = env.action_spec()
    space = gymnasium.spaces.Box(spec.minimum, spec.maximum, dtype=spec.dtype)

    def step(action):
      time_step = env.step(action)
      return time_step.observation, time_step.reward

    reset = lambda episode: env.reset().observation
    self._check('dm_control/walker-walk', 5, reset, step, space)
    with self.assertRaisesRegex(
        ValueError, "no task 'fly' of a domain 'walker'"
    ):
      self._read('dm_control/walker-fly', 0)

  def test_dm_control_object_and_time_limit(self):
    from dm_control import suite

    env = suite.load(
        'cartpole', 'swingup', task_kwargs={'random': 0, 'time_limit': 0.05}
    )
    for steps in self._read(env, 0):
      # A time limit of five steps of 0.01 s: truncated, with discount 1.
      self.assertLen(steps['reward'], 6)
      self.assertFalse(steps['is_terminal'].any())
      self.assertAllEqual(steps['discount'], np.ones(6))


if __name__ == '__main__':
  tf.test.main()
