"""Arranges blocks of frames: adds padding, and finds the places of items.

An arrangement says nothing of how frames are stored. `Layout` makes chunks of
Reverb of it, and `local.replay_buffer` makes rows for a replay buffer without a
server.
"""

from typing import Any, Iterable, Iterator, List, NamedTuple, Sequence, Set

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import pieces as pieces_lib
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.trajectories import frame_blocks

# The largest number of frames of a block of several episodes. An item takes
# some hundred bytes, so the items of more frames would be a large request.
_MAX_FRAMES = 4096


class Arrangement(NamedTuple):
  """The chunks and items that a block becomes.

  Attributes:
    block: the block.
    pieces: where its episodes lie.
    episode_ids: what identifies the episodes that start in the block, if there
      is an identity.
    frames: its frames and their padding, a `Trajectory` of arrays.
    items: where the items of each table lie.
    priorities: the priorities of these items, float64 `[N]`.
    needed: no item of a later block refers to a position before this one.
  """

  block: frame_blocks.FrameBlock
  pieces: pieces_lib.Pieces
  episode_ids: Set[Any]
  frames: Any
  items: List[pieces_lib.FoundItems]
  priorities: List[np.ndarray]
  needed: int


class Arranger:
  """Arranges blocks of frames, in their order."""

  def __init__(
      self,
      tables: Sequence[items_lib.TableItems],
      *,
      has_identity: bool = False,
      of_sequences: bool = False,
      position: int = 0,
  ):
    """Creates the arranger.

    Args:
      tables: which items go into which table.
      has_identity: whether an `episode_id` must be that of one episode alone.
      of_sequences: whether the blocks consist of sequences, each of which is
        one item even if it has LAST frames inside.
      position: the position of the first frame, see `Pieces`.

    Raises:
      ValueError: if there is no table, or if items of one table cross episodes
        between which items of another one are padded.
    """
    if not tables:
      raise ValueError('There must be a table that the items go into.')
    crossing = [t.table_name for t in tables if t.crosses_episodes]
    padded = [t.table_name for t in tables if t.pads_episodes]
    if crossing and padded:
      raise ValueError(
          f'The items of table {crossing[0]!r} cross episodes, between which'
          f' those of table {padded[0]!r} are padded. Write them one after the'
          ' other.'
      )
    self._tables = tables
    self._has_identity = has_identity
    self._of_sequences = of_sequences
    self._priorities = [priorities_lib.Priorities(table) for table in tables]
    self._bypassed = 0
    self._episode_ids = set()
    # The position of the next frame, see `Pieces`.
    self._end = position
    # The number of frames so far of an unfinished episode.
    self._length = 0

  def arrange(
      self, blocks: Iterable[frame_blocks.FrameBlock]
  ) -> Iterator[Arrangement]:
    """Yields the arrangements of `blocks`, or of their parts, in their order.

    Args:
      blocks: the blocks. A frame whose step type is LAST ends an episode.

    Raises:
      ValueError: if an episode is longer than a table takes; if two episodes
        have the same `episode_id` under an identity; or if a priority is not a
        number from 0 up. Nothing of the episode at fault was yielded then,
        unless a priority is wrong and the episode has several blocks.
    """
    for block in refuse_long_episodes(blocks, self._tables):
      for arranged in self._arrange_parts(block):
        yield arranged
        # Nothing of this changes for an arrangement that was not used.
        pieces = arranged.pieces
        self._episode_ids |= arranged.episode_ids
        begin, self._end = self._end, pieces.end_position
        self._length = 0 if pieces.is_end[-1] else int(pieces.length[-1])
        for priorities in self._priorities:
          priorities.keep(begin, arranged.frames, arranged.needed)
        for table in self._tables:
          too_long = pieces.is_end & table.is_too_long(pieces.length)
          self._bypassed += int(np.count_nonzero(too_long))
    if self._bypassed:
      logging.warning(
          'Left out %d episodes that are longer than max_sequence_length.',
          self._bypassed,
      )

  def _arrange_parts(self, block) -> Iterator[Arrangement]:
    """Yields the arrangements of a block, up to an episode at fault."""
    for part in split(block, _MAX_FRAMES):
      try:
        arranged = self._arrange(part)
      except Exception:
        if len(part.episode_ids) == 1:
          raise
        arranged = None
      if arranged is not None:
        yield arranged
        continue
      # One by one, so that the error comes after the episodes before.
      for episode in split(part, 1):
        yield self._arrange(episode)

  def _arrange(self, block) -> Arrangement:
    """Arranges a block. Nothing changes if this fails."""
    is_last = block.frames.step_type == ts.StepType.LAST
    if self._of_sequences:
      length = self._tables[0].sequence_length
      is_last = np.arange(1, len(is_last) + 1) % length == 0
    pieces = pieces_lib.find_pieces(
        block.row_splits,
        block.step,
        is_last,
        self._tables,
        self._end,
        self._length,
    )
    episode_ids = self._new_episode_ids(block, pieces)
    frames = spread(
        block.frames,
        pieces.positions_of_rows() - self._end,
        pieces.end_position - self._end,
    )
    items = [pieces_lib.find_items(table, pieces) for table in self._tables]
    priorities = [
        priorities.of_items(found, self._end, frames)
        for priorities, found in zip(self._priorities, items)
    ]
    return Arrangement(
        block,
        pieces,
        episode_ids,
        frames,
        items,
        priorities,
        self._needed(pieces),
    )

  def _needed(self, pieces) -> int:
    """Returns the first position that later items refer to."""
    end = pieces.end_position
    length = 0 if pieces.is_end[-1] else int(pieces.length[-1])
    needed = end
    for table in self._tables:
      origin = 0 if table.crosses_episodes else end - length
      needed = min(needed, origin + table.first_needed(end - origin))
    return needed

  def _new_episode_ids(self, block, pieces) -> Set[Any]:
    """Returns the ids of the episodes that start in a block."""
    if not self._has_identity:
      return set()
    ids = [
        block.episode_ids[index]
        for index in pieces.index[pieces.step == 0].tolist()
    ]
    new = set(ids)
    if len(new) < len(ids) or not new.isdisjoint(self._episode_ids):
      episode_id = next(
          each
          for each in ids
          if each in self._episode_ids or ids.count(each) > 1
      )
      raise ValueError(
          f'Two episodes have the episode_id {episode_id!r}, so their items'
          ' would have the same keys. Give each its own.'
      )
    return new


def split(
    block: frame_blocks.FrameBlock, length: int
) -> Iterator[frame_blocks.FrameBlock]:
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
      yield frame_blocks.slice_episodes(block, begin, end)
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
    blocks: Iterable[frame_blocks.FrameBlock],
    tables: Sequence[items_lib.TableItems],
) -> Iterator[frame_blocks.FrameBlock]:
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
        yield frame_blocks.slice_episodes(block, 0, index)
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
