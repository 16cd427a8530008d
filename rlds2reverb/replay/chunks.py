"""The columns that share chunks, and the chunks that items refer to.

A chunk holds consecutive rows of a group of columns. For every column of every
chunk the server keeps several hundred bytes in addition to the rows, so short
chunks take much memory. A sampler reads whole chunks, so long chunks sample
slowly. Therefore the small columns share long chunks, and large columns such as
images have short chunks of their own.

    frames             |  0  1  2  3  4  5  6  7 |  8  9 |
    the small columns  |            a            |   b   |
    the large columns  |  c  |  d  |  e  |  f  |  g  |
    an item, [3, 9)       small: a[3:8] + b[0:1]
                          large: d[1:2] + e + f + g[0:1]

Short episodes that come together share chunks, so that they take no more memory
than long ones. A shared chunk holds whole episodes, with their padding (P):

    episodes           |  0  1  2 |  0  1  P |  0  1 |  0  1  2  3  4 ...
    the small columns  |            a                |         b
    the large columns  |  c  |  d |  e  | f  |   g   |  h  |  i  |  j
"""

import bisect
from typing import Any, List, NamedTuple, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import blocks as blocks_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import pieces as pieces_lib

# A sampler reads whole chunks, so chunks of few bytes sample quickly. But the
# rows of an item should not be spread over many chunks either.
_CHUNK_BYTES = 8 << 10
_MAX_CHUNK_LENGTH = 64
# For rows of this size, the server's overhead for a chunk hardly counts.
_LARGE_ROW_BYTES = 1 << 10


class ColumnGroup(NamedTuple):
  """Columns whose rows are stored in chunks together.

  Attributes:
    columns: the indices of the columns in a flat frame, increasing.
    chunk_length: the largest number of frames of a chunk.
  """

  columns: Tuple[int, ...]
  chunk_length: int


def one_group(spec: Any, chunk_length: int) -> List[ColumnGroup]:
  """Returns one group that holds all columns of a frame.

  Args:
    spec: the spec of one frame.
    chunk_length: the largest number of frames of a chunk.

  Raises:
    ValueError: if `chunk_length` is not positive.
  """
  checks.check_positive('chunk_length', chunk_length)
  return [ColumnGroup(tuple(range(len(tf.nest.flatten(spec)))), chunk_length)]


def default_groups(spec: Any) -> List[ColumnGroup]:
  """Returns the groups of columns with which items are sampled quickly.

  There are one or two groups. If there are two, the longer chunks have a
  multiple of the length of the shorter ones, and fit into a block.

  Args:
    spec: the spec of one frame.
  """
  leaves = tf.nest.flatten(spec)
  is_large = np.array(
      [blocks_lib.step_bytes(leaf) >= _LARGE_ROW_BYTES for leaf in leaves]
  )
  if is_large.all() or not is_large.any():
    return one_group(spec, _chunk_length(leaves))
  groups = []
  for columns in np.flatnonzero(~is_large), np.flatnonzero(is_large):
    length = min(
        _chunk_length([leaves[column] for column in columns]),
        blocks_lib.default_block_length(spec),
    )
    # With powers of two, a block can hold whole chunks of both groups.
    length = 1 << (length.bit_length() - 1)
    groups.append(ColumnGroup(tuple(columns.tolist()), length))
  return groups


def _chunk_length(spec: Any) -> int:
  length = blocks_lib.default_block_length(spec, _CHUNK_BYTES)
  return min(length, _MAX_CHUNK_LENGTH)


class Cuts(NamedTuple):
  """The places of the chunks of a block, arrays `[K]`.

  Attributes:
    first_piece: the piece that each chunk belongs to, or the first of several.
    num_pieces: how many pieces it holds. If it is one, the chunk may be a part
      of the piece.
    is_padding: whether it holds the padding of its only piece.
    starts: the position of its first frame.
    ends: the position after its last frame.
  """

  first_piece: np.ndarray
  num_pieces: np.ndarray
  is_padding: np.ndarray
  starts: np.ndarray
  ends: np.ndarray


def cut(
    pieces: pieces_lib.Pieces, chunk_length: int, share_chunks: bool
) -> Cuts:
  """Cuts the pieces of a block into chunks.

  Args:
    pieces: the pieces.
    chunk_length: the largest number of frames of a chunk.
    share_chunks: whether episodes may share a chunk.
  """
  count = len(pieces.index)
  firsts = _share(pieces, chunk_length) if share_chunks else np.arange(count)
  lasts = np.concatenate([firsts[1:], [count]]) - 1
  num_pieces = lasts - firsts + 1
  middles = (pieces.position + pieces.num_frames)[lasts]
  ends = middles + pieces.padding[lasts]
  # The frames of a piece and its padding are in chunks of their own, unless the
  # chunk is shared.
  middles = np.where(num_pieces > 1, ends, middles)
  begins = np.stack([pieces.position[firsts], middles], 1).ravel()
  ends = np.stack([middles, ends], 1).ravel()
  stretch, starts = windows_lib.ranges(
      begins, -((begins - ends) // chunk_length), chunk_length
  )
  return Cuts(
      first_piece=firsts[stretch // 2],
      num_pieces=num_pieces[stretch // 2],
      is_padding=stretch % 2 == 1,
      starts=starts,
      ends=np.minimum(starts + chunk_length, ends[stretch]),
  )


def _share(pieces, chunk_length) -> np.ndarray:
  """Returns the first pieces of each run of pieces that go together."""
  sizes = pieces.num_frames + pieces.padding
  # Only a whole episode may share a chunk.
  sizes = np.where(pieces.is_whole, sizes, chunk_length + 1)
  ends = np.cumsum(sizes).tolist()
  firsts = []
  first = 0
  end = 0
  while first < len(ends):
    firsts.append(first)
    following = bisect.bisect_right(ends, end + chunk_length, first)
    first = max(following, first + 1)
    end = ends[first - 1]
  return np.array(firsts)
