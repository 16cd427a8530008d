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

import functools
from typing import Any, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import segments as segments_lib


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
  def end(self) -> int:
    """The position after the last row of all."""
    return int(self.origin[-1] + self.length[-1] + self.padding[-1])


def place_episodes(
    segment: segments_lib.Segment,
    tables: Sequence[items_lib.TableItems],
    position: int,
) -> Episodes:
  """Places the episodes of a segment, the first of them at a position."""
  length = segment.length
  is_end = np.ones(len(length), bool)
  is_end[-1] = not segment.is_open
  padding = is_end * functools.reduce(
      np.maximum, [table.padding(length) for table in tables]
  )
  sizes = length + padding
  origin = position + np.cumsum(sizes) - sizes
  return Episodes(origin, length, padding, is_end)


def spread(segment: segments_lib.Segment, episodes: Episodes) -> Any:
  """Returns the rows of a segment, its frames with padding between them.

  Padding is that of TF-Agents: boundaries, all of whose values are zero, apart
  from the step type, which is LAST.
  """
  frames = segment.frames
  if not episodes.padding.any():
    return frames
  _, rows = windows_lib.ranges(
      episodes.origin - episodes.origin[0], episodes.length, 1
  )
  count = episodes.end - int(episodes.origin[0])

  def pad(leaf, value=0):
    if leaf.dtype == object:
      value = b''
    padded = np.full((count,) + leaf.shape[1:], value, leaf.dtype)
    padded[rows] = leaf
    return padded

  return tf.nest.map_structure(pad, frames)._replace(
      step_type=pad(frames.step_type, ts.StepType.LAST)
  )


class Items(NamedTuple):
  """The items of a table, arrays `[N]`.

  Attributes:
    episode: the index of the episode of each; 0 if items cross episodes.
    origin: the position of its first frame, or 0.
    start: the position of the first row of each item.
    end: the position after its last row.
    priority: its priority, float64.
    key: its key, uint64, once it has one.
  """

  episode: np.ndarray
  origin: np.ndarray
  start: np.ndarray
  end: np.ndarray
  priority: np.ndarray
  key: np.ndarray

  def slice(self, begin: int, end: int) -> 'Items':
    """Returns the items `[begin, end)`."""
    return Items(*[each[begin:end] for each in self])


def find_items(table: items_lib.TableItems, episodes: Episodes) -> Items:
  """Finds the items of a table that end in episodes, in their order.

  A priority that is a function of the rows is 0 here.
  """
  length, origins = table.sequence_length, episodes.origin
  if length is None:
    episode = np.flatnonzero(
        episodes.is_end & ~table.is_too_long(episodes.length)
    )
    start, length = np.zeros_like(episode), episodes.length[episode]
  elif table.crosses_episodes:
    ends, begins = np.array([episodes.end]), origins[:1]
    origins = np.array([0])
    episode, start = table.windows.find(ends, begins)
  else:
    episode, start = table.windows.find(episodes.length, is_end=episodes.is_end)
  origin = origins[episode]
  start = start + origin
  priority = 0.0 if callable(table.priority) else table.priority
  return Items(
      episode,
      origin,
      start,
      start + length,
      np.full(len(start), priority, np.float64),
      np.zeros(len(start), np.uint64),
  )


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
    first = segments_lib.find_runs(
        episodes.length + episodes.padding, chunk_length
    )
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

  def first_of(self, items: Items) -> np.ndarray:
    """Returns the index of the first chunk of each item, `[N]`."""
    return np.searchsorted(self.starts, items.start, 'right') - 1

  def stops(self, items: Items) -> np.ndarray:
    """Returns the index after the last chunk of each item, `[N]`."""
    return np.searchsorted(self.starts, items.end, 'left')

  def slices(self, items: Items) -> encoding.Slices:
    """Returns the slices of chunks that make up items."""
    first = self.first_of(items)
    counts = self.stops(items) - first
    item, chunk = windows_lib.ranges(first, counts, 1)
    starts = self.starts[chunk]
    ends = np.append(self.starts[1:], self.end)[chunk]
    begins = np.maximum(items.start[item], starts)
    return encoding.Slices(
        np.concatenate([[0], np.cumsum(counts)]),
        self.keys[chunk],
        begins - starts,
        np.minimum(items.end[item], ends) - begins,
    )
