"""Samples items by priorities that a trainer updates, without a server.

    python -m examples.prioritized_replay

It prints the importance weights of items with the priorities 1, 4, 9 and 16,
and the fraction of each in 10,000 samples:

    weights [1.0, 0.5, 0.33, 0.25]
    drawn [0.1, 0.2, 0.3, 0.4]
"""

import numpy as np
import tensorflow as tf

import rlds2reverb
from rlds2reverb.replay import local


def main() -> None:
  # Item k is the transition from observation k.
  episodes = rlds2reverb.formats.load(
      {
          'observations': np.arange(4),
          'next_observations': np.arange(4) + 1,
          'actions': np.zeros(4, np.float32),
          'rewards': np.ones(4, np.float32),
          'terminals': np.arange(4) == 3,
      }
  )
  replay_buffer = rlds2reverb.EpisodesReplayBuffer(
      episodes, sampler=local.Prioritized(alpha=0.5)
  )
  batches = iter(replay_buffer.as_dataset(100, num_steps=2))
  frames, info = next(batches)  # All priorities are 1.
  item = frames.observation[:, 0]
  replay_buffer.update_priorities(info.key, tf.square(item + 1))

  frames, info = next(batches)
  item = frames.observation[:, 0]
  weights = replay_buffer.importance_weights(info, beta=1.0)[:, 0]
  weights = [round(float(weights[item == k][0]), 2) for k in range(4)]
  print(f'weights {weights}')
  counts = np.zeros(4)
  for _ in range(100):
    frames, info = next(batches)
    counts += np.bincount(frames.observation[:, 0], minlength=4)
  print(f'drawn {np.round(counts / counts.sum(), 1).tolist()}')


if __name__ == '__main__':
  main()
