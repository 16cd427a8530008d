"""Samples recorded episodes in the training process, and resumes exactly.

    python -m examples.replay_without_server

It prints:

    20 items of 2 frames
    a batch of observations: (8, 2, 3)
    after a restart the same batch comes next: True
"""

import os
import tempfile

import numpy as np
import tensorflow as tf

import rlds2reverb


def main() -> None:
  with tempfile.TemporaryDirectory() as directory:
    data = os.path.join(directory, 'data')
    rlds2reverb.datasets.record_episodes(
        'Pendulum-v1', data, num_episodes=2, max_steps=10
    )
    replay_buffer = rlds2reverb.open_replay_buffer(data)
    print(f'{replay_buffer.num_items} items of 2 frames')
    batches = iter(replay_buffer.as_dataset(sample_batch_size=8, num_steps=2))
    frames, _ = next(batches)
    print(f'a batch of observations: {tuple(frames.observation.shape)}')

    checkpoint = tf.train.Checkpoint(replay_buffer=replay_buffer)
    path = checkpoint.save(os.path.join(directory, 'checkpoint'))
    expected, _ = next(batches)

    # A new process does the same:
    replay_buffer = rlds2reverb.open_replay_buffer(data)
    tf.train.Checkpoint(replay_buffer=replay_buffer).restore(path)
    frames, _ = next(iter(replay_buffer.as_dataset(8, num_steps=2)))
    same = np.array_equal(frames.observation, expected.observation)
    print(f'after a restart the same batch comes next: {same}')


if __name__ == '__main__':
  main()
