"""Estimates how much a conversion will make, without reading an episode.

TFDS records how many episodes there are and how many bytes they take. Where all
steps take the same number of bytes, that tells about how many there are.
"""

from typing import Any, NamedTuple, Optional

import numpy as np
import rlds
import tensorflow_datasets as tfds

from rlds2reverb.episodes import blocks
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.replay import frames as frames_lib

# What an item takes in a server's memory, besides the frames; benchmarks/insert
# measures it.
_ITEM_BYTES = 1_800


class Estimate(NamedTuple):
  """About how much a table will hold.

  Attributes:
    items: the number of items.
    server_bytes: the memory that a server needs for them and their frames.
  """

  items: int
  server_bytes: int


def steps_of(source: sources_lib.OpenSource) -> Optional[int]:
  """Returns about how many steps the episodes of a source have, if it shows."""
  per_step = _bytes_of(source.features[rlds.STEPS].feature)
  rest = {
      key: feature
      for key, feature in source.features.items()
      if key != rlds.STEPS
  }
  per_episode = _bytes_of(rest) if rest else 0
  if not per_step or per_episode is None:
    return None
  left = source.num_bytes - per_episode * source.num_episodes
  return max(round(left / per_step), source.num_episodes)


def table_of(
    table: Any, num_episodes: int, num_steps: int, frames: frames_lib.FrameSource
) -> Estimate:
  """Estimates a table, as if all episodes had the same length.

  Args:
    table: the `TableItems`.
    num_episodes: the number of episodes.
    num_steps: the number of their steps.
    frames: the frames.
  """
  length = max(round(num_steps / num_episodes), 1)
  if table.sequence_length is None:
    per_episode = int(not table.is_too_long(length))
  else:
    per_episode = len(table.starts(0, length + table.padding(length)))
  items = per_episode * num_episodes
  return Estimate(
      items,
      items * _ITEM_BYTES + num_steps * blocks.step_bytes(frames.spec),
  )


def fewest_items(plan: plan_lib.Plan, table: Any) -> int:
  """Returns how many items a table gets at least, if all episodes are valid."""
  every_episode = (
      table.sequence_length is None and not table.max_sequence_length
  )
  return plan.num_episodes if every_episode or table.pads_episodes else 1


def _bytes_of(features: Any) -> Optional[int]:
  """Returns how many bytes features take on disk, if that is always the same."""
  if isinstance(features, tfds.features.FeaturesDict):
    features = dict(features)
  if isinstance(features, dict):
    sizes = [_bytes_of(feature) for feature in features.values()]
    return None if None in sizes else sum(sizes)
  # Subclasses, such as images, are encoded in ways of their own.
  if type(features) not in (tfds.features.Tensor, tfds.features.Scalar):
    return None
  shape, dtype = features.shape, np.dtype(features.np_dtype)
  if None in shape or dtype == object:
    return None
  encoding = features._encoding.value  # pylint: disable=protected-access
  if encoding == 'zlib':
    return None
  if encoding == 'bytes':
    size = dtype.itemsize
  else:
    # TensorFlow's format has floats of 32 bits, and small integers of 8.
    size = 4 if dtype.kind == 'f' else 1
  return int(np.prod(shape, dtype=np.int64)) * size
