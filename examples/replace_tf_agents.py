"""Pushes episodes to Reverb as with TF-Agents, by changing one import.

    python -m examples.replace_tf_agents

It prints:

    pushed 12 frames, and the table has 10 items
    a batch of observations: (4, 2, 3)
"""

import numpy as np
import reverb
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec

from rlds2reverb import formats
from rlds2reverb import rlds_to_reverb  # Instead of tf_agents.replay_buffers.


def main() -> None:
  states = np.random.rand(12, 3).astype(np.float32)  # 6 steps per episode.
  episodes = formats.load(
      {
          'observations': np.delete(states, [5, 11], axis=0),
          'next_observations': np.delete(states, [0, 6], axis=0),
          'actions': np.random.rand(10, 1).astype(np.float32),
          'rewards': np.ones(10, np.float32),
          'terminals': np.arange(10) % 5 == 4,  # 2 episodes, 5 transitions.
      }
  )
  spec = rlds_to_reverb.create_trajectory_data_spec(episodes)
  table = reverb.Table(
      'experience',
      sampler=reverb.selectors.Uniform(),
      remover=reverb.selectors.Fifo(),
      max_size=1000,
      rate_limiter=reverb.rate_limiters.MinSize(1),
      signature=tensor_spec.add_outer_dim(spec),
  )
  server = reverb.Server([table])
  replay_buffer = reverb_replay_buffer.ReverbReplayBuffer(
      spec, 'experience', sequence_length=2, local_server=server
  )
  observer = reverb_utils.ReverbAddTrajectoryObserver(
      replay_buffer.py_client, 'experience', sequence_length=2
  )
  pushed = rlds_to_reverb.push_rlds_to_reverb(episodes, observer)
  observer.close()
  size = replay_buffer.py_client.server_info()['experience'].current_size
  print(f'pushed {pushed} frames, and the table has {size} items')
  frames, _ = next(iter(replay_buffer.as_dataset(4, num_steps=2)))
  print(f'a batch of observations: {tuple(frames.observation.shape)}')
  server.stop()


if __name__ == '__main__':
  main()
