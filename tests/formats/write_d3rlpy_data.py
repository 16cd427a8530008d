"""Writes tests/data/d3rlpy: buffers that d3rlpy itself has dumped.

    python -m tests.formats.write_d3rlpy_data tests/data/d3rlpy

Needs a separate environment with d3rlpy 2.8.1 and what it imports.
"""

import os

from absl import app
from d3rlpy import dataset
import numpy as np

# Steps, and whether the episode is terminal.
_EPISODES = ((4, True), (3, False), (5, True))


def _episode(length, terminated, first, is_tuple):
  """Returns an episode that counts from `first` on."""
  rows = np.arange(first, first + length, dtype=np.float32)
  observations = np.stack([rows, -rows], 1)
  if is_tuple:
    observations = [observations, np.uint8(rows)[:, None, None]]
  return dataset.Episode(
      observations=observations,
      actions=np.int64(rows)[:, None] % 3,
      rewards=rows[:, None] / 2,
      terminated=terminated,
  )


def main(argv):
  _, directory = argv
  os.makedirs(directory, exist_ok=True)
  for name, is_tuple in (('arrays', False), ('tuples', True)):
    episodes = [
        _episode(length, terminated, 10 * index, is_tuple)
        for index, (length, terminated) in enumerate(_EPISODES)
    ]
    buffer = dataset.ReplayBuffer(dataset.InfiniteBuffer(), episodes=episodes)
    with open(os.path.join(directory, f'{name}.h5'), 'w+b') as f:
      buffer.dump(f)


if __name__ == '__main__':
  app.run(main)
