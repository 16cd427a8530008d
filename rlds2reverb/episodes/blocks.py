"""Sizes of steps, and of the blocks that are made of them."""

from typing import Any, Dict

import tensorflow as tf

from rlds2reverb.episodes import rlds

_MAX_BLOCK_LENGTH = 4096
_UNKNOWN_DIM = 256  # The size assumed for an unknown dimension: an image side.
_STRING_BYTES = 4096  # The size assumed for a string: a small encoded image.


def default_block_length(step_spec: Any, num_bytes: int = 2 << 20) -> int:
  """Returns the number of steps that make a block of about `num_bytes`."""
  return min(max(num_bytes // step_bytes(step_spec), 1), _MAX_BLOCK_LENGTH)


def step_bytes(step_spec: Any) -> int:
  """Returns about how many bytes a step of `step_spec` takes; at least 1."""
  total = 0
  for spec in tf.nest.flatten(step_spec):
    shape = [None] if spec.shape.rank is None else spec.shape.as_list()
    size = _STRING_BYTES if spec.dtype == tf.string else spec.dtype.size
    for dim in shape:
      size *= _UNKNOWN_DIM if dim is None else dim
    total += size
  return max(total, 1)


def check_episode_id(episode: Dict[str, Any], name: str) -> None:
  """Checks that a field of the episodes can identify them.

  Args:
    episode: the spec of an episode.
    name: the name of the field.

  Raises:
    ValueError: if there is no such field, or it is not one integer or string.
  """
  fields = [field for field in episode if field != rlds.STEPS]
  if name not in fields:
    raise ValueError(
        f'episode_id must be a field of the episodes, but is {name!r}. They'
        f' have {fields}.'
    )
  spec = episode[name]
  if spec.shape.rank != 0 or not (
      spec.dtype.is_integer or spec.dtype == tf.string
  ):
    raise ValueError(
        f'Episode field {name} must be one integer or string, to identify'
        f' episodes, but its spec is {spec}.'
    )


def concat(head: Any, rest: Any) -> Any:
  """Concatenates two nests of tensors along their leading dimension."""
  return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), head, rest)
