"""Estimates how much a conversion will make, without reading an episode.

TFDS records how many episodes there are and how many bytes they take. Where all
steps take the same number of bytes, that tells about how many there are.
"""

from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_datasets as tfds
import tree

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources as sources_lib

# What an item takes in a server's memory, besides the frames; benchmarks/insert
# measures it.
_ITEM_BYTES = 1_800
# What a feature of an episode takes on disk, besides its name and its values.
_NAME_BYTES = 16


class Estimate(NamedTuple):
  """About how much a table will hold.

  Attributes:
    items: the number of items.
    server_bytes: the memory that a server needs for them and their frames.
  """

  items: int
  server_bytes: int


def steps_of(
    source: sources_lib.OpenSource, *, fewest: bool = False
) -> Optional[int]:
  """Returns about how many steps the episodes of a source have, if it shows.

  Args:
    source: the source.
    fewest: whether to return how many there are at least.
  """
  per_step = _bytes_of(source.features[rlds.STEPS].feature, fewest)
  rest = {
      key: feature
      for key, feature in source.features.items()
      if key != rlds.STEPS
  }
  per_episode = _bytes_of(rest, fewest)
  if not per_step or per_episode is None:
    return None
  per_episode += sum(
      _NAME_BYTES + sum(map(len, map(str, path)))
      for path, _ in tree.flatten_with_path(_names(source.features))
  )
  left = source.num_bytes - per_episode * source.num_episodes
  return max(round(left / per_step), source.num_episodes)


def table_of(
    table: Any, num_episodes: int, num_steps: int, spec: Any
) -> Estimate:
  """Estimates a table, as if all episodes had the same length.

  Args:
    table: the `TableItems`.
    num_episodes: the number of episodes.
    num_steps: the number of their steps.
    spec: the spec of a frame.
  """
  lengths = np.array([max(round(num_steps / num_episodes), 1)])
  if table.sequence_length is None:
    per_episode = ~table.is_too_long(lengths)
  else:
    _, per_episode = table.starts(
        np.zeros_like(lengths), lengths + table.padding(lengths)
    )
  items = int(per_episode[0]) * num_episodes
  return Estimate(
      items,
      items * _ITEM_BYTES + num_steps * blocks.step_bytes(spec),
  )


def fewest_items(plan: plan_lib.Plan, table: Any) -> int:
  """Returns how many items a table gets at least, if all episodes are valid.

  Args:
    plan: the plan.
    table: the `TableItems`.
  """
  if table.sequence_length is None:
    return 1 if table.max_sequence_length else plan.num_episodes
  steps = [
      steps_of(sources_lib.open_source(source), fewest=True)
      for source in plan.sources
  ]
  if None in steps or len(steps) > 1:
    return plan.num_episodes if table.pads_episodes else 1
  # Frames at the end of an episode may make no item, and with a stride not
  # every frame makes one.
  share = plan.num_episodes / plan.data_sets[0].num_episodes
  items = steps[0] * share - plan.num_episodes * table.sequence_length
  return max(int(items / table.stride_length), 1)


def _names(features: Any) -> Any:
  """Returns the names of all features, nested as they are."""
  if isinstance(features, tfds.features.Dataset):
    features = features.feature
  if isinstance(features, (tfds.features.FeaturesDict, dict)):
    return {key: _names(feature) for key, feature in features.items()}
  return None


def _bytes_of(features: Any, widest: bool) -> Optional[int]:
  """Returns how many bytes features take on disk, if that is always the same.

  Args:
    features: the features.
    widest: whether integers take as many bytes as they can, rather than one.
  """
  if isinstance(features, (tfds.features.FeaturesDict, dict)):
    sizes = [_bytes_of(feature, widest) for feature in features.values()]
    return None if None in sizes else sum(sizes)
  # Subclasses, such as images, are encoded in ways of their own.
  if type(features) not in (tfds.features.Tensor, tfds.features.Scalar):
    return None
  shape, dtype = features.shape, np.dtype(features.np_dtype)
  if None in shape or dtype.kind == 'O':
    return None
  encoding = features._encoding.value  # pylint: disable=protected-access
  if encoding == 'zlib':
    return None
  if encoding == 'bytes':
    size = dtype.itemsize
  elif dtype.kind == 'f':
    size = 4  # TensorFlow's format has floats of 32 bits only.
  else:
    # Integers have 7 bits in a byte; negative ones are as long as there are.
    widths = {'b': 1, 'u': dtype.itemsize + 2}
    size = widths.get(dtype.kind, 10) if widest else 1
  return int(np.prod(shape, dtype=np.int64)) * size
