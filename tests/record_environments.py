"""Records the data sets in tests/data/recorded from real environments.

    pip install -e '.[recording]'
    MUJOCO_GL=egl python -m tests.record_environments

They are recorded once and kept, because what they are recorded with is large,
and pixels need a graphics driver. An episode of `T` transitions is `T + 1` RLDS
steps; the action, reward and discount of the last one carry no meaning:

    observation   o0   o1   o2    what the environment shows before the action
    action        a0   a1   0
    reward        r1   r2   0     what it gives for the action
    discount      1    0    0     0 into a terminal state, and behind it

Only the names, shapes and dtypes of an environment's own fields differ.
"""

import os
from typing import Any, Callable, Dict, Iterator, List, NamedTuple

from absl import app
import ale_py
from dm_control import suite
import gymnasium
import numpy as np
import rlds
import tensorflow_datasets as tfds

from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.datasets import writing

_FOLDER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'data', 'recorded'
)
_PIXELS = (32, 32)
_MILLIMETRES = 1000

Step = Dict[str, Any]
Episode = Dict[str, Any]


class _Moment(NamedTuple):
  """What an environment shows at a time, and what it gave for the last action.

  Attributes:
    fields: the fields of the step that begins now, without what follows.
    reward: of the action that led here.
    is_terminal: whether the environment has ended the episode.
    is_truncated: whether a time limit has.
  """

  fields: Step
  reward: float = 0.0
  is_terminal: bool = False
  is_truncated: bool = False


def _roll_out(
    first: _Moment,
    act: Callable[[], np.ndarray],
    step: Callable[[np.ndarray], _Moment],
    number: Callable[[float], Any],
) -> List[Step]:
  """Returns the RLDS steps of one episode.

  Args:
    first: the moment after the environment was reset.
    act: returns an action.
    step: does an action; returns the moment after it.
    number: the dtype of rewards and discounts.
  """
  steps = []
  moment = first
  while not (moment.is_terminal or moment.is_truncated):
    action = act()
    following = step(action)
    steps.append(
        _step(
            moment,
            action,
            number(following.reward),
            number(not following.is_terminal),
            is_first=not steps,
        )
    )
    moment = following
  steps.append(
      _step(
          moment,
          np.zeros_like(action),
          number(0),
          number(not moment.is_terminal),
          is_first=False,
      )
  )
  return steps


def _step(moment, action, reward, discount, *, is_first):
  return {
      **moment.fields,
      rlds.ACTION: action,
      rlds.REWARD: reward,
      rlds.DISCOUNT: discount,
      rlds.IS_FIRST: is_first,
      rlds.IS_LAST: moment.is_terminal or moment.is_truncated,
      rlds.IS_TERMINAL: moment.is_terminal,
  }


def _walker() -> Iterator[Episode]:
  """dm_control: nested float64 observations, one of them a number."""
  for seed, seconds in enumerate((0.3, 0.45, 0.2)):
    env = suite.load(
        'walker', 'walk', task_kwargs={'random': seed, 'time_limit': seconds}
    )
    yield _control_episode(env, seed, lambda shown: {rlds.OBSERVATION: shown})


def _cartpole_pixels() -> Iterator[Episode]:
  """dm_control: camera images, colour and depth."""
  for seed, seconds in enumerate((0.1, 0.14, 0.08)):
    env = suite.load(
        'cartpole',
        'swingup',
        task_kwargs={'random': seed, 'time_limit': seconds},
    )

    def render(shown, physics=env.physics):
      depth = physics.render(*_PIXELS, camera_id=0, depth=True)
      depth = np.clip(depth * _MILLIMETRES, 0, np.iinfo(np.uint16).max)
      return {
          rlds.OBSERVATION: {
              **shown,
              'pixels': physics.render(*_PIXELS, camera_id=0),
              'depth': depth.astype(np.uint16)[..., np.newaxis],
          }
      }

    yield _control_episode(env, seed, render)


def _control_episode(env, seed, fields_of) -> Episode:
  rng = np.random.default_rng(seed)
  spec = env.action_spec()

  def step(action):
    shown = env.step(action)
    return _Moment(
        fields_of(shown.observation),
        shown.reward,
        is_terminal=shown.last() and shown.discount == 0,
        is_truncated=shown.last() and shown.discount != 0,
    )

  steps = _roll_out(
      _Moment(fields_of(env.reset().observation)),
      lambda: rng.uniform(spec.minimum, spec.maximum),
      step,
      np.float64,
  )
  return {rlds.STEPS: steps, 'seed': seed}


