"""Lays out the frames of episodes as the chunks and items of Reverb.

Rows are numbered by their *positions*, which count all rows from the start of
the data, including the padding (P) that follows episodes:

    frames          |  0  1  2 |        |  3  4 |
    positions       |  0  1  2    3  4     5  6    7
    with padding    |  0  1  2    P  P  |  3  4    P  |

A chunk holds consecutive rows, and an item refers to slices of chunks. So items
that overlap, and items of several tables, share their rows:

    frames          |  0  1  2  3 |  4  5  6  7 |  8  9 |
    chunks          |      a      |      b      |   c   |
    an item                  [3, 6)  =  a[3:4] + b[0:2]

A server needs several hundred bytes for each column of each chunk, so short
chunks take much memory. A sampler reads complete chunks, so long chunks sample
slowly. Short episodes of one segment share chunks:

    episodes        |  0  1  2 |  0  1  P |  0  1 |  0  1  2  3  4 ...
    chunks          |            a                |        b       |  c

A segment is one or several complete episodes, of which only the last one of all
data may be cut. They are laid out together by array operations: a Python loop
over episodes would be slow.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import itertools
import json
import time
from typing import Any, NamedTuple

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import fingerprints
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import chunks as chunks_lib
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import priorities as priorities_lib

# Larger requests are not sent faster, and a server holds several in memory.
_BATCH_BYTES = 512 << 10
# Protocol buffers abort a server process that receives more than 2 GB.
_MAX_BATCH_BYTES = (2 << 30) - (1 << 20)


class PositionedSegment(NamedTuple):
  """A segment with padding, and with the position of each row in all data.

  A `Segment` does not depend on other data. Positions also depend on all
  earlier segments, and on the tables that the items are written to.

  Attributes:
    segment: the segment, of `E` episodes.
    origins: the position of the first frame of each episode, int64 `[E]`.
    padding: the number of padding rows after each episode, int64 `[E]`.
    rows: the frames with their padding, preceded by the rows that items need
      which begin before the segment.
    end: the position after the last row.
  """

  segment: frames_lib.Segment
  origins: np.ndarray
  padding: np.ndarray
  rows: Any
  end: int

  @property
  def begin(self) -> int:
    """The position of the first of `rows`."""
    return self.end - len(self.rows.step_type)


def assign_positions(
    segment: frames_lib.Segment,
    tables: Sequence[items_lib.TableItems],
    position: int,
    rows_before: Sequence[Any],
) -> PositionedSegment:
  """Assigns positions to the frames of a segment, and adds padding.

  As in TF-Agents, padding consists of boundary frames: all values are zero,
  except for the step type, which is LAST.

  Args:
    segment: the segment.
    tables: the tables of its items.
    position: the position of its first frame.
    rows_before: the rows directly before it, if items need them.
  """
  lengths, frames = segment.length, segment.frames
  padding = segment.is_end * np.max(
      [table.padding(lengths) for table in tables], axis=0
  )
  ends = position + np.cumsum(lengths + padding)
  if padding.any():
    index = np.repeat(segment.row_splits[1:], padding)

    def pad(leaf, value=0):
      value = b'' if leaf.dtype == object else value
      return np.insert(leaf, index, value, axis=0)

    frames = tf.nest.map_structure(pad, frames)._replace(
        step_type=pad(frames.step_type, ts.StepType.LAST)
    )
  rows = frames_lib.concatenate([*rows_before, frames])
  origins = ends - lengths - padding
  return PositionedSegment(segment, origins, padding, rows, int(ends[-1]))


class PositionedItems(NamedTuple):
  """The items of a table, arrays `[N]`.

  Attributes:
    episode: the index of the episode of each item; 0 if items cross episodes.
    frame: the index of its first frame in the episode; in all data, if items
      cross episodes.
    start: the position of its first row.
    end: the position after its last row.
    priority: its priority, float64.
    key: its key, uint64; 0 until `Layout` assigns it.
  """

  episode: np.ndarray
  frame: np.ndarray
  start: np.ndarray
  end: np.ndarray
  priority: np.ndarray
  key: np.ndarray

  def slice(self, begin: int, end: int) -> 'PositionedItems':
    """Returns the items `[begin, end)`."""
    return PositionedItems(*[column[begin:end] for column in self])


def find_items(
    table: items_lib.TableItems, positioned: PositionedSegment
) -> PositionedItems:
  """Returns the items of a table that end in a segment, in order.

  Priorities that are a function of the rows are 0 here.

  Raises:
    ValueError: if an episode is longer than the table accepts.
  """
  segment, origins = positioned.segment, positioned.origins
  length = table.sequence_length
  if table.windows is None:
    is_too_long = table.is_too_long(segment.length)
    if is_too_long.any() and not table.bypass_longer_episodes:
      raise ValueError(
          f'Episode {segment.episode_ids[np.argmax(is_too_long)]} has more'
          f' frames than the {table.max_sequence_length} that an item of'
          f' table {table.table_name!r} may have. Raise max_sequence_length,'
          ' or skip such episodes: bypass_partial_episodes=True of the'
          ' observer, bypass_longer_episodes=True of TableItems.'
      )
    episode = np.flatnonzero(segment.is_end & ~is_too_long)
    frame, length = np.zeros_like(episode), segment.length[episode]
  elif table.crosses_episodes:
    ends = np.array([positioned.end])
    episode, frame = table.windows.find(ends, origins[:1])
    origins = np.array([0])
  else:
    episode, frame = table.windows.find(segment.length, is_end=segment.is_end)
  start = origins[episode] + frame
  priority = 0.0 if callable(table.priority) else float(table.priority)
  return PositionedItems(
      episode,
      frame,
      start,
      start + length,
      np.full(len(start), priority),
      np.zeros(len(start), np.uint64),
  )


class EncodedBatch(NamedTuple):
  """Chunks and items that are sent or written together.

  Attributes:
    chunks: encoded chunks.
    items: encoded items. They refer to chunks of this batch, and to chunks that
      the previous batch kept.
    keep_chunk_keys: the keys of the chunks that later batches may refer to.
  """

  chunks: list[bytes]
  items: list[bytes]
  keep_chunk_keys: list[int]


class KeyMaker:
  """Makes the 64-bit keys of items, chunks and episodes.

  Keys are random, or hashes of an identity. A table holds each key once. So if
  keys are hashes of the identity of an item, an item that is inserted twice is
  in the table once. Under an identity, equal arguments give equal keys in every
  process.
  """

  def __init__(self, identity: Any | None, settings: Any = None):
    """Creates the key maker.

    Args:
      identity: a value that identifies the data, of the types that
        `fingerprints.fingerprint` accepts. With None, keys are random.
      settings: everything else that the items depend on, of the same types.

    Raises:
      ValueError: if `identity` holds a value that another process may not
        recognize as the same, such as a function.
    """
    self._fingerprint = None
    self._generator = np.random.default_rng()
    if identity is not None:
      self._fingerprint = fingerprints.fingerprint(identity, settings)

  def make_keys(
      self,
      parts: Callable[[int], Sequence[Any]],
      index: np.ndarray,
      offsets: np.ndarray,
  ) -> np.ndarray:
    """Returns keys, uint64 `[N]`.

    Args:
      parts: a function of an index that returns the JSON values to hash. It is
        called once for each distinct index, and not for random keys.
      index: the index of each key, not decreasing, `[N]`.
      offsets: a number that distinguishes keys of the same index, such as the
        first frame of an item in its episode, `[N]`.
    """
    is_new = np.diff(index, prepend=-1) > 0
    if self._fingerprint is None:
      hashes = self._generator.bytes(8 * np.count_nonzero(is_new))
    else:
      hashes = b''.join(
          self._hash(parts(first)) for first in index[is_new].tolist()
      )
    bases = np.frombuffer(hashes, '<u8')[np.cumsum(is_new) - 1]
    # Different offsets from one hash always give different keys, because
    # `mix_bits` is a bijection.
    steps = offsets.astype(np.uint64) + np.uint64(1)
    return random_lib.mix_bits(bases + steps * np.uint64(random_lib.GOLDEN))

  def _hash(self, parts) -> bytes:
    content = json.dumps([self._fingerprint, *parts]).encode()
    return hashlib.blake2b(content, digest_size=8).digest()


class Layout:
  """Converts segments of frames, in order, to batches of chunks and items.

  Attributes:
    num_frames: the number of frames so far.
    num_items: the number of items so far in each table, by its name.
  """

  def __init__(
      self,
      source: frames_lib.FrameSource,
      inserted_at: int | None = None,
      *,
      priority_ranges: Mapping[str, priorities_lib.PriorityRange] | None = None,
  ):
    """Creates the layout of the frames of a source.

    Args:
      source: the frames, and the tables of their items.
      inserted_at: the time of the first item, in nanoseconds since the epoch.
        Each further item is a nanosecond later, because a server orders items
        by this time. The default is the current time.
      priority_ranges: the range of priorities that the sampler of a table
        accepts, by the name of the table.

    Raises:
      ValueError: if there is no table, if two `TableItems` have one table and
        one length, if one table's items cross episodes and another's are
        padded, or if the priority of a table is outside of its range.
    """
    tables = source.tables
    if not tables:
      raise ValueError('There must be a table for the items.')
    lengths = {(table.table_name, table.sequence_length) for table in tables}
    if len(lengths) < len(tables):
      raise ValueError(
          'Two of the TableItems have one table and one length, so their items'
          ' would have the same keys. Write only one of them.'
      )
    crossing = [table for table in tables if table.crosses_episodes]
    padded = [table for table in tables if table.pads_episodes]
    if crossing and padded:
      raise ValueError(
          f'The items of table {crossing[0].table_name!r} cross episodes, but'
          f' the items of table {padded[0].table_name!r} are padded between'
          ' episodes. Write one table after the other.'
      )
    self.num_frames = 0
    self.num_items = {table.table_name: 0 for table in tables}
    self._source = source
    self._crossing = [
        table.windows for table in crossing if table.windows is not None
    ]
    # An observer whose items cross episodes writes all data as one episode of
    # Reverb. Sequences are one episode each.
    self._is_one_episode = len(crossing) == len(tables) and not (
        source.of_sequences
    )
    self._key_maker = KeyMaker(source.options.identity, source.settings)
    self._priority_fns = {
        index: priorities_lib.batched(table.priority)
        for index, table in enumerate(tables)
        if callable(table.priority)
    }
    self._ranges = priority_ranges or {}
    for table in tables:
      if table.table_name in self._ranges and not callable(table.priority):
        self._ranges[table.table_name].check(table.priority)
    self._next_time = time.time_ns() if inserted_at is None else inserted_at
    self._num_bypassed = 0
    self._episode_ids: set[Any] = set()
    # The key of the only episode, if all data is one; 0 before the first chunk.
    self._single_episode_key = 0
    # The chunks and rows of items that cross into the next segment.
    self._chunks = chunks_lib.ChunkTable()
    self._rows_before: list[Any] = []

  def add(self, segment: frames_lib.Segment) -> Iterator[EncodedBatch]:
    """Yields the batches of a segment.

    Raises:
      ValueError: if an episode is longer than a table accepts; if two episodes
        have the same `episode_id` under an identity; if a priority is not a
        number from 0 up, or outside of the range of its table; or if a chunk is
        too large for a message. The batches of earlier episodes come first.
        The episode itself has none, except batches before a chunk that is too
        large.
    """
    try:
      prepared = self._prepare(segment)
    except Exception:
      count = len(segment.episode_ids)
      if count == 1:
        raise
      # One episode at a time, so that the valid episodes before come first.
      for episode in range(count):
        prepared = self._prepare(segment.choose(np.array([episode])))
        yield from self._encode(*prepared)
    else:
      yield from self._encode(*prepared)

  def batches(self) -> Iterator[EncodedBatch]:
    """Yields the batches of all segments of the source; see `add`."""
    for segment in self._source.segments():
      yield from self.add(segment)
    self.warn()

  def warn(self) -> None:
    """Logs the number of bypassed episodes, if there are any."""
    if self._num_bypassed:
      logging.warning(
          'Bypassed %d episodes that are longer than max_sequence_length.',
          self._num_bypassed,
      )

  def _prepare(self, segment):
    """Returns a segment with positions, and the items of each table.

    Positions follow the last segment that was encoded. Nothing is changed here,
    so that `add` can repeat it episode by episode.
    """
    tables = self._source.tables
    new_ids = self._new_ids(segment)
    counts = collections.Counter(new_ids)
    for episode_id in new_ids:
      if counts[episode_id] > 1 or episode_id in self._episode_ids:
        raise ValueError(
            f'Two episodes have the episode_id {episode_id!r}, so their items'
            ' would have the same keys. Each episode needs its own id.'
        )
    positioned = assign_positions(
        segment, tables, int(self._chunks.starts[-1]), self._rows_before
    )
    items = [find_items(table, positioned) for table in tables]
    for index, function in self._priority_fns.items():
      name = tables[index].table_name
      priority = _compute_priorities(function, items[index], positioned)
      priorities_lib.check(priority, name, items[index].frame.item)
      if name in self._ranges:
        self._ranges[name].check(priority)
      items[index] = items[index]._replace(priority=priority)
    return positioned, items

  def _new_ids(self, segment) -> list[Any]:
    """Returns the ids of the episodes that begin in a segment."""
    if self._source.options.identity is None or self._source.of_sequences:
      return []
    return list(itertools.compress(segment.episode_ids, segment.step == 0))

  def _encode(self, positioned, items) -> Iterator[EncodedBatch]:
    """Yields batches; each has the items whose last chunk is in it.

    A batch keeps all chunks from the first one on that a later item needs.
    """
    source, old = self._source, self._chunks
    bounds = chunks_lib.cut_chunks(
        np.append(positioned.origins, positioned.end),
        source.chunk_length,
        source.options.one_episode_chunks,
    )
    new_keys = self._chunk_keys(positioned, bounds)
    new_chunks = self._encode_chunks(positioned, bounds, new_keys)
    chunks = chunks_lib.ChunkTable(
        np.concatenate([old.starts[:-1], bounds.starts]),
        np.concatenate([old.keys, new_keys]),
    )
    items = [
        table_items._replace(
            key=self._item_keys(table, positioned.segment, table_items)
        )
        for table, table_items in zip(source.tables, items)
    ]
    # For each item, the index after its last chunk.
    chunk_ends = [chunks.stops_of(table_items.end) for table_items in items]
    # The first chunk that items of later segments need.
    starts = [windows.first_start(positioned.end) for windows in self._crossing]
    first_needed = chunks.chunk_of(min(starts, default=positioned.end))
    # A long episode is encoded in several batches, not in one.
    row_bytes = steps_lib.estimate_step_bytes(source.spec)
    chunks_per_batch = max(_BATCH_BYTES // (row_bytes * source.chunk_length), 1)
    for begin in range(len(old.keys), len(chunks.keys), chunks_per_batch):
      end = min(begin + chunks_per_batch, len(chunks.keys))
      encoded_chunks = list(itertools.islice(new_chunks, chunks_per_batch))
      encoded_items, first_kept = [], first_needed
      for table, table_items, ends in zip(source.tables, items, chunk_ends):
        first, stop = np.searchsorted(ends, (begin, end), 'right').tolist()
        encoded_items += self._encode_items(
            table, table_items.slice(first, stop), chunks
        )
        if stop < len(table_items.start):
          next_item = table_items.start[stop]
          first_kept = min(first_kept, chunks.chunk_of(next_item))
      batch = EncodedBatch(
          encoded_chunks, encoded_items, chunks.keys[first_kept:end].tolist()
      )
      _check_size(batch)
      # A batch that no item refers to, now or later, is dropped.
      if batch.items or batch.keep_chunk_keys:
        yield batch
    self._chunks = chunks_lib.ChunkTable(
        chunks.starts[first_needed:], chunks.keys[first_needed:]
    )
    self._finish(positioned, items)

  def _finish(self, positioned, items) -> None:
    """Counts a segment, and keeps the rows that the next one needs."""
    segment = positioned.segment
    self.num_frames += int(segment.row_splits[-1])
    self._episode_ids.update(self._new_ids(segment))
    for table, table_items in zip(self._source.tables, items):
      if table.windows is None:
        num_items = len(table_items.key)
        self._num_bypassed += int(segment.is_end.sum()) - num_items
    if self._crossing:
      longest = max(windows.length for windows in self._crossing)
      tail = lambda leaf: leaf[-longest:]
      self._rows_before = [tf.nest.map_structure(tail, positioned.rows)]

  def _item_keys(self, table, segment, items) -> np.ndarray:
    """Returns the keys of the items of a table, uint64 `[N]`."""
    prefix = ['item', table.table_name, table.sequence_length]
    if table.crosses_episodes:
      return self._key_maker.make_keys(
          lambda _: prefix, items.episode, items.frame
      )
    return self._key_maker.make_keys(
        lambda episode: [*prefix, segment.episode_ids[episode]],
        items.episode,
        items.frame + segment.step[items.episode],
    )

  def _chunk_keys(self, positioned, bounds) -> np.ndarray:
    """Returns the keys of chunks, uint64 `[K]`."""
    segment, chunk_length = positioned.segment, self._source.chunk_length
    starts, first, stop = bounds
    columns = np.stack([segment.step, segment.length, positioned.padding], 1)
    # Equal frames may be followed by other padding, or by other episodes.
    episodes = list(zip(segment.episode_ids, columns.tolist()))
    # The chunks of one group of episodes share a hash, and differ in position.
    # This is the index of the first chunk of each chunk's group.
    group = np.searchsorted(first, first)
    return self._key_maker.make_keys(
        lambda k: ['chunk', episodes[first[k] : stop[k]], chunk_length],
        group,
        starts[:-1] - positioned.origins[first],
    )

  def _episode_keys(self, segment, episode) -> np.ndarray:
    """Returns keys by which a server counts episodes, uint64 `[K]`.

    Args:
      segment: the segment.
      episode: the index of the episode of each chunk, not decreasing.
    """
    return self._key_maker.make_keys(
        lambda index: ['episode', segment.episode_ids[index]],
        episode,
        segment.step[episode],
    )

  def _encode_chunks(self, positioned, bounds, keys) -> Iterator[bytes]:
    leaves = tf.nest.flatten(positioned.rows)
    starts, first, _ = bounds
    frames = starts[:-1] - positioned.origins[first]
    episode_keys = self._episode_keys(positioned.segment, first)
    if self._is_one_episode:
      frames = starts[:-1]
      self._single_episode_key = self._single_episode_key or int(
          episode_keys[0]
      )
      episode_keys = np.full(len(keys), self._single_episode_key, np.uint64)
    rows = (starts - positioned.begin).tolist()
    columns = (column.tolist() for column in (keys, episode_keys, frames))
    for key, episode_key, frame, start, end in zip(*columns, rows, rows[1:]):
      arrays = [leaf[start:end] for leaf in leaves]
      yield chunks_lib.encode_chunk(key, episode_key, frame, arrays)

  def _encode_items(self, table, items, chunks) -> list[bytes]:
    times = self._next_time + np.arange(len(items.key))
    self._next_time += len(times)
    self.num_items[table.table_name] += len(times)
    return chunks_lib.encode_items(
        table.table_name,
        items.key,
        items.priority,
        chunks.slices_of(items.start, items.end),
        len(tf.nest.flatten(self._source.spec)),
        times,
    )


def _check_size(batch: EncodedBatch) -> None:
  """Raises a ValueError if a batch is too large for a message."""
  size = sum(map(len, batch.chunks)) + sum(map(len, batch.items))
  if size > _MAX_BATCH_BYTES:
    raise ValueError(
        f'A chunk and its items have {size} bytes, and Reverb accepts 2 GB.'
        ' Choose a smaller chunk_length.'
    )


def _compute_priorities(function, items, positioned) -> np.ndarray:
  """Returns the priorities of items, float64 `[N]`.

  Args:
    function: the priority function, as `priorities.batched` returns it.
    items: the items.
    positioned: the segment with their rows.
  """
  priorities = np.zeros(len(items.start))
  lengths = items.end - items.start
  for length in np.unique(lengths).tolist():
    chosen = np.flatnonzero(lengths == length)
    starts = items.start[chosen] - positioned.begin
    index = windows_lib.window_index(starts, length)
    priorities[chosen] = function(
        tf.nest.map_structure(lambda leaf: leaf[index], positioned.rows)
    )
  return priorities
