"""A block: a run of consecutive steps, stacked `[B, ...]`, and its outline.

A pipeline that handles steps one by one is slow, and one that loads whole
episodes may run out of memory. So this library works on blocks, which
`block_cutting.episode_blocks` cuts.
"""

import dataclasses
from typing import Any, Dict, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds

_MAX_BLOCK_LENGTH = 4096
_UNKNOWN_DIM = 256  # The size assumed for an unknown dimension: an image side.
_STRING_BYTES = 4096  # The size assumed for a string: a small encoded image.


class Block(NamedTuple):
  """A run of `B` consecutive steps: of one episode, or of `E` whole ones.

  Attributes:
    steps: a dict of the selected step fields, every leaf `[B, ...]`.
    outline: the outline of these steps and of the step that follows, `[B + 1]`.
      The last step of an episode is followed by `outlines.end_outline()`, or
      with `join_episodes` by the first step of the next episode.
    episode: int64 `[E]`: the index in the data set of each episode.
    step: int64 `[]`: the index in its episode of the block's first step; 0 if
      there are several episodes.
    row_splits: int64 `[E + 1]`: the steps of episode `e` are those from
      `row_splits[e]` to `row_splits[e + 1]`.
    fault: string `[]`: the fault of the episode; empty if it is valid.
    fields: a dict of the fields of the episodes that were asked for, every leaf
      `[E, ...]`.
  """

  steps: Any
  outline: outlines.Outline
  episode: tf.Tensor
  step: tf.Tensor
  row_splits: tf.Tensor
  fault: tf.Tensor
  fields: Any = ()


@dataclasses.dataclass(frozen=True)
class Cut:
  """Says what makes a block.

  By default a block is a pack of episodes, or about 2 MiB of a nested episode.

      an episode, T=5, block_length=2    |  0  1 |  2  3 |  4  |
      the outlines of its blocks         |  0  1    2
                                                 |  2  3    4
                                                         |  4   end

  Attributes:
    by_episode: whether the steps of a block are of one episode.
    block_length: the largest number of steps in a block of one episode.
    join_episodes: whether an episode is followed by the first step of the next
      one, rather than by `outlines.end_outline()`. Then blocks are of one
      episode; episodes without steps are left out, and an episode comes out
      only after the next one was read.

  Raises:
    ValueError: if `block_length` is not positive.
  """

  by_episode: bool = False
  block_length: Optional[int] = None
  join_episodes: bool = False

  def __post_init__(self):
    if self.block_length is not None:
      checks.check_positive('block_length', self.block_length)

  @property
  def are_alone(self) -> bool:
    return (
        self.by_episode or self.join_episodes or self.block_length is not None
    )


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