def _half_cheetah() -> Iterator[Episode]:
  """MuJoCo: vectors, and infos as D4RL has them."""
  for seed, length in enumerate((12, 20, 7)):
    env = gymnasium.make('HalfCheetah-v5', max_episode_steps=length)

    def fields_of(observation, data=env.unwrapped.data):
      infos = {'qpos': data.qpos.copy(), 'qvel': data.qvel.copy()}
      return {rlds.OBSERVATION: observation, 'infos': infos}

    yield _gymnasium_episode(env, seed, fields_of)


def _breakout() -> Iterator[Episode]:
  """Atari: PNG images; two games are over, and two are cut."""
  for seed, length in enumerate((None, 5, None, 9)):
    env = gymnasium.make(
        'ALE/Breakout-v5', frameskip=40, max_episode_steps=length
    )

    def fields_of(observation, ale=env.unwrapped.ale):
      return {rlds.OBSERVATION: observation, 'lives': ale.lives()}

    yield _gymnasium_episode(env, seed, fields_of)


def _gymnasium_episode(env, seed, fields_of) -> Episode:
  env.action_space.seed(seed)
  observation, _ = env.reset(seed=seed)

  def step(action):
    observation, reward, is_terminal, is_truncated, _ = env.step(action)
    return _Moment(
        fields_of(observation),
        reward,
        is_terminal=is_terminal,
        is_truncated=is_truncated and not is_terminal,
    )

  steps = _roll_out(
      _Moment(fields_of(observation)), env.action_space.sample, step, np.float32
  )
  env.close()
  return {rlds.STEPS: steps, 'seed': seed}


def _doubles(*shape):
  # TFDS keeps floats in 32 bits, unless as bytes.
  return tfds.features.Tensor(shape=shape, dtype=np.float64, encoding='bytes')


def _features(number, **own) -> Dict[str, Any]:
  return {
      rlds.STEPS: tfds.features.Dataset(
          {
              **own,
              rlds.REWARD: number,
              rlds.DISCOUNT: number,
              rlds.IS_FIRST: np.bool_,
              rlds.IS_LAST: np.bool_,
              rlds.IS_TERMINAL: np.bool_,
          }
      ),
      'seed': np.int64,
  }


_DATA_SETS = {
    'walker': (
        _walker,
        _features(
            _doubles(),
            observation={
                'orientations': _doubles(14),
                'height': _doubles(),
                'velocity': _doubles(9),
            },
            action=_doubles(6),
        ),
    ),
    'cartpole_pixels': (
        _cartpole_pixels,
        _features(
            _doubles(),
            observation={
                'position': _doubles(3),
                'velocity': _doubles(2),
                'pixels': tfds.features.Tensor(
                    shape=(*_PIXELS, 3), dtype=np.uint8, encoding='zlib'
                ),
                'depth': tfds.features.Image(
                    shape=(*_PIXELS, 1), dtype=np.uint16, encoding_format='png'
                ),
            },
            action=_doubles(1),
        ),
    ),
    'half_cheetah': (
        _half_cheetah,
        _features(
            np.float32,
            observation=_doubles(17),
            infos={'qpos': _doubles(9), 'qvel': _doubles(9)},
            action=tfds.features.Tensor(shape=(6,), dtype=np.float32),
        ),
    ),
    'breakout': (
        _breakout,
        _features(
            np.float32,
            observation=tfds.features.Image(
                shape=(210, 160, 3), encoding_format='png'
            ),
            lives=np.int64,
            action=np.int64,
        ),
    ),
}


def main(argv):
  del argv
  gymnasium.register_envs(ale_py)
  for name, (episodes, features) in _DATA_SETS.items():
    with whole.new_folder(
        os.path.join(_FOLDER, name), [versions.INFO_FILE], replace=True
    ) as folder:
      writing.write_episodes(
          episodes(),
          folder,
          name=name,
          description=episodes.__doc__,
          features=features,
      )
    print(f'Recorded {name}.')


if __name__ == '__main__':
  app.run(main)
