"""Writes small RLDS data sets of several files for the tests of jobs."""

from collections.abc import Sequence
import os
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import saving

FEATURES = {
    'steps': tfds.features.Dataset(
        {
            'observation': tfds.features.Tensor(shape=(2,), dtype=np.float32),
            'action': tfds.features.Tensor(shape=(1,), dtype=np.float32),
            'reward': np.float32,
            'discount': np.float32,
            'is_first': np.bool_,
            'is_last': np.bool_,
            'is_terminal': np.bool_,
        }
    )
}


def episode(
    index: int, length: int, *, discount: float = 1.0, terminal: bool = True
) -> dict[str, Any]:
  """Returns an episode whose values encode the episode index and the step."""
  return {
      'steps': [
          {
              'observation': np.array([index, step], np.float32),
              'action': np.array([index - step], np.float32),
              'reward': np.float32(100 * index + step),
              'discount': np.float32(discount),
              'is_first': step == 0,
              'is_last': step == length - 1,
              'is_terminal': terminal and step == length - 1,
          }
          for step in range(length)
      ]
  }


def write(
    directory: str,
    episodes: Sequence[dict[str, Any]],
    *,
    per_file: int = 2,
    split: str = 'train',
) -> str:
  """Writes episodes to files of `per_file` episodes; returns the directory."""
  os.makedirs(directory)
  saving.write_episodes(
      episodes,
      directory,
      name='numbered',
      description='Numbered episodes.',
      features=FEATURES,
      split=split,
      max_episodes_per_file=per_file,
  )
  return directory


def numbered(directory: str, lengths: Sequence[int], **kwargs: Any) -> str:
  """Writes valid episodes of these lengths; returns the directory."""
  return write(
      directory,
      [episode(index, length) for index, length in enumerate(lengths)],
      **kwargs,
  )


def files_of(directory: str) -> list[str]:
  """Returns the paths of the files with the episodes, sorted."""
  return [
      os.path.join(directory, name)
      for name in sorted(os.listdir(directory))
      if '.tfrecord' in name
  ]
