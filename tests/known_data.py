"""Random episodes with the features of well-known data sets."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds


def random_episode(
    features: tfds.features.FeaturesDict, length: int, is_terminal: bool
) -> dict[str, Any]:
  """Returns an episode with stacked steps, in numpy."""
  rng = np.random.default_rng(length)
  spec = features.get_tensor_spec()
  steps = tf.nest.map_structure(
      lambda info: _random_leaf(info, rng, length), spec.pop('steps')
  )
  at_end = np.arange(length) == length - 1
  steps |= {
      'is_first': at_end[::-1],
      'is_last': at_end,
      'is_terminal': at_end & is_terminal,
  }
  fields = tf.nest.map_structure(lambda info: _random_leaf(info, rng), spec)
  return {**fields, 'steps': steps}


def _random_leaf(info, rng, *length):
  shape = [*length, *(5 if size is None else size for size in info.shape)]
  if info.dtype == tf.string:
    return rng.integers(0, 99, shape).astype('S').astype(object)
  if info.dtype.is_floating:
    values = rng.uniform(-1, 1.5, shape)
  else:
    values = rng.integers(0, 2, shape)
  return values.astype(info.dtype.as_numpy_dtype)
