"""Trains a JAX policy on RLDS data in place, with Grain, and resumes exactly.

    python -m examples.jax_batches /data/pendulum /data/indexes

`random_access.open_batches` builds the index of the data in the second folder;
see docs/guides/frameworks.md. The program prints the number of steps and, after
a restart in mid-epoch, whether the next batch is the same.
"""

import sys

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np

from rlds2reverb import random_access


def open_iterator(data, folder):
  batches = random_access.open_batches(
      {'pendulum': data},
      folder,
      batch_size=8,  # The sum over all processes.
      windows=random_access.ActionChunks(num_frames=2, num_actions=3),
      replacement=False,
      seed=1,
      process=(jax.process_index(), jax.process_count()),
  )
  return batches, iter(grain.MapDataset.source(batches).to_iter_dataset())


@jax.jit
def train_step(weights, observation, action, mask):
  def compute_loss(weights):
    actions = observation.reshape([len(observation), -1]) @ weights
    error = (actions - action[:, -1, :, 0]) ** 2
    return jnp.sum(error * mask[:, -1]) / jnp.sum(mask[:, -1])

  loss, gradient = jax.value_and_grad(compute_loss)(weights)
  return weights - 0.01 * gradient, loss


def main(data: str, folder: str) -> None:
  batches, iterator = open_iterator(data, folder)
  weights = jnp.zeros([2 * 3, 3])
  for _ in range(2):
    batch = next(iterator)
    arrays = [batch[k] for k in ('observation', 'action', 'action_mask')]
    weights, loss = train_step(weights, *arrays)
  print(f'{len(batches.items)} steps, a loss of {loss:.2f}')
  state = iterator.get_state()  # Save it in a checkpoint with the weights.
  expected = next(iterator)
  _, iterator = open_iterator(data, folder)
  iterator.set_state(state)
  same = np.array_equal(next(iterator)['action'], expected['action'])
  print('the same batch:', same)


if __name__ == '__main__':
  main(*sys.argv[1:])
