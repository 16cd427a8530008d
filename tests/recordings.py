"""Reads and writes the data sets of `tests/record_environments.py`."""

import os
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import saving

FOLDER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'data', 'recorded'
)
NAMES = ('walker', 'cartpole_pixels', 'half_cheetah', 'breakout')


def read(path: str) -> list[list[dict[str, Any]]]:
  """Reads the steps of each episode, with TFDS only."""
  episodes = tfds.builder_from_directory(path).as_dataset(split='train')
  return [list(episode['steps']) for episode in tfds.as_numpy(episodes)]


def write(episodes: list[dict[str, Any]], path: str) -> None:
  """Writes episodes with TFDS, which infers features from the first step.

  Args:
    episodes: dicts of metadata and `steps`, a list of steps.
    path: the directory, which must not exist.
  """
  os.makedirs(path)
  features = {
      key: tfds.features.Dataset(_feature(value[0]))
      if key == 'steps'
      else _feature(value)
      for key, value in episodes[0].items()
  }
  saving.write_episodes(
      episodes,
      path,
      name=os.path.basename(path),
      description='Recorded episodes.',
      features=features,
  )


def _feature(value):
  if isinstance(value, dict):
    return {key: _feature(item) for key, item in value.items()}
  value = np.asarray(value)
  if value.ndim == 3:
    return tfds.features.Image(
        shape=value.shape, dtype=value.dtype, encoding_format='png'
    )
  # TFDS stores float64 as float32, except with the encoding "bytes".
  encoding = 'bytes' if value.dtype == np.float64 else 'none'
  return tfds.features.Tensor(
      shape=value.shape, dtype=value.dtype, encoding=encoding
  )
