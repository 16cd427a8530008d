"""Tests of recording real episodes, and of reading them back."""

import os

from absl.testing import parameterized
import gym
import gymnasium
from gymnasium.vector import AutoresetMode
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.environments import batched_py_environment
from tf_agents.environments import gym_wrapper
from tf_agents.environments import random_py_environment
from tf_agents.policies import random_py_policy
from tf_agents.policies import random_tf_policy
from tf_agents.specs import array_spec
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from tests import golden
from tests.formats import expected

_NUM_STEPS = 4


class _Reusing(gymnasium.Env):
  """Returns the same arrays at every step, and modifies its arguments."""

  action_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)

  observation_space = gymnasium.spaces.Dict(
      a=gymnasium.spaces.Dict(b=gymnasium.spaces.Box(-99, 99, (3,), np.float32))
  )

  def __init__(self):
    self._observation = np.zeros(3, np.float32)
    self._returned = {'a': {'b': self._observation}}

  def reset(self, *, seed=None, options=None):
    self._observation[:] = 10
    return self._returned, {}

  def step(self, action):
    self._observation += 1
    action[:] = -1
    over = self._observation[0] == 10 + 1.5 * _NUM_STEPS
    return self._returned, 0.0, over, False, {}


class _Nested(gymnasium.Env):
  """Has every kind of space; an episode of k + 2 steps ends in either way."""

  observation_space = gymnasium.spaces.Dict(
      image=gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8),
      pair=gymnasium.spaces.Tuple(
          [
              gymnasium.spaces.Discrete(9),
              gymnasium.spaces.Box(-1, 1, (2,), np.float64),
          ]
      ),
      text=gymnasium.spaces.Text(9),
  )
  action_space = gymnasium.spaces.Tuple(
      [gymnasium.spaces.Discrete(3), gymnasium.spaces.MultiBinary(2)]
  )

  def reset(self, *, seed=None, options=None):
    if seed is not None:
      self._random, self._episode = np.random.default_rng(seed), -1
    self._episode += 1
    self._time = 0
    return self._observation(), {'info': 1}

  def _observation(self):
    return {
        'image': self._random.integers(0, 256, (4, 5, 3), np.uint8),
        'pair': (self._time, self._random.uniform(-1, 1, 2)),
        'text': f'step {self._time}',
    }

  def step(self, action):
    self._time += 1
    is_over = self._time == self._episode + 2
    is_terminal = is_over and self._episode % 2 == 0
    reward = self._random.normal()
    # Both truncated and terminated may be set.
    return self._observation(), reward, is_terminal, is_over, {}


def _play(env, num_episodes, seed, num_steps=None, act=None):
  """Plays episodes in a plain loop: golden episodes of a Gymnasium env."""
  env.action_space.seed(seed)
  episodes = []
  for index in range(num_episodes):
    observation, _ = env.reset(**({} if index else {'seed': seed}))
    observations, actions, rewards = [observation], [], []
    terminated = truncated = False
    while not (terminated or truncated or len(actions) == num_steps):
      actions.append(act(observation) if act else env.action_space.sample())
      observation, reward, terminated, truncated, _ = env.step(actions[-1])
      observations.append(observation)
      rewards.append(reward)
    stack = lambda rows: tf.nest.map_structure(lambda *x: np.array(x), *rows)
    episodes.append(
        expected.steps(
            stack(observations),
            stack(actions),
            np.array(rewards, np.float32),
            terminal=terminated,
        )
    )
  env.close()
  return episodes


def _read(directory):
  return [
      episode['steps']
      for episode in loading.load_episodes(directory).as_numpy_iterator()
  ]


