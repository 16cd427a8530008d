"""Writes a Reverb checkpoint without a server, and starts a server from it.

    python -m examples.reverb_checkpoint

It prints:

    wrote 10 transitions and 4 sequences
    a batch of sequences: (2, 4, 3)
"""

import os
import tempfile

import numpy as np

import rlds2reverb


def main() -> None:
  states = np.random.rand(12, 3).astype(np.float32)  # 6 steps per episode.
  episodes = rlds2reverb.formats.load(
      {
          'observations': np.delete(states, [5, 11], axis=0),
          'next_observations': np.delete(states, [0, 6], axis=0),
          'actions': np.random.rand(10, 1).astype(np.float32),
          'rewards': np.ones(10, np.float32),
          'terminals': np.arange(10) % 5 == 4,  # 2 episodes.
      }
  )
  tables = [
      rlds2reverb.TableItems('transitions'),
      # Steps 0 to 3 and steps 2 to 5 of each episode.
      rlds2reverb.TableItems('sequences', rlds2reverb.Windows(4, 2)),
  ]
  with tempfile.TemporaryDirectory() as directory:
    checkpoint = os.path.join(directory, 'checkpoint')
    rlds2reverb.write_reverb_checkpoint(episodes, checkpoint, tables)
    server = rlds2reverb.restore_reverb_server(checkpoint)
    info = server.localhost_client().server_info()
    print(
        f'wrote {info["transitions"].current_size} transitions and'
        f' {info["sequences"].current_size} sequences'
    )
    replay_buffer = rlds2reverb.open_replay_buffer(
        None,
        rlds2reverb.Windows(4),
        reverb_server=server,
        table_name='sequences',
    )
    frames, _ = next(iter(replay_buffer.as_dataset(2, num_steps=4)))
    print(f'a batch of sequences: {tuple(frames.observation.shape)}')
    server.stop()


if __name__ == '__main__':
  main()
