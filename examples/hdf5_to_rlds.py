"""Converts an HDF5 file of flat arrays, as in D4RL, to an RLDS data set.

    python -m examples.hdf5_to_rlds

It prints:

    2 episodes with 4 and 3 steps; terminal: True and False
"""

import os
import tempfile

import h5py
import numpy as np

from rlds2reverb import datasets
from rlds2reverb import formats


def main() -> None:
  with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, 'data.hdf5')
    with h5py.File(path, 'w') as file:
      # Episodes of 4 and 3 steps.
      states = np.random.rand(7, 3).astype(np.float32)
      file['observations'] = np.delete(states, [3, 6], axis=0)
      file['next_observations'] = np.delete(states, [0, 4], axis=0)
      file['actions'] = np.random.rand(5, 2).astype(np.float32)
      file['rewards'] = np.ones(5, np.float32)
      # Episode 0 terminates after 3 transitions, 1 is truncated after 2.
      file['terminals'] = np.array([0, 0, 1, 0, 0], bool)
      file['timeouts'] = np.array([0, 0, 0, 0, 1], bool)

    episodes = formats.load(path)
    saved = datasets.save_episodes(episodes, os.path.join(directory, 'rlds'))

    # TFDS can also read the data set.
    loaded = [episode['steps'] for episode in datasets.load_episodes(saved)]
    lengths = ' and '.join(str(len(steps['reward'])) for steps in loaded)
    terminal = ' and '.join(str(bool(s['is_terminal'][-1])) for s in loaded)
    print(f'{len(loaded)} episodes with {lengths} steps; terminal: {terminal}')


if __name__ == '__main__':
  main()
