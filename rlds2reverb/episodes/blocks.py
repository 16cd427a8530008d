"""A block: a run of consecutive steps, stacked `[B, ...]`, and its outline.

A pipeline that handles steps one by one is slow, and one that loads whole
episodes may run out of memory. So all work here is done on blocks, which
`cutting.episode_blocks` cuts.
"""

from typing import Any, Callable, Dict, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds

_MAX_BLOCK_LENGTH = 4096
_UNKNOWN_DIM = 256  # The size assumed for an unknown dimension: an image side.
_STRING_BYTES = 4096  # The size assumed for a string: a small encoded image.


class Verdict(NamedTuple):
  """Whether an episode is valid, and if not, why.

  Attributes:
    valid: bool `[]`.
    describe: a function that makes the message, string `[]`, in graph mode. The
      message says what is wrong, and where. It means nothing if the episode is
      valid.
  """

  valid: tf.Tensor
  describe: Callable[[], tf.Tensor]


# Judges an episode, in graph mode. The arguments are the index of the episode,
# int64 `[]`; the outline of the episode and of the step that follows it,
# `[T + 1]`; and the `Lengths` of its fields, or None if they are known to be
# the same. If they differ, `T` is 0. For episodes of packs that have one, the
# `faults.Fault` of how the episode is stored follows.
Inspect = Callable[..., Verdict]


# Judges several episodes together, in graph mode, and returns, bool `[]`,
# whether all of them are valid. The arguments are the outline of their steps
# and of the step that follows them, `[N + 1]`; and their row splits, int64
# `[E + 1]`, which are at most `N`.
AreValid = Callable[[outlines.Outline, tf.Tensor], tf.Tensor]


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
    fault: string `[]`: what is wrong with the episode; empty if it is valid.
    episode_id: `[E]`: the field that identifies each episode; `()` if no such
      field was asked for.
  """

  steps: Any
  outline: outlines.Outline
  episode: tf.Tensor
  step: tf.Tensor
  row_splits: tf.Tensor
  fault: tf.Tensor
  episode_id: Any = ()


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


def fault_of(verdict: Verdict, invalid_episodes: str) -> tf.Tensor:
  """Returns what is wrong with an episode, string `[]`; empty if it is valid.

  Args:
    verdict: the verdict on the episode.
    invalid_episodes: see `episode_blocks`.

  Raises:
    InvalidArgumentError: while iterating, if the episode is invalid and
      `invalid_episodes="raise"`.
  """
  fault = tf.cond(verdict.valid, lambda: tf.constant(''), verdict.describe)
  guards = []
  if invalid_episodes == 'raise':
    guards.append(tf.debugging.Assert(verdict.valid, [fault]))
  with tf.control_dependencies(guards):
    return tf.identity(fault)


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
