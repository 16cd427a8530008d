"""Writes the trajectories in tests/data/imitation, with imitation itself.

    python -m tests.formats.write_imitation_data \
        tests/data/imitation

Needs a separate environment with imitation 1.0.1 and NumPy 2. The npz file has
an old layout that imitation reads, but does not write anymore. The arrays that
imitation reads, such as `folder/0/obs`, are saved next to the data.
"""

import os
import shutil

from absl import app
from imitation.data import serialize
from imitation.data import types
import numpy as np

_LENGTHS = (4, 1, 6)


def _make_trajectories():
  rng = np.random.default_rng(0)
  return [
      types.TrajectoryWithRew(
          obs=rng.normal(size=(length + 1, 3)).astype(np.float32),
          acts=rng.integers(0, 4, length),
          infos=np.array([{'step': step} for step in range(length)]),
          terminal=index != 1,
          rews=rng.normal(size=length),
      )
      for index, length in enumerate(_LENGTHS)
  ]


def _write_npz(path, trajectories) -> None:
  np.savez_compressed(
      path,
      obs=np.concatenate([trajectory.obs for trajectory in trajectories]),
      acts=np.concatenate([trajectory.acts for trajectory in trajectories]),
      infos=np.concatenate([trajectory.infos for trajectory in trajectories]),
      rews=np.concatenate([trajectory.rews for trajectory in trajectories]),
      terminal=np.array([trajectory.terminal for trajectory in trajectories]),
      indices=np.cumsum([len(trajectory) for trajectory in trajectories[:-1]]),
  )


def main(argv):
  _, directory = argv
  shutil.rmtree(directory, ignore_errors=True)
  os.makedirs(directory)
  trajectories = _make_trajectories()
  folder = os.path.join(directory, 'folder')
  path = os.path.join(directory, 'trajectories.npz')
  serialize.save(folder, trajectories)
  without_rewards = [
      types.Trajectory(
          trajectory.obs, trajectory.acts, None, trajectory.terminal
      )
      for trajectory in trajectories
  ]
  serialize.save(os.path.join(directory, 'without_rewards'), without_rewards)
  _write_npz(path, trajectories)
  arrays = {}
  for name, source in (('folder', folder), ('npz', path)):
    for index, one in enumerate(serialize.load(source)):
      for key in ('obs', 'acts', 'rews', 'terminal'):
        arrays[f'{name}/{index}/{key}'] = np.asarray(getattr(one, key))
      arrays[f'{name}/{index}/step'] = np.array([i['step'] for i in one.infos])
  np.savez_compressed(os.path.join(directory, 'expected.npz'), **arrays)


if __name__ == '__main__':
  app.run(main)
