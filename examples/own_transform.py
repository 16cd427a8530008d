"""Changes the steps of every episode with a custom transform.

    python -m examples.own_transform

It prints the rewards of two episodes before and after the transform, and the
rewards of the second episode after the inverse transform:

    [0.0, 0.0, 1.0, 0.0] -> [-0.25, -0.25, 0.75, -0.25]
    [0.0, 1.0, 0.0] -> [-0.25, 0.75, -0.25]
    undone: [0.0, 1.0, 0.0]

"Custom transforms" in docs/robotics.md shows a transform that uses other steps.
"""

import dataclasses

import numpy as np

from rlds2reverb import formats
from rlds2reverb import transforms


# Frozen, with eq=False: the base class compares transforms by attributes.
@dataclasses.dataclass(frozen=True, eq=False)
class PayForTime(transforms.EpisodeTransform):
  """Subtracts a cost from the reward of every step."""

  cost: float = 0.25

  # The steps of many episodes, [N, ...]: no step depends on another one.
  def transform(self, steps):
    return {**steps, 'reward': steps['reward'] - self.cost}

  def invert(self, steps):
    return {**steps, 'reward': steps['reward'] + self.cost}


def main() -> None:
  episodes = formats.load(
      {
          'observations': np.zeros(5, np.float32),
          'next_observations': np.zeros(5, np.float32),
          'actions': np.zeros(5, np.float32),
          'rewards': np.array([0, 0, 1, 0, 1], np.float32),
          'terminals': np.array([0, 0, 1, 0, 1], bool),
      }
  )
  pay = PayForTime()
  transformed = transforms.transform_episodes(episodes, [pay])
  for episode, changed in zip(episodes, transformed):
    old, new = episode['steps']['reward'], changed['steps']['reward']
    print(f'{old.numpy().tolist()} -> {new.numpy().tolist()}')
  undone = pay.invert({'reward': new})['reward']
  print(f'undone: {undone.numpy().tolist()}')


if __name__ == '__main__':
  main()
