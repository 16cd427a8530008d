"""Changes the steps of every episode with a transform of one's own.

    python -m examples.own_transform

It prints the rewards of two episodes before and after, and the last line those
of one that a policy's environment would have given:

    [0.0, 0.0, 1.0, 0.0] -> [-0.25, -0.25, 0.75, -0.25]
    [0.0, 1.0, 0.0] -> [-0.25, 0.75, -0.25]
    undone: [0.0, 1.0, 0.0]

One that looks at other steps is in docs/robotics.md, "Transforms of your own".
"""

import dataclasses

import numpy as np

from rlds2reverb import formats
from rlds2reverb import transforms


# Frozen and with eq=False, so that transforms are compared by their attributes.
@dataclasses.dataclass(frozen=True, eq=False)
class PayForTime(transforms.EpisodeTransform):
  """Takes a cost from the reward of every step."""

  cost: float = 0.25

  # A step's result depends on that step alone, so many are done at once.
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
  changed = transforms.transform_episodes(episodes, [pay])
  for before, after in zip(episodes, changed):
    before, after = before['steps']['reward'], after['steps']['reward']
    print(f'{before.numpy().tolist()} -> {after.numpy().tolist()}')
  undone = pay.invert({'reward': after})['reward']
  print(f'undone: {undone.numpy().tolist()}')


if __name__ == '__main__':
  main()
