"""Blocks of consecutive frames, the pieces in which data is laid out."""

from typing import Any, Iterable, Iterator, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.replay import items as items_lib


class Block(NamedTuple):
  """Frames that are laid out at once.

  Attributes:
    frames: a `Trajectory` of arrays `[B, ...]`: consecutive frames of one
      episode; or whole sequences, one after the other.
    episode_id: what identifies the episode, as a JSON value; None if the block
      consists of sequences.
    step: the index of the first frame in its episode; of sequences, its index
      in the data.
  """

  frames: Any
  episode_id: Any
  step: int


def slice_frames(frames: Any, begin: int, end: int) -> Any:
  """Returns the frames `[begin, end)` of a nest of arrays `[B, ...]`."""
  return tf.nest.map_structure(lambda leaf: leaf[begin:end], frames)


def padding_frames(frames: Any, length: int) -> Any:
  """Returns the frames that TF-Agents pads an episode with.

  Args:
    frames: frames of the episode, a `Trajectory` of arrays `[B, ...]`.
    length: the number of padding frames.

  Returns:
    A `Trajectory` of arrays `[length, ...]`: boundaries, all of whose values
    are zero, apart from the step type, which is LAST.
  """

  def zeros(leaf):
    zero = b'' if leaf.dtype == object else 0
    return np.full((length,) + leaf.shape[1:], zero, leaf.dtype)

  padding = tf.nest.map_structure(zeros, frames)
  return padding._replace(
      step_type=np.full_like(padding.step_type, ts.StepType.LAST)
  )


def refuse_long_episodes(
    blocks: Iterable[Block], tables: Sequence[items_lib.TableItems]
) -> Iterator[Block]:
  """Yields blocks, but none of an episode that is too long for a table.

  The blocks of an episode are held back until its length is known. They are no
  more than the frames that an item may have, and one block.

  Args:
    blocks: the blocks of all episodes, in their order.
    tables: which items go into which table.

  Raises:
    ValueError: at the first episode that is too long for a table that does not
      bypass longer episodes.
  """
  tables = [
      table
      for table in tables
      if table.max_sequence_length and not table.bypass_longer_episodes
  ]
  if not tables:
    yield from blocks
    return
  table = min(tables, key=lambda table: table.max_sequence_length)
  held = []
  length = 0
  for block in blocks:
    for begin, end, is_end in items_lib.split_at_ends(block.frames.step_type):
      length += end - begin
      if table.is_too_long(length):
        raise ValueError(
            f'Episode {block.episode_id} has more frames than the'
            f' {table.max_sequence_length} that an item of table'
            f' {table.table_name!r} may have. Raise max_sequence_length, or'
            ' leave such episodes out: bypass_partial_episodes=True of the'
            ' observer, bypass_longer_episodes=True of TableItems.'
        )
      if is_end:
        yield from held
        held = []
        length = 0
    held.append(block)
    if not length:
      yield from held
      held = []
  yield from held