class RecordEpisodesTest(parameterized.TestCase, tf.test.TestCase):

  def _directory(self):
    return os.path.join(self.create_tempdir().full_path, 'recorded')

  def _record(self, environment, num_episodes, **kwargs):
    directory = self._directory()
    recording.record_episodes(environment, directory, num_episodes, **kwargs)
    return _read(directory)

  @parameterized.product(
      name=['CartPole-v1', 'Pendulum-v1'], kind=['id', 'object', 'function']
  )
  @pytest.mark.few(3)
  def test_steps_equal_those_of_the_environment(self, name, kind):
    env = gymnasium.make(name)
    given = {'id': name, 'object': env, 'function': lambda: env}[kind]
    recorded = self._record(given, 2, seed=7)
    wanted = _play(gymnasium.make(name), 2, 7)
    self.assertEqual(wanted[0]['is_terminal'][-1], name == 'CartPole-v1')
    golden.assert_frames_equal(self, recorded, wanted)

  def test_structures_and_both_kinds_of_ends(self):
    recorded = self._record(_Nested, 4, seed=3)
    wanted = _play(_Nested(), 4, 3)
    self.assertEqual(
        [w['is_terminal'][-1] for w in wanted], [True, False, True, False]
    )
    for steps, want in zip(recorded, wanted, strict=True):
      for name in 'reward', 'discount', 'is_first', 'is_last', 'is_terminal':
        self.assertAllEqual(steps[name], want[name])
      observation = want['observation']
      self.assertAllEqual(steps['observation']['image'], observation['image'])
      for i in range(2):
        pair = steps['observation']['pair'][str(i)]
        self.assertEqual(pair.dtype, observation['pair'][i].dtype)
        self.assertAllEqual(pair, observation['pair'][i])
        self.assertAllEqual(steps['action'][str(i)], want['action'][i])
      self.assertAllEqual(steps['observation']['text'], observation['text'])

  def test_gym_0_23(self):
    for name, seed in ('CartPole-v1', 4), ('Pendulum-v1', 5):
      recorded = self._record(gym.make(name), 2, seed=seed)
      env = gym.make(name)
      env.seed(seed)
      env.action_space.seed(seed)
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
      golden.assert_frames_equal(self, recorded, wanted)

  @parameterized.product(
      mode=list(AutoresetMode), name=['CartPole-v1', 'nested']
  )
  def test_vectorized_environments_record_in_parallel(self, mode, name):
    make = _Nested if name == 'nested' else lambda: gymnasium.make(name)
    if name == 'nested':
      act = lambda o: (o['pair'][0] % 3, o['image'][0, 0, :2] % 2)
      policy = lambda o: (o['pair'][0] % 3, o['image'][:, 0, 0, :2] % 2)
    else:
      act = lambda o: int(o[2] + o[3] > 0)
      policy = lambda o: (o[:, 2] + o[:, 3] > 0).astype(int)
    env = gymnasium.vector.SyncVectorEnv([make] * 3, autoreset_mode=mode)
    recorded = self._record(env, 7, policy=policy, seed=5)
    # Each environment has the next seed. The first one records three episodes.
    wanted = [
        _play(make(), 3 if i == 0 else 2, 5 + i, act=act) for i in range(3)
    ]
    key = lambda steps: np.asarray(
        steps['reward'] if name == 'nested' else steps['observation']
    ).tobytes()
    actual = {key(steps): steps for steps in recorded}
    self.assertLen(actual, 7)
    self.assertLen(recorded, 7)
    for steps in (one for episodes in wanted for one in episodes):
      if name == 'nested':
        recorded_steps = actual[key(steps)]
        for field in 'is_first', 'is_last', 'is_terminal', 'discount':
          self.assertAllEqual(recorded_steps[field], steps[field])
        self.assertAllEqual(
            recorded_steps['observation']['image'],
            steps['observation']['image'],
        )
        self.assertAllEqual(recorded_steps['action']['1'], steps['action'][1])
      else:
        golden.assert_frames_equal(self, [actual[key(steps)]], [steps])

  def test_max_steps_of_vectorized_environments(self):
    make = lambda mode: gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make('CartPole-v1')] * 2, autoreset_mode=mode
    )
    policy = lambda o: np.zeros(2, int)
    recorded = self._record(
        make(AutoresetMode.DISABLED), 4, policy=policy, max_steps=5, seed=1
    )
    act = lambda o: 0
    wanted = [
        _play(gymnasium.make('CartPole-v1'), 2, 1 + i, 5, act) for i in range(2)
    ]
    # Both are cut at the same time.
    wanted = [wanted[0][0], wanted[1][0], wanted[0][1], wanted[1][1]]
    golden.assert_frames_equal(self, recorded, wanted)
    with self.assertRaisesRegex(ValueError, 'max_steps cannot cut'):
      self._record(make(AutoresetMode.NEXT_STEP), 4, max_steps=5)

  def test_tf_agents_environments_alone_and_batched(self):
    class Counting(random_py_environment.RandomPyEnvironment):
      """Ends after 3 steps, terminal in every second episode."""

      def __init__(self, start):
        super().__init__(
            array_spec.BoundedArraySpec((2,), np.float64, -1, 1),
            array_spec.BoundedArraySpec((), np.int32, 0, 4),
        )
        self._count, self._steps = start, 0

      def _reset(self):
        self._steps = 0
        self._count += 1
        return ts.restart(np.array([self._count, 0.0]))

      def _step(self, action):
        self._steps += 1
        observation = np.array([self._count, self._steps / 3])
        reward = np.float32(action)
        if self._steps < 3:
          return ts.transition(observation, reward, discount=0.5)
        if self._count % 2:
          return ts.termination(observation, reward)
        return ts.truncation(observation, reward, discount=0.5)

    single = self._record(Counting(0), 4)
    env = batched_py_environment.BatchedPyEnvironment(
        [Counting(0), Counting(10)], multithreading=False
    )
    batched = self._record(
        env, 4, policy=lambda o: o[:, 0].astype(np.int32) % 5
    )
    self.assertEqual(
        [steps['observation'][0, 0] for steps in single], [1, 2, 3, 4]
    )
    self.assertEqual(
        [steps['observation'][0, 0] for steps in batched], [1, 11, 2, 12]
    )
    for steps in (*single, *batched):
      count = steps['observation'][0, 0]
      terminal = bool(count % 2)
      times = [[count, t / 3] for t in range(4)]
      self.assertAllEqual(steps['observation'], times)
      self.assertAllEqual(steps['reward'][:3], steps['action'][:3])
      self.assertAllEqual(steps['is_terminal'], [False] * 3 + [terminal])
      end = 0 if terminal else 0.5
      self.assertAllEqual(steps['discount'], [0.5, 0.5, end, end])
    for steps in batched:
      count = steps['observation'][0, 0]
      self.assertAllEqual(steps['action'], [count % 5] * 3 + [0])

  def test_gym_in_tf_agents_wrappers(self):
    # They forward unknown attributes, such as spaces, to Gym.
    make = lambda: gym_wrapper.GymWrapper(gym.make('CartPole-v1'))
    batched = batched_py_environment.BatchedPyEnvironment(
        [make(), make()], multithreading=False
    )
    single = [
        self._record(make(), 1, policy=lambda o: 1, seed=s) for s in (3, 4)
    ]
    both = self._record(batched, 2, policy=lambda o: np.ones(2, int), seed=3)
    wanted = []
    for seed in 3, 4:
      env = gym.make('CartPole-v1')
      env.seed(seed)
      observations, done = [env.reset()], False
      while not done:
        observation, _, done, _ = env.step(1)
        observations.append(observation)
      wanted.append(np.array(observations, np.float32))
    actual = [steps['observation'] for (steps,) in single]
    for actual_value, expected_value in zip(actual, wanted):
      self.assertAllEqual(actual_value, expected_value)
    # Each environment has the next seed.
    key = lambda observation: observation[0].tolist()
    for actual_value, expected_value in zip(
        sorted((steps['observation'] for steps in both), key=key),
        sorted(wanted, key=key),
    ):
      self.assertAllEqual(actual_value, expected_value)

  def test_policies_of_tf_agents(self):
    env = gym_wrapper.GymWrapper(gym.make('CartPole-v1'))
    specs = env.time_step_spec(), env.action_spec()
    python_policy = random_py_policy.RandomPyPolicy(*specs, seed=1)
    tf_policy = random_tf_policy.RandomTFPolicy(
        *map(tensor_spec.from_spec, specs)
    )
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make('CartPole-v1')] * 2
    )
    for environment, policy in (
        ('CartPole-v1', python_policy),
        ('CartPole-v1', tf_policy),
        (vector, tf_policy),
    ):
      recorded = self._record(environment, 3, policy=policy)
      self.assertLen(recorded, 3)
      for steps in recorded:
        self.assertAllInSet(steps['action'], [0, 1])
        # The effect of the actions: a push to the right accelerates the cart.
        speeds = np.diff(steps['observation'][:, 1])
        self.assertAllEqual(speeds > 0, steps['action'][:-1] == 1)

  def test_policy_is_reset_and_its_info_is_recorded(self):

    class Counting:
      info_space = gymnasium.spaces.Dict(
          count=gymnasium.spaces.Box(0, 99, (1,), np.float32)
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

    recording.record_episodes(_Reusing(), directory, 2, policy=policy)
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
        ('NoSuchEnvironment-v0', 1, {}, 'no Gymnasium environment'),
        ('LunarLander-v3', 1, {}, 'cannot be made.*pip install'),
        ('FetchNoSuch-v1', 1, {}, 'pip install gymnasium-robotics'),
        (3, 1, {}, 'An environment must be an id, .* is a int'),
        (object(), 1, {}, 'An environment must be'),
        (object, 1, {}, 'neither observation_space'),
        ('CartPole-v1', 1, {'policy': 3}, 'A policy must be a function'),
        ('CartPole-v1', 0, {}, 'num_episodes must be a positive integer'),
        ('CartPole-v1', 2.5, {}, 'num_episodes must be a positive integer'),
        ('CartPole-v1', 1, {'max_steps': 0}, 'max_steps must be a positive'),
        ('CartPole-v1', 1, {'max_steps': 2.5}, 'max_steps must be a positive'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        recording.record_episodes(name, self._directory(), count, **kwargs)


if __name__ == '__main__':
  tf.test.main()
