"""Writes the Minari data sets in tests/data/minari, with Minari itself.

    python -m tests.formats.write_minari_data tests/data/minari

Needs a separate environment with minari[arrow,create,hdf5] 0.5.4, which needs
NumPy 2. The arrays that Minari reads are saved next to each data set: an array
for each column and episode, named like `0/observations/pose/0`.
"""

import os
import shutil
import tempfile
from typing import Any

from absl import app
import gymnasium
import minari
import numpy as np


class _Rooms(gymnasium.Env):
  """Spaces of every kind; its values tell the episode and the step."""

  observation_space = gymnasium.spaces.Dict(
      {
          'camera': gymnasium.spaces.Box(0, 255, (32, 32), np.uint8),
          'mission': gymnasium.spaces.Text(20),
          'pose': gymnasium.spaces.Tuple(
              [
                  gymnasium.spaces.Box(-1e3, 1e3, (2,), np.float64),
                  gymnasium.spaces.Discrete(100),
              ]
          ),
      }
  )
  action_space = gymnasium.spaces.Dict(
      {
          'grip': gymnasium.spaces.Discrete(2),
          'move': gymnasium.spaces.Box(-1, 1, (2,), np.float32),
      }
  )

  def __init__(self):
    self._episode = -1
    self._rng = np.random.default_rng(0)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._episode += 1
    self._step = 0
    return self._observation(), self._info()

  def step(self, action):
    self._step += 1
    is_terminal = self._episode == 1 and self._step == 4
    reward = 0.5 * self._step
    return self._observation(), reward, is_terminal, False, self._info()

  def _observation(self):
    # All JPEGs of the first episode have the same number of bytes.
    camera = np.full((32, 32), 7 * self._step, np.uint8)
    if self._episode:
      camera[:16] = self._rng.integers(0, 255, (16, 32))
    value = 100.0 * self._episode + self._step
    return {
        'camera': camera,
        'mission': f'room{self._episode}' + 'x' * self._step,
        'pose': (np.array([value, -value]), self._step),
    }

  def _info(self):
    return {'energy': 10.0 - self._step, 'room': {'door': self._step % 2}}


def _record(
    env: gymnasium.Env, name: str, num_steps: int, data_format: str
) -> None:
  """Records 2 episodes, each cut after `num_steps`, with Minari's collector."""
  env = gymnasium.wrappers.TimeLimit(env, num_steps)
  env.action_space.seed(0)
  collector = minari.DataCollector(
      env, record_infos=True, data_format=data_format
  )
  for episode in range(2):
    collector.reset(seed=episode)
    is_over = False
    while not is_over:
      _, _, terminated, truncated, _ = collector.step(env.action_space.sample())
      is_over = terminated or truncated
  collector.create_dataset(dataset_id=f'{name}-v0', description=name)


def _flatten(name: str, value: Any) -> dict[str, np.ndarray]:
  """Returns the leaves of what Minari has read, by their paths."""
  if isinstance(value, np.ndarray) and value.dtype == object:
    # Of Arrow, Minari gives nested infos as an array of dicts.
    value = {key: np.array([row[key] for row in value]) for key in value[0]}
  if isinstance(value, dict):
    items = value.items()
  elif isinstance(value, tuple):
    items = enumerate(value)
  else:
    return {name: np.asarray(value)}
  found = {}
  for key, one in items:
    found.update(_flatten(f'{name}/{key}', one))
  return found


def _write_expected(name: str, path: str) -> None:
  arrays = {}
  for episode in minari.load_dataset(f'{name}-v0').iterate_episodes():
    for column in (
        *('observations', 'actions', 'rewards'),
        *('terminations', 'truncations', 'infos'),
    ):
      value = getattr(episode, column)
      if value is not None:
        arrays.update(_flatten(f'{episode.id}/{column}', value))
  np.savez_compressed(path, **arrays)


def main(argv):
  _, directory = argv
  with tempfile.TemporaryDirectory() as datasets:
    os.environ['MINARI_DATASETS_PATH'] = datasets
    for name, env, num_steps, data_format in (
        ('cartpole', gymnasium.make('CartPole-v1').unwrapped, 18, 'hdf5'),
        ('rooms', _Rooms(), 5, 'hdf5'),
        ('rooms_arrow', _Rooms(), 5, 'arrow'),
        ('rooms_parquet', _Rooms(), 5, 'parquet'),
    ):
      _record(env, name, num_steps, data_format)
      target = os.path.join(directory, name)
      shutil.rmtree(target, ignore_errors=True)
      shutil.copytree(os.path.join(datasets, f'{name}-v0'), target)
      _write_expected(name, os.path.join(target, 'expected.npz'))


if __name__ == '__main__':
  app.run(main)
