"""Lays segments of frames out as the chunks and items of Reverb.

    frames     |  0  1  2  3 |  4  5  6  7 |  8  9 |
    chunks     |      a      |      b      |   c   |
    an item               [3, 6)  =  a[3:4] + b[0:2]

All episodes of a segment are laid out by the same arithmetic on arrays, since
Python for each episode would be slow.
"""

import collections
import itertools
import time
from typing import Any, Iterator, List, NamedTuple, Optional, Set

from absl import logging
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import blocks as blocks_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import keys as keys_lib
from rlds2reverb.replay import places
from rlds2reverb.replay import priorities as priorities_lib

# Larger requests are not sent faster, and a server holds several at a time.
_BATCH_BYTES = 512 << 10
# Protocol buffers abort the process of a server that gets more than 2 GB.
_MAX_BATCH_BYTES = (2 << 30) - (1 << 20)


class Batch(NamedTuple):
  """Chunks and items that are sent or written together.

  Attributes:
    chunks: encoded chunks.
    items: encoded items. They refer to chunks of this batch and to chunks that
      the batch before kept.
    keep_chunk_keys: the keys of the chunks that later batches refer to.
  """

  chunks: List[bytes]
  items: List[bytes]
  keep_chunk_keys: List[int]


class Layout:
  """Turns segments of frames, in their order, into batches.

  Attributes:
    num_frames: the number of frames so far.
    num_items: the number of items so far of each table, by its name.
  """

  def __init__(
      self, source: frames_lib.FrameSource, inserted_at: Optional[int] = None
  ):
    """Creates the layout of the frames of a source.

    Args:
      source: the frames, and which items to make of them.
      inserted_at: the date of the first item, in nanoseconds, by which a server
        orders items; every further item is a nanosecond younger. The default is
        now.

    Raises:
      ValueError: if there is no table, if two items of one length are of one
        table, or if items of one table cross episodes
        between which items of another one are padded.
    """
    tables = source.tables
    if not tables:
      raise ValueError('There must be a table that the items go into.')
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
          f'The items of table {crossing[0].table_name!r} cross episodes,'
          f' between which those of table {padded[0].table_name!r} are padded.'
          ' Write them one after the other.'
      )
    self.num_frames = 0
    self.num_items = {table.table_name: 0 for table in tables}
    self._source = source
    self._crossing = [table.windows for table in crossing]
    # An observer whose items cross episodes writes all data as one episode of
    # Reverb. Sequences are an episode each.
    self._is_one_episode = len(crossing) == len(tables) and not (
        source.of_sequences
    )
    self._keys = keys_lib.KeyMaker(source.options.identity, source.settings)
    self._priority_fns = {
        number: priorities_lib.batched(table.priority)
        for number, table in enumerate(tables)
        if callable(table.priority)
    }
    self._date = time.time_ns() if inserted_at is None else inserted_at
    self._num_bypassed = 0
    self._episode_ids: Set[Any] = set()
    self._episode_key = 0  # Of all data, once it is known.
    # What items that cross into the next segment need: chunks and rows.
    self._chunks = places.Chunks()
    self._rows_before: List[Any] = []

  def add(self, segment: frames_lib.Segment) -> Iterator[Batch]:
    """Yields the batches of a segment.

    Raises:
      ValueError: if an episode is longer than a table takes; if two episodes
        have the same `episode_id` under an identity; if a priority is not a
        number from 0 up; or if a chunk is too large for a message. The episodes
        before it come first then, and nothing of it.
    """
    try:
      placed = [self._place(segment)]
    except Exception:
      count = len(segment.episode_ids)
      if count == 1:
        raise
      # One by one, so that the error comes after the episodes before.
      each = np.arange(count)[:, np.newaxis]
      placed = map(self._place, map(segment.choose, each))
    for one in placed:
      yield from self._lay_out(*one)

  def batches(self) -> Iterator[Batch]:
    """Yields the batches of all that the source has; see `add`."""
    for segment in self._source.segments():
      yield from self.add(segment)
    self.warn()

  def warn(self) -> None:
    """Logs how many episodes were left out, if any were."""
    if self._num_bypassed:
      logging.warning(
          'Left out %d episodes that are longer than max_sequence_length.',
          self._num_bypassed,
      )

  def _place(self, segment):
    """Returns a segment at its place, and the items of each table.

    Nothing changes, here or in an error.
    """
    tables = self._source.tables
    new_ids = self._new_ids(segment)
    counts = collections.Counter(new_ids)
    for episode_id in new_ids:
      if counts[episode_id] > 1 or episode_id in self._episode_ids:
        raise ValueError(
            f'Two episodes have the episode_id {episode_id!r}, so their items'
            ' would have the same keys. Give each its own.'
        )
    placed = places.place(
        segment, tables, int(self._chunks.starts[-1]), self._rows_before
    )
    items = [places.find_items(table, placed) for table in tables]
    for number, function in self._priority_fns.items():
      priority = _priorities(function, items[number], placed)
      priorities_lib.check(
          priority, tables[number].table_name, items[number].frame.item
      )
      items[number] = items[number]._replace(priority=priority)
    return placed, items

  def _new_ids(self, segment) -> List[Any]:
    """Returns the ids of the episodes that start in a segment."""
    if self._source.options.identity is None or self._source.of_sequences:
      return []
    return list(itertools.compress(segment.episode_ids, segment.step == 0))

  def _lay_out(self, placed, items) -> Iterator[Batch]:
    """Yields the batches of a segment, in each the items that end there."""
    source, segment, old = self._source, placed.segment, self._chunks
    cuts = places.cut_chunks(
        placed, source.chunk_length, not source.options.one_episode_chunks
    )
    keys = self._keys.of_chunks(placed, cuts, source.chunk_length)
    new_chunks = self._encode_chunks(placed, cuts, keys)
    chunks = places.Chunks(
        np.concatenate([old.starts[:-1], cuts[0]]),
        np.concatenate([old.keys, keys]),
    )
    items = [
        each._replace(key=self._keys.of_items(table, segment, each))
        for table, each in zip(source.tables, items)
    ]
    stops = [chunks.stops_of(each) for each in items]
    # The first chunk that items of later segments need.
    needed = [windows.first_start(placed.end) for windows in self._crossing]
    needed = chunks.chunk_of(min(needed, default=placed.end))
    # Not all of a long episode is encoded at once.
    row_bytes = blocks_lib.step_bytes(source.spec)
    step = max(_BATCH_BYTES // (row_bytes * source.chunk_length), 1)
    for begin in range(len(old.keys), len(chunks.keys), step):
      end = min(begin + step, len(chunks.keys))
      batch = Batch(list(itertools.islice(new_chunks, step)), [], [])
      keep = [needed]
      for table, each, stop in zip(source.tables, items, stops):
        first, last = np.searchsorted(stop, (begin, end), 'right').tolist()
        batch.items.extend(
            self._encode_items(table, each.slice(first, last), chunks)
        )
        keep += chunks.chunk_of(each.start[last : last + 1]).tolist()
      batch.keep_chunk_keys.extend(chunks.keys[min(keep) : end].tolist())
      size = sum(map(len, batch.chunks)) + sum(map(len, batch.items))
      if size > _MAX_BATCH_BYTES:
        raise ValueError(
            f'A chunk and its items have {size} bytes, and Reverb can take 2'
            ' GB. Choose a smaller chunk_length.'
        )
      # Chunks that no item refers to are left out.
      if batch.items or batch.keep_chunk_keys:
        yield batch
    # What the next segment depends on.
    self.num_frames += int(segment.row_splits[-1])
    self._episode_ids.update(self._new_ids(segment))
    for table, each in zip(source.tables, items):
      if table.windows is None:
        self._num_bypassed += int(segment.is_end.sum()) - len(each.key)
    self._chunks = places.Chunks(chunks.starts[needed:], chunks.keys[needed:])
    if self._crossing:
      longest = max(windows.length for windows in self._crossing)
      tail = lambda leaf: leaf[-longest:]
      self._rows_before = [tf.nest.map_structure(tail, placed.rows)]

  def _encode_chunks(self, placed, cuts, keys) -> Iterator[bytes]:
    leaves = tf.nest.flatten(placed.rows)
    starts, first, _ = cuts
    frames = starts[:-1] - placed.origin[first]
    episode_keys = self._keys.of_episodes(placed.segment, first)
    if self._is_one_episode:
      frames = starts[:-1]
      self._episode_key = self._episode_key or int(episode_keys[0])
      episode_keys = np.full(len(keys), self._episode_key, np.uint64)
    rows = (starts - placed.begin).tolist()
    numbers = (each.tolist() for each in (keys, episode_keys, frames))
    for key, episode_key, frame, start, end in zip(*numbers, rows, rows[1:]):
      columns = [leaf[start:end] for leaf in leaves]
      yield encoding.encode_chunk(key, episode_key, frame, columns)

  def _encode_items(self, table, items, chunks) -> List[bytes]:
    dates = self._date + np.arange(len(items.key))
    self._date += len(dates)
    self.num_items[table.table_name] += len(dates)
    return encoding.encode_items(
        table.table_name,
        items.key,
        items.priority,
        chunks.slices(items),
        len(tf.nest.flatten(self._source.spec)),
        dates,
    )


def _priorities(function, items, placed) -> np.ndarray:
  """Returns the priorities of items that a function gives, float64 `[N]`.

  Args:
    function: a function of `priorities.batched`.
    items: the items.
    placed: the rows.
  """
  priorities = np.zeros(len(items.start))
  lengths = items.end - items.start
  for length in np.unique(lengths).tolist():
    chosen = np.flatnonzero(lengths == length)
    starts = items.start[chosen] - placed.begin
    index = windows_lib.window_index(starts, length)
    priorities[chosen] = function(
        tf.nest.map_structure(lambda leaf: leaf[index], placed.rows)  # pylint: disable=cell-var-from-loop
    )
  return priorities
