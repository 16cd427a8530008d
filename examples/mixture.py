"""Samples episodes of several data sets by weights.

    python -m examples.mixture

It prints the data sets that have a field, and the fraction of human episodes:

    observation/camera exists in: human
    human 0.8
"""

import numpy as np

from rlds2reverb import datasets
from rlds2reverb import formats


def _episodes(observations):
  return formats.load(
      {
          'observations': observations,
          'actions': np.zeros((6, 2), np.float32),
          'rewards': np.zeros(6, np.float32),
          'terminals': np.arange(6) % 3 == 2,  # Two episodes.
      }
  )


def main() -> None:
  state = np.zeros((6, 4), np.float32)
  camera = np.zeros((6, 8, 8, 3), np.uint8)
  # Missing fields of a data set are filled with zeros, and masked.
  mixed = datasets.mix_datasets(
      {
          'robot': _episodes({'state': state}),
          'human': _episodes({'state': state, 'camera': camera}),
      },
      weights={'robot': 1, 'human': 4},
      seed=0,
  ).take(300)
  source, mask = zip(*((e.source.numpy(), e.mask) for e in mixed))
  names = np.array(['robot', 'human'])
  [field] = mask[0]
  owners = {names[index] for index, m in zip(source, mask) if m[field]}
  print(f'{field.split("steps/")[-1]} exists in: {", ".join(owners)}')
  print(f'human {np.mean(names[list(source)] == "human"):.1f}')


if __name__ == '__main__':
  main()
