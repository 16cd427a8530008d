"""Trains a PyTorch policy on RLDS data in place, and resumes exactly.

    python -m examples.pytorch_batches /data/pendulum /data/indexes [fork]

`random_access.open_batches` builds the index of the data in the second folder;
see docs/guides/frameworks.md. `fork` may also be `spawn`. The program prints
the number of steps and, after a restart in mid-epoch, whether the next batch is
the same.
"""

import sys

import torch

from rlds2reverb import random_access


def open_batches(data, folder):
  return random_access.open_batches(
      {'pendulum': data},
      folder,
      batch_size=8,
      windows=random_access.ActionChunks(num_frames=2, num_actions=3),
      replacement=False,
      seed=1,
  )


def load(batches, start, stop, context):
  return torch.utils.data.DataLoader(
      batches,
      batch_size=None,  # Elements already are batches.
      sampler=range(start, stop),
      num_workers=2,
      multiprocessing_context=context,
  )


def main(data: str, folder: str, context: str = 'fork') -> None:
  batches = open_batches(data, folder)
  torch.manual_seed(0)
  policy = torch.nn.Linear(2 * 3, 3)
  optimizer = torch.optim.Adam(policy.parameters())
  observations = []
  for batch in load(batches, 0, 4, context):
    actions = policy(batch['observation'].flatten(1))
    error = (actions - batch['action'][:, -1, :, 0]) ** 2
    loss = error[batch['action_mask'][:, -1]].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    observations.append(batch['observation'])
  print(f'{len(batches.items)} steps, a loss of {loss:.2f}')
  # Another process resumes after two batches, with a checkpoint of the policy.
  batch = next(iter(load(open_batches(data, folder), 2, 4, context)))
  print('the same batch:', torch.equal(batch['observation'], observations[2]))


if __name__ == '__main__':
  main(*sys.argv[1:])
