"""Writes tests/data/torchrl.zip: small storages, saved by TorchRL itself.

    python -m tests.formats.write_torchrl_data tests/data/torchrl.zip

Needs a separate environment with torch 2.13.0, torchrl 0.14.1, tensordict
0.14.3 and h5py. The arrays that TorchRL has in memory, oldest transition first,
are saved next to each storage: an array for each key, like `next/observation`.
"""

import os
import shutil
import tempfile

from absl import app
import numpy as np
import tensordict
import torch
from torchrl import data

_STORAGES = (
    # The name, the capacity, whether the unfinished episode comes, too.
    ('flat', 8, False, data.FlatStorageCheckpointer),
    ('flat_room', 16, True, data.FlatStorageCheckpointer),
    ('flat_ring', 8, True, data.FlatStorageCheckpointer),
    ('nested', 10, True, data.NestedStorageCheckpointer),
    ('nested_room', 16, True, data.NestedStorageCheckpointer),
    ('hdf5', 10, True, data.H5StorageCheckpointer),
    ('transitions', 16, True, data.TensorStorageCheckpointer),
    ('ring', 8, True, data.TensorStorageCheckpointer),
    ('ring_alike', 8, True, data.TensorStorageCheckpointer),
)


def _episode(observations, rewards, *, terminated=False, truncated=False):
  observation = torch.tensor(observations, dtype=torch.float32)[:, None]
  length = len(rewards)
  never = torch.zeros(length, 1, dtype=torch.bool)
  at_end = lambda value: torch.cat([never[1:], torch.tensor([[value]])])
  return tensordict.TensorDict(
      {
          'observation': observation[:-1],
          'action': torch.arange(1, length + 1),
          'info': {'speed': torch.arange(length, dtype=torch.float64)},
          'done': never,
          'terminated': never.clone(),
          'truncated': never.clone(),
          'next': {
              'observation': observation[1:],
              'reward': torch.tensor(rewards, dtype=torch.float32)[:, None],
              'done': at_end(terminated or truncated),
              'terminated': at_end(terminated),
              'truncated': at_end(truncated),
          },
      },
      [length],
  )


def main(argv):
  _, file = argv
  episodes = [
      _episode(range(6), [1, 2, 3, 4, 5], terminated=True),
      _episode(range(10, 14), [10, 20, 30], truncated=True),
      _episode(range(20, 23), [7, 8]),
  ]
  with tempfile.TemporaryDirectory() as folder:
    for name, capacity, with_unfinished, checkpointer in _STORAGES:
      buffer = data.ReplayBuffer(
          storage=data.LazyTensorStorage(capacity), batch_size=1
      )
      buffer._storage.checkpointer = checkpointer()
      for episode in episodes[: 3 if with_unfinished else 2]:
        if name == 'ring_alike':
          # No observation tells where the oldest episode was written over.
          episode = episode.clone()
          episode['observation'].zero_()
          episode['next', 'observation'].zero_()
        buffer.extend(episode)
      buffer.dumps(os.path.join(folder, name))
      # A pickle of the number of threads, which no test reads.
      os.remove(os.path.join(folder, name, 'prefetch.pkl'))
      held = buffer[:]
      total = 10 if with_unfinished else 8
      if total > capacity:
        held = held.roll(-(total % capacity), 0)
      np.savez(
          os.path.join(folder, name, 'expected.npz'),
          **{
              '/'.join([key] if isinstance(key, str) else key): value.numpy()
              for key, value in held.items(True, True)
          },
      )
    shutil.make_archive(file.removesuffix('.zip'), 'zip', folder)


if __name__ == '__main__':
  app.run(main)
