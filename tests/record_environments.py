"""Records the data sets in tests/data/recorded from real environments.

    pip install -e '.[recording]'
    MUJOCO_GL=egl python -m tests.record_environments /tmp/recorded

The data sets are part of the repository, because the environments are large and
rendering needs a graphics driver. An episode of `T` transitions has `T + 1`
RLDS steps. The action, reward and discount of the last step have no meaning:

    observation   o0   o1   o2    the observation before the action
    action        a0   a1   0
    reward        r1   r2   0     the reward for the action
    discount      1    0    0     0 for the transition to a terminal state

The names, shapes and dtypes of other fields depend on the environment.
"""

import os

from absl import app
import ale_py
from dm_control import suite
import gymnasium
import numpy as np

from tests import recordings

_PIXELS = (32, 32)
_MILLIMETRES = 1000


def _roll_out(seed, fields, act, step, number):
  """Runs an environment for one episode; returns the episode.

  Args:
    seed: the seed of the environment.
    fields: the fields of the first step that depend on the environment.
    act: a function that returns an action.
    step: a function of an action; returns the fields of the next step, the
      reward, and whether the episode is terminal or truncated.
    number: the dtype of rewards and discounts.
  """
  steps = []
  is_terminal = is_truncated = False
  while not (is_terminal or is_truncated):
    action = act()
    following, reward, is_terminal, is_truncated = step(action)
    steps.append(
        {
            **fields,
            'action': action,
            'reward': number(reward),
            'discount': number(not is_terminal),
            'is_first': not steps,
            'is_last': False,
            'is_terminal': False,
        }
    )
    fields = following
  last = {'is_first': False, 'is_last': True, 'is_terminal': is_terminal}
  zeros = {'action': np.zeros_like(action), 'reward': number(0)}
  steps.append({**steps[-1], **fields, **zeros, **last})
  return {'steps': steps, 'seed': seed}


def _walker():
  """dm_control: nested float64 observations, including a scalar."""
  for seed, seconds in enumerate((0.3, 0.45, 0.2)):
    settings = {'random': seed, 'time_limit': seconds}
    env = suite.load('walker', 'walk', task_kwargs=settings)
    yield _control_episode(env, seed, lambda env: {})


def _cartpole_pixels():
  """dm_control: camera images, color and depth."""

  def render(env):
    depth = env.physics.render(*_PIXELS, camera_id=0, depth=True)
    depth = np.clip(depth * _MILLIMETRES, 0, np.iinfo(np.uint16).max)
    return {
        'pixels': env.physics.render(*_PIXELS, camera_id=0),
        'depth': depth.astype(np.uint16)[..., np.newaxis],
    }

  for seed, seconds in enumerate((0.1, 0.14, 0.08)):
    settings = {'random': seed, 'time_limit': seconds}
    env = suite.load('cartpole', 'swingup', task_kwargs=settings)
    yield _control_episode(env, seed, render)


def _control_episode(env, seed, render):
  rng = np.random.default_rng(seed)
  spec = env.action_spec()
  fields_of = lambda time: {'observation': {**time.observation, **render(env)}}

  def step(action):
    time = env.step(action)
    is_terminal = time.last() and time.discount == 0
    is_truncated = time.last() and time.discount != 0
    return fields_of(time), time.reward, is_terminal, is_truncated

  act = lambda: rng.uniform(spec.minimum, spec.maximum)
  return _roll_out(seed, fields_of(env.reset()), act, step, np.float64)


def _half_cheetah():
  """MuJoCo: vectors, and infos in the format of D4RL."""

  def infos(env):
    data = env.unwrapped.data
    return {'infos': {'qpos': data.qpos.copy(), 'qvel': data.qvel.copy()}}

  for seed, length in enumerate((12, 20, 7)):
    env = gymnasium.make('HalfCheetah-v5', max_episode_steps=length)
    yield _gymnasium_episode(env, seed, infos)


def _breakout():
  """Atari: PNG images; two games terminate, and two are truncated."""
  for seed, length in enumerate((None, 5, None, 9)):
    env = gymnasium.make(
        'ALE/Breakout-v5', frameskip=40, max_episode_steps=length
    )
    lives = lambda env: {'lives': env.unwrapped.ale.lives()}
    yield _gymnasium_episode(env, seed, lives)


def _gymnasium_episode(env, seed, others):
  env.action_space.seed(seed)
  observation, _ = env.reset(seed=seed)

  def step(action):
    observation, reward, is_terminal, is_truncated, _ = env.step(action)
    return (
        {'observation': observation, **others(env)},
        reward,
        is_terminal,
        is_truncated and not is_terminal,
    )

  fields = {'observation': observation, **others(env)}
  act = env.action_space.sample
  episode = _roll_out(seed, fields, act, step, np.float32)
  env.close()
  return episode


def main(argv):
  gymnasium.register_envs(ale_py)
  recorded = _walker, _cartpole_pixels, _half_cheetah, _breakout
  for name, episodes in zip(recordings.NAMES, recorded):
    recordings.write(list(episodes()), os.path.join(argv[1], name))
    print(f'Recorded {name}.')


if __name__ == '__main__':
  app.run(main)
