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

from typing import Any, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib


class Placed(NamedTuple):
  """The episodes of a segment, at their places; arrays `[E]`.

  Attributes:
    segment: the segment.
    origin: the position of the first frame of each.
    padding: the number of rows of padding that follow it.
    rows: the frames and their padding, and before them the rows that items
      which cross into the segment need.
    end: the position after the last row.
  """

  segment: frames_lib.Segment
  origin: np.ndarray
  padding: np.ndarray
  rows: Any
  end: int

  @property
  def begin(self) -> int:
    """The position of the first of `rows`."""
    return self.end - len(self.rows.step_type)


def place(
    segment: frames_lib.Segment,
    tables: Sequence[items_lib.TableItems],
    position: int,
    rows_before: Sequence[Any],
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
  length, frames = segment.length, segment.frames
  paddings = [table.padding(length) for table in tables]
  padding = segment.is_end * np.max(paddings, axis=0)
  ends = position + np.cumsum(length + padding)
  if padding.any():
    after = np.repeat(segment.row_splits[1:], padding)

    def pad(leaf, value=0):
      value = b'' if leaf.dtype == object else value
      return np.insert(leaf, after, value, axis=0)

    frames = tf.nest.map_structure(pad, frames)._replace(
        step_type=pad(frames.step_type, ts.StepType.LAST)
    )
  rows = frames_lib.concatenate([*rows_before, frames])
  origin = ends - length - padding
  return Placed(segment, origin, padding, rows, int(ends[-1]))


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

  Raises:
    ValueError: if an episode is longer than the table takes.
  """
  segment, origin = placed.segment, placed.origin
  length = table.sequence_length
  if table.windows is None:
    too_long = table.is_too_long(segment.length)
    if too_long.any() and not table.bypass_longer_episodes:
      raise ValueError(
          f'Episode {segment.episode_ids[np.argmax(too_long)]} has more'
          f' frames than the {table.max_sequence_length} that an item of'
          f' table {table.table_name!r} may have. Raise max_sequence_length,'
          ' or leave such episodes out: bypass_partial_episodes=True of the'
          ' observer, bypass_longer_episodes=True of TableItems.'
      )
    episode = np.flatnonzero(segment.is_end & ~too_long)
    frame, length = np.zeros_like(episode), segment.length[episode]
  elif table.crosses_episodes:
    episode, frame = table.windows.find(np.array([placed.end]), origin[:1])
    origin = np.array([0])
  else:
    episode, frame = table.windows.find(segment.length, is_end=segment.is_end)
  start = origin[episode] + frame
  priority = 0.0 if callable(table.priority) else float(table.priority)
  return Items(
      episode,
      frame,
      start,
      start + length,
      np.full(len(start), priority),
      np.zeros(len(start), np.uint64),
  )


class Chunks(NamedTuple):
  """Chunks that follow each other, and that items refer to.

  Attributes:
    starts: the positions of their first rows, and of the end, int64 `[K + 1]`.
    keys: their keys, uint64 `[K]`.
  """

  starts: np.ndarray = np.zeros(1, np.int64)
  keys: np.ndarray = np.zeros(0, np.uint64)

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


def cut_chunks(
    placed: Placed, chunk_length: int, share_chunks: bool
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Cuts the rows of episodes into chunks.

  Args:
    placed: the episodes.
    chunk_length: the largest number of rows of a chunk.
    share_chunks: whether episodes may share a chunk.

  Returns:
    The positions of the first row of each chunk, and of the end, `[K + 1]`; its
    first episode, and the episode after the last that it has rows of, `[K]`.
  """
  sizes = placed.segment.length + placed.padding
  first = frames_lib.find_runs(sizes, chunk_length if share_chunks else 0)
  last = np.append(first[1:], len(sizes))
  begin = placed.origin[first]
  counts = -((begin - np.append(begin[1:], placed.end)) // chunk_length)
  run, start = windows_lib.ranges(begin, counts, chunk_length)
  return np.append(start, placed.end), first[run], last[run]
