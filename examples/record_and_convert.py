"""Records episodes of a gym environment, and converts them to trajectories.

    python -m examples.record_and_convert

It prints:

    recorded 3 episodes with 21 steps each
    converted 63 frames; in 3 of them an episode begins
    an observation is float32 (3,), an action float32 (1,)
"""

import tempfile

import numpy as np

import rlds2reverb


def main() -> None:
  with tempfile.TemporaryDirectory() as directory:
    rlds2reverb.datasets.record_episodes(
        'Pendulum-v1', directory, num_episodes=3, max_steps=20
    )
    # Steps are stacked: every field of an episode is one tensor [T, ...].
    episodes = rlds2reverb.load_episodes(directory)
    [length] = {len(episode['steps']['reward']) for episode in episodes}
    print(f'recorded {len(episodes)} episodes with {length} steps each')

    # A block is a Trajectory of many frames: every leaf is [B, ...].
    num_frames, num_first = 0, 0
    for block in rlds2reverb.convert_rlds_to_trajectories(
        episodes, batched=True
    ):
      num_frames += len(block.step_type)
      num_first += np.sum(block.is_first())
    print(
        f'converted {num_frames} frames; in {num_first} of them an episode'
        ' begins'
    )
    spec = rlds2reverb.create_trajectory_data_spec(episodes)
    print(
        f'an observation is {spec.observation.dtype.name}'
        f' {spec.observation.shape}, an action {spec.action.dtype.name}'
        f' {spec.action.shape}'
    )


if __name__ == '__main__':
  main()
