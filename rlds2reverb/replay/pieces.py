"""The places of the episodes of a block, and of the items that end in it.

A *piece* is a run of frames of a block that belong to one episode. Mostly it is
a whole episode, but a long episode comes in several blocks. The frames are
numbered by their *positions*, which count all frames from the start of the
data, padding (P) included:

    the rows of a block    |  0  1  2 |        |  3  4 |           |  5  6 |
    with their padding     |  0  1  2 |  P  P  |  3  4 |  P  P  P  |  5  6 |
    positions              |  0  1  2    3  4     5  6    7  8  9    10 11 |
    pieces                         0                1                  2
"""

import functools
from typing import NamedTuple, Sequence

import numpy as np

from rlds2reverb.replay import items as items_lib


class Pieces(NamedTuple):
  """The pieces of a block, arrays `[P]`.

  Attributes:
    index: the index of the piece's episode in the block.
    begin: the first row of the piece in the block.
    end: the row after the last one.
    step: the index of the first frame in the episode of the data set.
    position: the position of the first frame.
    length: the number of frames from the start of the episode to the end of the
      piece. An episode starts after a frame that is LAST; the data set may join
      several in one (`validation="tf_agents"`).
    is_end: whether the episode ends with the piece.
    is_whole: whether the piece is a whole episode of the data set.
    padding: the number of padding frames that follow the piece.
  """

  index: np.ndarray
  begin: np.ndarray
  end: np.ndarray
  step: np.ndarray
  position: np.ndarray
  length: np.ndarray
  is_end: np.ndarray
  is_whole: np.ndarray
  padding: np.ndarray

  @property
  def num_frames(self) -> np.ndarray:
    """The number of frames of each piece, without padding."""
    return self.end - self.begin

  @property
  def origin(self) -> np.ndarray:
    """The position of the first frame of each piece's episode."""
    return self.position + self.num_frames - self.length

  @property
  def first_position(self) -> int:
    """The position of the block's first frame."""
    return int(self.position[0])

  @property
  def end_position(self) -> int:
    """The position after the block and the padding that follows it."""
    return int(self.position[-1] + self.num_frames[-1] + self.padding[-1])

  def positions_of_rows(self) -> np.ndarray:
    """Returns the position of each row of the block, `[B]`."""
    shifts = np.repeat(self.position - self.begin, self.num_frames)
    return shifts + np.arange(len(shifts))


def find_pieces(
    row_splits: np.ndarray,
    step: int,
    is_last: np.ndarray,
    tables: Sequence[items_lib.TableItems],
    position: int,
    length: int,
) -> Pieces:
  """Finds the pieces of a block.

  Args:
    row_splits: where the episodes of the block lie, see `FrameBlock`.
    step: the index of the block's first frame in its episode.
    is_last: whether an episode ends with each frame, bool `[B]`.
    tables: which items go into which table, and thus what is padded.
    position: the position of the block's first frame.
    length: the number of frames before the block that belong to the episode of
      its first frame.
  """
  is_cut = is_last.copy()
  is_cut[row_splits[row_splits > 0] - 1] = True
  end = np.flatnonzero(is_cut) + 1
  begin = np.concatenate([[0], end[:-1]])
  is_end = is_last[end - 1]
  index = np.searchsorted(row_splits, begin, 'right') - 1
  steps = begin - row_splits[index] + step
  starts_episode = np.concatenate([[not length], is_end[:-1]])
  episode_begin = np.maximum.accumulate(
      np.where(starts_episode, begin, -length)
  )
  length = end - episode_begin
  padding = is_end * functools.reduce(
      np.maximum, [table.padding(length) for table in tables]
  )
  return Pieces(
      index=index,
      begin=begin,
      end=end,
      step=steps,
      position=position + begin + np.cumsum(padding) - padding,
      length=length,
      is_end=is_end,
      is_whole=(
          is_end
          & (steps == 0)
          & (end == row_splits[index + 1])
          & (length == end - begin)
      ),
      padding=padding,
  )


class FoundItems(NamedTuple):
  """The places of items of a table, arrays `[N]`.

  Attributes:
    piece: the piece that each item ends in; 0 if items cross episodes.
    origins: the position of the first frame of its episode, or 0.
    starts: the position of the first frame of each item.
    ends: the position after the last frame of each item.
  """

  piece: np.ndarray
  origins: np.ndarray
  starts: np.ndarray
  ends: np.ndarray


def find_items(table: items_lib.TableItems, pieces: Pieces) -> FoundItems:
  """Finds the items of a table that end in a block.

  Args:
    table: which items go into the table.
    pieces: the pieces of the block.

  Returns:
    The items, in the order of their starts.
  """
  if table.windows is None:
    piece = np.flatnonzero(pieces.is_end & ~table.is_too_long(pieces.length))
    starts = pieces.origin[piece]
    return FoundItems(piece, starts, starts, starts + pieces.length[piece])
  if table.crosses_episodes:
    origins = np.array([0])
    piece, starts = table.windows.find(
        np.array([pieces.end_position]), np.array([pieces.first_position])
    )
  else:
    origins = pieces.origin
    piece, starts = table.windows.find(
        pieces.length, pieces.length - pieces.num_frames, pieces.is_end
    )
  starts = starts + origins[piece]
  return FoundItems(
      piece, origins[piece], starts, starts + table.windows.length
  )
