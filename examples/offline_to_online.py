"""Mixes recorded and online experience in equal parts, as in RLPD.

    python -m examples.offline_to_online

It prints:

    a batch of observations: (8, 2, 4), of which 4 are recorded
"""

import tempfile

import numpy as np
from tf_agents.drivers import dynamic_step_driver
from tf_agents.environments import suite_gym
from tf_agents.environments import tf_py_environment
from tf_agents.policies import random_tf_policy

import rlds2reverb
from rlds2reverb.replay import local


def main() -> None:
  with tempfile.TemporaryDirectory() as directory:
    rlds2reverb.datasets.record_episodes('CartPole-v1', directory, 5)
    episodes = rlds2reverb.load_episodes(directory)
    recorded = rlds2reverb.open_replay_buffer(episodes)

  environment = tf_py_environment.TFPyEnvironment(suite_gym.load('CartPole-v1'))
  policy = random_tf_policy.RandomTFPolicy(
      environment.time_step_spec(), environment.action_spec()
  )
  # Starts empty. When it is full, new frames replace the oldest ones.
  online = local.AppendableReplayBuffer(policy.trajectory_spec, capacity=1000)
  driver = dynamic_step_driver.DynamicStepDriver(
      environment, policy, observers=[online.add_batch], num_steps=50
  )
  driver.run()

  # The first half of each batch is recorded, the second half is online.
  batches = rlds2reverb.datasets.mix_datasets(
      {
          'recorded': recorded.as_dataset(8, num_steps=2),
          'online': online.as_dataset(8, num_steps=2),
      },
      batch_size=8,
  )
  for batch in batches.take(1):
    frames, _ = batch.element
    count = np.sum(batch.source == 0)
    print(
        f'a batch of observations: {tuple(frames.observation.shape)},'
        f' of which {count} are recorded'
    )


if __name__ == '__main__':
  main()
