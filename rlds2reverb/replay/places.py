"""The places of episodes, items and chunks among the rows of a stream.

Rows are numbered by their *positions*, which count all rows from the start of
the data, with the padding (P) that follows episodes:

    frames          |  0  1  2 |        |  3  4 |
    positions       |  0  1  2    3  4     5  6    7
    with padding    |  0  1  2    P  P  |  3  4    P  |

A chunk holds consecutive rows, and an item refers to slices of chunks, so items
that overlap, and items of several tables, share their rows. For every column of
every chunk the server keeps several hundred bytes, so short chunks take much
memory; a sampler reads whole chunks, so long ones sample slowly. Short episodes
that come together share chunks:

    episodes        |  0  1  2 |  0  1  P |  0  1 |  0  1  2  3  4 ...
    chunks          |            a                |        b       |  c
"""

import bisect
from typing import Any, NamedTuple, Tuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import blocks as blocks_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import items as items_lib

# A sampler reads whole chunks, so chunks of few bytes sample quickly. But the
# rows of an item should not be spread over many chunks either.
_CHUNK_BYTES = 8 << 10
_MAX_CHUNK_LENGTH = 64
# For rows of this size, the server's overhead for a chunk hardly counts.
_LARGE_ROW_BYTES = 1 << 10
_LARGE_CHUNK_BYTES = 32 << 10
_STRING_FACTOR = 3  # An encoded image is larger than other strings.


def default_chunk_length(spec: Any) -> int:
  """Returns the length of chunks with which items are sampled quickly.

  Args:
    spec: the spec of one frame.
  """
  sizes = [
      blocks_lib.step_bytes(leaf)
      * (_STRING_FACTOR if leaf.dtype == tf.string else 1)
      for leaf in tf.nest.flatten(spec)
  ]
  is_large = max(sizes) >= _LARGE_ROW_BYTES
  limit = _LARGE_CHUNK_BYTES if is_large else _CHUNK_BYTES
  return min(max(limit // sum(sizes), 1), _MAX_CHUNK_LENGTH)


class Episodes(NamedTuple):
  """The places of whole episodes that follow each other, arrays `[E]`.

  Attributes:
    origin: the position of the first frame of each.
    length: the number of its frames.
    padding: the number of rows of padding that follow it.
    is_end: whether it ends; the data may end before the last one does.
  """

  origin: np.ndarray
  length: np.ndarray
  padding: np.ndarray
  is_end: np.ndarray

  @property
  def first(self) -> int:
    """The position of the first frame of all."""
    return int(self.origin[0])

  @property
  def end(self) -> int:
    """The position after the last row of all."""
    return int(self.origin[-1] + self.length[-1] + self.padding[-1])


class Items(NamedTuple):
  """The places of items of a table, arrays `[N]`.

  Attributes:
    episode: the index of the episode of each; 0 if items cross episodes.
    origin: the position of its first frame, or 0.
    start: the position of the first row of each item.
    end: the position after its last row.
  """

  episode: np.ndarray
  origin: np.ndarray
  start: np.ndarray
  end: np.ndarray


def find_items(table: items_lib.TableItems, episodes: Episodes) -> Items:
  """Finds the items of a table that end in episodes, in their order."""
  if table.windows is None:
    episode = np.flatnonzero(
        episodes.is_end & ~table.is_too_long(episodes.length)
    )
    start = episodes.origin[episode]
    return Items(episode, start, start, start + episodes.length[episode])
  if table.crosses_episodes:
    origins = np.array([0])
    episode, start = table.windows.find(
        np.array([episodes.end]), np.array([episodes.first])
    )
  else:
    origins = episodes.origin
    episode, start = table.windows.find(episodes.length, is_end=episodes.is_end)
  origin = origins[episode]
  start = start + origin
  return Items(episode, origin, start, start + table.windows.length)


class Chunks(NamedTuple):
  """The places of chunks, arrays `[K]`.

  Attributes:
    episode: the first episode of each.
    num_episodes: how many whole ones it holds; if 1, perhaps a part of it.
    start: the position of its first row.
    end: the position after its last row.
  """

  episode: np.ndarray
  num_episodes: np.ndarray
  start: np.ndarray
  end: np.ndarray


def cut_chunks(
    episodes: Episodes, chunk_length: int, share_chunks: bool
) -> Chunks:
  """Cuts the rows of episodes into chunks.

  Args:
    episodes: the episodes.
    chunk_length: the largest number of rows of a chunk.
    share_chunks: whether episodes may share a chunk.
  """
  first = np.arange(len(episodes.origin))
  if share_chunks:
    first = _share(episodes.length + episodes.padding, chunk_length)
  begin = episodes.origin[first]
  end = np.append(begin[1:], episodes.end)
  run, start = windows_lib.ranges(
      begin, -((begin - end) // chunk_length), chunk_length
  )
  return Chunks(
      first[run],
      np.diff(first, append=len(episodes.origin))[run],
      start,
      np.minimum(start + chunk_length, end[run]),
  )


class ChunkList(NamedTuple):
  """Chunks that follow each other, and that items refer to.

  Attributes:
    keys: their keys, uint64 `[K]`.
    starts: the positions of their first rows, int64 `[K]`.
    end: the position after the last row.
  """

  keys: np.ndarray = np.zeros(0, np.uint64)
  starts: np.ndarray = np.zeros(0, np.int64)
  end: int = 0

  def followed_by(
      self, keys: np.ndarray, starts: np.ndarray, end: int
  ) -> 'ChunkList':
    """Returns these chunks and more."""
    return ChunkList(
        np.concatenate([self.keys, keys]),
        np.concatenate([self.starts, starts]),
        end,
    )

  def from_chunk(self, first: int) -> 'ChunkList':
    """Returns the chunks from the one of an index on."""
    return self._replace(keys=self.keys[first:], starts=self.starts[first:])

  def spans(self, items: Items) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the first and the last chunk of each item, indices `[N]`."""
    first = np.searchsorted(self.starts, items.start, 'right') - 1
    last = np.searchsorted(self.starts, items.end, 'left') - 1
    return first, last

  def slices(
      self, items: Items, chosen: np.ndarray, first: np.ndarray, count: int
  ) -> encoding.Slices:
    """Returns the slices that make up some items.

    Args:
      items: the items.
      chosen: the indices of `C` of them.
      first: the first chunk of each of these, `[C]`.
      count: the number of chunks of each, the same for all.
    """
    index = first[:, np.newaxis] + np.arange(count)  # [C, S]
    starts = self.starts[index]
    ends = np.append(self.starts[1:], self.end)[index]
    begins = np.maximum(items.start[chosen, np.newaxis], starts)
    ends = np.minimum(items.end[chosen, np.newaxis], ends)
    return encoding.Slices(self.keys[index], begins - starts, ends - begins)


def _share(sizes: np.ndarray, chunk_length: int) -> np.ndarray:
  """Returns the first episodes of each run of episodes that share a chunk."""
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
