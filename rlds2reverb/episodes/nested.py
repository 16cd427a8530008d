"""Reads nested steps, block by block.

An episode that fits into one block is read once. The steps of a longer one are
read again, first for its outline and then for the blocks that follow, and must
be the same each time.
"""

from typing import Any, Dict, FrozenSet, NamedTuple, Sequence

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_UNUSED_BYTES = 4096  # At most this much of a nested step is read without use.
# Episodes are in memory before they become a group; larger groups gain little.
_MAX_EPISODES = 32
_MAX_BYTES = 32 << 20


class Head(NamedTuple):
  """Episodes that were read together, or one that may be longer than a block.

  Attributes:
    steps: the used fields, `[N, ...]`; of an episode that is longer than a
      block only the first block.
    outline: `[N]`, of all steps.
    row_splits: int64 `[E + 1]`: where each episode has its rows of the outline.
    episodes: a nest of values that an episode has once, `[E, ...]`.
    rest: variant `[E]`, the data sets of the steps.
  """

  steps: Any
  outline: outlines.Outline
  row_splits: tf.Tensor
  episodes: Any
  rest: tf.Tensor


class Reader:
  """Reads the nested steps of one data set."""

  def __init__(
      self,
      steps_spec: Any,
      used_fields: FrozenSet[str],
      fields: Sequence[str],
      nan_fields: Sequence[str],
      block_length: int,
  ):
    """Creates the reader.

    Args:
      steps_spec: the spec of the data sets of steps.
      used_fields: the names of the fields that are read.
      fields: the names of those that the blocks carry.
      nan_fields: see `outlines.outline_of`.
      block_length: the largest number of steps in a block.
    """
    self._steps_spec = steps_spec
    self._read_fields = _read_fields(steps_spec, used_fields)
    self._fields = fields
    self._nan_fields = nan_fields
    self._block_length = block_length

  def heads(
      self, rlds_data: tf.data.Dataset, names: Sequence[str], alone: bool
  ) -> tf.data.Dataset:
    """Returns a data set of `Head`s.

    Args:
      rlds_data: the data set of episodes.
      names: the names of the fields of episodes to keep.
      alone: whether each episode is by itself.
    """
    step = {name: self._steps_spec[name] for name in self._read_fields}
    step_bytes = blocks.step_bytes(step)
    count = _MAX_BYTES // (self._block_length * step_bytes)
    count = 1 if alone else min(max(count, 1), _MAX_EPISODES)

    @graphs.no_autograph
    def read(episode):
      outline, steps = self._read_head(episode[rlds.STEPS])
      variant = tf.data.experimental.to_variant(episode[rlds.STEPS])
      fields = {name: episode[name] for name in names}
      return (outline, steps), (fields, variant)

    @graphs.no_autograph
    def to_head(group):
      outline, steps = group.columns
      # A longer episode is alone, as its outline and its steps differ.
      return Head(steps, outline, group.splits[0], *group.fields)

    return grouping.group(rlds_data.map(read), count, step_bytes).map(to_head)

  def pieces(self, head: Head, count: tf.Tensor) -> tf.data.Dataset:
    """Returns the blocks of a head: pairs of the fields and of the outline.

    Args:
      head: a head of one episode; or of several, which are one block.
      count: int64 `[]`: how many blocks; at least 1.
    """
    first = (head.steps, _rows_of(head.outline, head.steps))
    pieces = self._blocks(
        tf.data.experimental.from_variant(head.rest[0], self._steps_spec)
    )
    nothing = tf.data.Dataset.from_tensors(steps_lib.zeros(pieces.element_spec))
    # The empty blocks at the end make a second reading that ends too soon
    # differ from the first one, which `check_unchanged` finds.
    others = (
        pieces.skip(1)
        .concatenate(nothing.repeat())
        .map(graphs.no_autograph(self._split))
    )
    # Fields that are not used are not read.
    return tf.data.Dataset.from_tensors(first).concatenate(
        others.take(count - 1)
    )

  def _blocks(self, steps):
    if frozenset(self._steps_spec) != self._read_fields:
      steps = steps.map(
          graphs.no_autograph(
              lambda step: outlines.select(step, self._read_fields)
          )
      )
    return steps.batch(self._block_length)

  def _split(self, steps):
    return (
        outlines.select(steps, self._fields),
        outlines.outline_of(steps),
    )

  def _read_head(self, steps):
    """Returns the outline of an episode, and its first block."""
    pieces = self._blocks(steps)
    # If there are no steps, the first block is empty.
    nothing = tf.data.Dataset.from_tensors(steps_lib.zeros(pieces.element_spec))
    head = pieces.concatenate(nothing).take(1).get_single_element()
    outline = outlines.outline_of(head, self._nan_fields)

    def read_on():
      return pieces.skip(1).reduce(
          outline,
          graphs.no_autograph(
              lambda seen, piece: blocks.concat(
                  seen, outlines.outline_of(piece, self._nan_fields)
              )
          ),
      )

    is_whole = tf.size(outline[rlds.IS_FIRST]) < self._block_length
    outline = tf.cond(is_whole, lambda: outline, read_on)
    return outline, outlines.select(head, self._fields)


def check_unchanged(
    outline: outlines.Outline, again: outlines.Outline, episode: tf.Tensor
) -> tf.Operation:
  """Returns an op that checks that a block is the same when it is read again.

  Args:
    outline: its outline, and that of the step that follows, `[B + 1]`.
    again: its outline by the second reading, `[B]`.
    episode: the index of the episode.
  """
  first, second = (
      tf.stack([tf.cast(one[name], tf.float32) for name in outlines.FIELDS])
      for one in (outline, again)
  )
  length = tf.shape(second)[1]
  first = first[:, :length]
  # A NaN is not equal to itself, but it is the same.
  same = (first == second[:, : tf.shape(first)[1]]) | (first != first)
  is_same = (tf.size(outline[rlds.IS_FIRST]) == length + 1) & tf.reduce_all(
      same
  )
  return tf.debugging.Assert(
      is_same,
      [
          'Nested steps must be the same each time they are read, but those of'
          ' this episode changed:',
          episode,
      ],
  )


def _rows_of(outline: outlines.Outline, steps: Any) -> outlines.Outline:
  """Returns the part of an outline that is about the first block."""
  leaves = tf.nest.flatten(steps)
  if not leaves:
    return outlines.select(outline, outlines.FIELDS)
  count = tf.shape(leaves[0])[0]
  return {name: outline[name][:count] for name in outlines.FIELDS}


def _read_fields(
    step_spec: Dict[str, Any], used_fields: FrozenSet[str]
) -> FrozenSet[str]:
  """Returns the names of the fields that are read of nested steps.

  Small unused fields are read, too: leaving them out takes an operation for
  every step, which costs more than copying a few bytes.
  """
  unused = {
      field: spec
      for field, spec in step_spec.items()
      if field not in used_fields
  }
  if (
      all(map(steps_lib.has_one_shape, tf.nest.flatten(unused)))
      and blocks.step_bytes(unused) <= _UNUSED_BYTES
  ):
    return frozenset(step_spec)
  return used_fields
