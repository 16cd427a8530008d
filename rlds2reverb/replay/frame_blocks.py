"""Blocks of consecutive frames, the pieces in which data is laid out."""

import itertools
from typing import Any, Iterable, Iterator, List, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.replay import items as items_lib


class Block(NamedTuple):
  """Frames that are laid out at once.

  Attributes:
    frames: a `Trajectory` of arrays `[B, ...]`: consecutive frames of one
      episode; or several whole episodes, one after the other; or whole
      sequences, one after the other.
    episode_ids: what identifies each of the `E` episodes, JSON values; `[None]`
      if the block consists of sequences.
    row_splits: int64 `[E + 1]`: episode `e` has the frames from `row_splits[e]`
      to `row_splits[e + 1]`.
    step: the index of the first frame in its episode, which is 0 if there are
      several episodes; of sequences, its index in the data.
  """

  frames: Any
  episode_ids: List[Any]
  row_splits: np.ndarray
  step: int


def slice_frames(frames: Any, begin: int, end: int) -> Any:
  """Returns the frames `[begin, end)` of a nest of arrays `[B, ...]`."""
  return tf.nest.map_structure(lambda leaf: leaf[begin:end], frames)


def slice_episodes(block: Block, begin: int, end: int) -> Block:
  """Returns the episodes `[begin, end)` of a block, as a block."""
  splits = block.row_splits[begin : end + 1]
  return block._replace(
      frames=slice_frames(block.frames, splits[0], splits[-1]),
      episode_ids=block.episode_ids[begin:end],
      row_splits=splits - splits[0],
  )


def choose_episodes(block: Block, is_chosen: np.ndarray) -> Block:
  """Returns some episodes of a block, bool `[E]`, as a block."""
  if is_chosen.all():
    return block
  lengths = np.diff(block.row_splits)
  rows = np.repeat(is_chosen, lengths)
  return block._replace(
      frames=tf.nest.map_structure(lambda leaf: leaf[rows], block.frames),
      episode_ids=list(itertools.compress(block.episode_ids, is_chosen)),
      row_splits=np.concatenate([[0], np.cumsum(lengths[is_chosen])]),
  )


def split(block: Block, length: int) -> Iterator[Block]:
  """Splits a block of several episodes.

  Args:
    block: the block.
    length: the largest number of frames of a part that has several episodes.

  Yields:
    Blocks of whole episodes. Those without frames are left out if there is
    nothing else in a block.
  """
  begin, count = 0, len(block.episode_ids)
  if count == 1 or block.row_splits[-1] <= length:
    yield block
    return
  while begin < count:
    limit = block.row_splits[begin] + length
    end = int(np.searchsorted(block.row_splits, limit, 'right')) - 1
    end = max(end, begin + 1)
    if block.row_splits[begin] < block.row_splits[end]:
      yield slice_episodes(block, begin, end)
    begin = end


def spread(frames: Any, rows: np.ndarray, length: int) -> Any:
  """Returns frames with padding between them, as TF-Agents pads episodes.

  Args:
    frames: a `Trajectory` of arrays `[B, ...]`.
    rows: where the frames are in the result, increasing, `[B]`. All other
      frames of the result are padding: boundaries, all of whose values are
      zero, apart from the step type, which is LAST.
    length: the number of frames of the result.

  Returns:
    A `Trajectory` of arrays `[length, ...]`.
  """
  if length == len(rows):
    return frames

  def pad(leaf, value=0):
    if leaf.dtype == object:
      value = b''
    padded = np.full((length,) + leaf.shape[1:], value, leaf.dtype)
    padded[rows] = leaf
    return padded

  return tf.nest.map_structure(pad, frames)._replace(
      step_type=pad(frames.step_type, ts.StepType.LAST)
  )


def refuse_long_episodes(
    blocks: Iterable[Block], tables: Sequence[items_lib.TableItems]
) -> Iterator[Block]:
  """Yields blocks, but nothing of an episode that is too long for a table.

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
    lengths = items_lib.episode_lengths(block.frames.step_type, length)
    too_long = table.is_too_long(lengths)
    if too_long.any():
      number = int(np.argmax(too_long))
      if number:
        yield from held
      # Where the frames of this episode begin in the block.
      begin = lengths[:number].sum() - length if number else 0
      index = int(np.searchsorted(block.row_splits, begin, 'right')) - 1
      if block.row_splits[index]:
        yield slice_episodes(block, 0, index)
      raise ValueError(
          f'Episode {block.episode_ids[index]} has more frames than the'
          f' {table.max_sequence_length} that an item of table'
          f' {table.table_name!r} may have. Raise max_sequence_length, or'
          ' leave such episodes out: bypass_partial_episodes=True of the'
          ' observer, bypass_longer_episodes=True of TableItems.'
      )
    if len(lengths) > 1:
      yield from held
      held = []
    held.append(block)
    length = int(lengths[-1])
    if not length:
      yield from held
      held = []
  yield from held
