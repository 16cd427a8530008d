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

from typing import Any, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import segments as segments_lib


class Placed(NamedTuple):
  """The episodes of a segment, at their places; arrays `[E]`.

  Attributes:
    segment: the segment.
    origin: the position of the first frame of each.
    padding: the number of rows of padding that follow it.
    is_end: whether it ends; the data may end before the last one does.
    rows: the frames and their padding, and before them the rows that items
      which cross into the segment need.
    end: the position after the last row.
  """

  segment: segments_lib.Segment
  origin: np.ndarray
  padding: np.ndarray
  is_end: np.ndarray
  rows: Any
  end: int

  @property
  def begin(self) -> int:
    """The position of the first of `rows`."""
    return self.end - len(self.rows.step_type)


def place(
    segment: segments_lib.Segment,
    tables: Sequence[items_lib.TableItems],
    position: int,
    rows_before: Sequence[Any] = (),
) -> Placed:
  """Places the episodes of a segment, the first of them at a position.

  Padding is that of TF-Agents: boundaries, all of whose values are zero, apart
  from the step type, which is LAST.

  Args:
    segment: the segment.
    tables: the tables that its items go into.
    position: the position of its first frame.
    rows_before: the rows just before it, if there are items that need them.
  """
  length = segment.length
  is_end = np.ones(len(length), bool)
  is_end[-1] = not segment.is_open
  padding = is_end * np.max([t.padding(length) for t in tables], axis=0)
  ends = position + np.cumsum(length + padding)
  origin = ends - length - padding
  frames = segment.frames
  if padding.any():
    _, rows = windows_lib.ranges(origin - position, length, 1)

    def pad(leaf, value=0):
      if leaf.dtype == object:
        value = b''
      shape = (ends[-1] - position, *leaf.shape[1:])
      padded = np.full(shape, value, leaf.dtype)
      padded[rows] = leaf
      return padded

    frames = tf.nest.map_structure(pad, frames)._replace(
        step_type=pad(frames.step_type, ts.StepType.LAST)
    )
  rows = segments_lib.concatenate([*rows_before, frames])
  return Placed(segment, origin, padding, is_end, rows, int(ends[-1]))


class Items(NamedTuple):
  """The items of a table, arrays `[N]`.

  Attributes:
    episode: the index of the episode of each; 0 if items cross episodes.
    frame: the frame of its episode at which it starts, or of the data.
    start: the position of its first row.
    end: the position after its last row.
    priority: its priority, float64.
    key: its key, uint64, once it has one.
  """

  episode: np.ndarray
  frame: np.ndarray
  start: np.ndarray
  end: np.ndarray
  priority: np.ndarray
  key: np.ndarray

  def slice(self, begin: int, end: int) -> 'Items':
    """Returns the items `[begin, end)`."""
    return Items(*[each[begin:end] for each in self])


def find_items(table: items_lib.TableItems, placed: Placed) -> Items:
  """Finds the items of a table that end in placed episodes, in their order.

  A priority that is a function of the rows is 0 here.
  """
  lengths, length = placed.segment.length, table.sequence_length
  origin = placed.origin
  if length is None:
    episode = np.flatnonzero(placed.is_end & ~table.is_too_long(lengths))
    frame, length = np.zeros_like(episode), lengths[episode]
  elif table.crosses_episodes:
    episode, frame = table.windows.find(np.array([placed.end]), origin[:1])
    origin = np.array([0])
  else:
    episode, frame = table.windows.find(lengths, is_end=placed.is_end)
  start = origin[episode] + frame
  priority = 0.0 if callable(table.priority) else table.priority
  return Items(
      episode,
      frame,
      start,
      start + length,
      np.full(len(start), priority, np.float64),
      np.zeros(len(start), np.uint64),
  )


class Cuts(NamedTuple):
  """Where the rows of placed episodes are cut into chunks, arrays `[K]`.

  Attributes:
    episode: the first episode of each chunk.
    num_episodes: how many whole ones it holds; if 1, perhaps a part of it.
    starts: the position of its first row; `[K + 1]`, the last is the end.
  """

  episode: np.ndarray
  num_episodes: np.ndarray
  starts: np.ndarray


def cut_chunks(placed: Placed, chunk_length: int, share_chunks: bool) -> Cuts:
  """Cuts the rows of episodes into chunks.

  Args:
    placed: the episodes.
    chunk_length: the largest number of rows of a chunk.
    share_chunks: whether episodes may share a chunk.
  """
  count = len(placed.origin)
  first = np.arange(count)
  if share_chunks:
    sizes = placed.segment.length + placed.padding
    first = segments_lib.find_runs(sizes, chunk_length)
  begin = placed.origin[first]
  end = np.append(begin[1:], placed.end)
  run, start = windows_lib.ranges(
      begin, -((begin - end) // chunk_length), chunk_length
  )
  num_episodes = np.diff(first, append=count)[run]
  return Cuts(first[run], num_episodes, np.append(start, placed.end))


class Chunks(NamedTuple):
  """Chunks that follow each other, and that items refer to.

  Attributes:
    keys: their keys, uint64 `[K]`.
    starts: the positions of their first rows, and of the end, int64 `[K + 1]`.
  """

  keys: np.ndarray = np.zeros(0, np.uint64)
  starts: np.ndarray = np.zeros(1, np.int64)

  def from_chunk(self, first: int) -> 'Chunks':
    """Returns the chunks from the one of an index on."""
    return Chunks(self.keys[first:], self.starts[first:])

  def chunk_of(self, position: Any) -> Any:
    """Returns the index of the chunk that holds a position; `K` at the end."""
    return np.searchsorted(self.starts, position, 'right') - 1

  def stops_of(self, items: Items) -> np.ndarray:
    """Returns the index after the last chunk of each item, `[N]`."""
    return np.searchsorted(self.starts, items.end)

  def slices(self, items: Items) -> encoding.Slices:
    """Returns the slices of chunks that make up items."""
    first = self.chunk_of(items.start)
    counts = self.stops_of(items) - first
    item, chunk = windows_lib.ranges(first, counts, 1)
    begins = np.maximum(items.start[item], self.starts[chunk])
    return encoding.Slices(
        np.cumsum(np.append(0, counts)),
        self.keys[chunk],
        begins - self.starts[chunk],
        np.minimum(items.end[item], self.starts[chunk + 1]) - begins,
    )
