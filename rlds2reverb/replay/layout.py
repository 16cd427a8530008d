"""Lays segments of frames out as the chunks and items of Reverb.

    frames     |  0  1  2  3 |  4  5  6  7 |  8  9 |
    chunks     |      a      |      b      |   c   |
    an item               [3, 6)  =  a[3:4] + b[0:2]

All episodes of a segment are laid out by the same arithmetic on arrays, since
Python for each episode would be slow.
"""

import itertools
import time
from typing import Any, Iterator, List, NamedTuple, Optional

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
from rlds2reverb.replay import segments as segments_lib

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
    chunk_keys: the keys of the chunks, uint64 `[K]`.
    item_keys: the keys of the items, arrays of uint64.
    keep_chunk_keys: the keys of the chunks that later batches refer to.
  """

  chunks: List[bytes]
  items: List[bytes]
  chunk_keys: np.ndarray
  item_keys: List[np.ndarray]
  keep_chunk_keys: List[int]


class _Placed(NamedTuple):
  """A segment, and where its episodes and the items of each table are.

  Attributes:
    segment: the segment.
    episodes: the places of its episodes.
    rows: its frames and their padding, after the rows that items which cross
      into the segment need; the last row is that before `episodes.end`.
    items: the places of the items of each table, with their priorities.
  """

  segment: segments_lib.Segment
  episodes: places.Episodes
  rows: Any
  items: List[places.Items]


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
      ValueError: if there is no table, or if items of one table cross episodes
        between which items of another one are padded.
    """
    tables = source.tables
    if not tables:
      raise ValueError('There must be a table that the items go into.')
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
    self._crossing = crossing
    self._keys = keys_lib.KeyMaker(source.options.identity, source.settings)
    self._priority_fns = [
        priorities_lib.batched(table.priority)
        if callable(table.priority)
        else None
        for table in tables
    ]
    self._date = time.time_ns() if inserted_at is None else inserted_at
    self._bypassed = 0
    self._episode_ids = set()
    self._episode_key: Optional[np.ndarray] = None
    # What items that cross into the next segment need: chunks and rows.
    self._chunks = places.ChunkList()
    self._tail: Any = None

  def add(self, segment: segments_lib.Segment) -> Iterator[Batch]:
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
      placed = (
          self._place(segment.slice(index, index + 1)) for index in range(count)
      )
    for each in placed:
      yield from self._lay_out(each)

  def batches(self) -> Iterator[Batch]:
    """Yields the batches of all that the source has; see `add`."""
    for segment in self._source.segments():
      yield from self.add(segment)
    self.warn()

  def warn(self) -> None:
    """Logs how many episodes were left out, if any were."""
    if self._bypassed:
      logging.warning(
          'Left out %d episodes that are longer than max_sequence_length.',
          self._bypassed,
      )

  def _place(self, segment) -> _Placed:
    """Finds the items of a segment. Nothing changes, here or in an error."""
    self._check_episodes(segment)
    tables, begin = self._source.tables, self._chunks.end
    episodes = places.place_episodes(segment, tables, begin)
    rows = places.spread(segment, episodes)
    if self._tail is not None:
      rows = segments_lib.concatenate([self._tail, rows])
    first = episodes.end - len(rows.step_type)
    items = []
    for table, function in zip(tables, self._priority_fns):
      found = places.find_items(table, episodes)
      if function is not None:
        found = found._replace(
            priority=_priorities(table.table_name, function, found, rows, first)
        )
      items.append(found)
    return _Placed(segment, episodes, rows, items)

  def _check_episodes(self, segment) -> None:
    for table in self._source.tables:
      too_long = table.is_too_long(segment.length)
      if too_long.any() and not table.bypass_longer_episodes:
        raise ValueError(
            f'Episode {segment.episode_ids[np.argmax(too_long)]} has more'
            f' frames than the {table.max_sequence_length} that an item of'
            f' table {table.table_name!r} may have. Raise max_sequence_length,'
            ' or leave such episodes out: bypass_partial_episodes=True of the'
            ' observer, bypass_longer_episodes=True of TableItems.'
        )
    new = set()
    for episode_id in self._new_ids(segment):
      if episode_id in new or episode_id in self._episode_ids:
        raise ValueError(
            f'Two episodes have the episode_id {episode_id!r}, so their items'
            ' would have the same keys. Give each its own.'
        )
      new.add(episode_id)

  def _new_ids(self, segment) -> List[Any]:
    """Returns the ids of the episodes that start in a segment."""
    if self._source.options.identity is None or self._source.of_sequences:
      return []
    return list(itertools.compress(segment.episode_ids, segment.step == 0))

  def _lay_out(self, placed: _Placed) -> Iterator[Batch]:
    """Yields the batches of a segment, in each the items that end there."""
    source, segment, episodes = self._source, placed.segment, placed.episodes
    cuts = places.cut_chunks(
        episodes, source.chunk_length, not source.options.one_episode_chunks
    )
    keys = self._keys.of_chunks(segment, episodes, cuts, source.chunk_length)
    encoded = self._encode_chunks(placed, cuts, keys)
    begin = len(self._chunks.keys)
    chunks = self._chunks.followed_by(keys, cuts.start, episodes.end)
    needed = self._first_needed(chunks)
    found = [
        items._replace(key=self._keys.of_items(table, segment, items))
        for table, items in zip(source.tables, placed.items)
    ]
    stops = [chunks.stops(items) for items in found]
    # Not all of a long episode is encoded at once.
    row_bytes = blocks_lib.step_bytes(source.spec)
    step = max(_BATCH_BYTES // (row_bytes * source.chunk_length), 1)
    for begin in range(begin, len(chunks.keys), step):
      end = min(begin + step, len(chunks.keys))
      batch = Batch(
          list(itertools.islice(encoded, step)),
          [],
          chunks.keys[begin:end],
          [],
          [],
      )
      keep = [needed]
      for table, items, stop in zip(source.tables, found, stops):
        first, last = np.searchsorted(stop, (begin, end), 'right')
        new = items.slice(first, last)
        batch.items.extend(self._encode_items(table, new, chunks))
        batch.item_keys.append(new.key)
        keep += chunks.first_of(items.slice(last, last + 1)).tolist()
      batch.keep_chunk_keys.extend(chunks.keys[min(keep) : end].tolist())
      _check_size(batch)
      # Chunks that no item refers to are left out.
      if batch.items or batch.keep_chunk_keys:
        yield batch
    self._chunks = chunks.from_chunk(needed)
    self._go_on(placed)

  def _encode_chunks(self, placed, cuts, keys) -> Iterator[bytes]:
    leaves = tf.nest.flatten(placed.rows)
    begin = placed.episodes.end - len(leaves[0])
    for key, episode_key, first, start, end in zip(
        keys.tolist(),
        self._episode_keys(placed.segment, cuts.episode).tolist(),
        (cuts.start - placed.episodes.origin[cuts.episode]).tolist(),
        (cuts.start - begin).tolist(),
        (cuts.end - begin).tolist(),
    ):
      columns = [leaf[start:end] for leaf in leaves]
      yield encoding.encode_chunk(key, episode_key, first, columns)

  def _encode_items(self, table, items, chunks) -> List[bytes]:
    count = len(items.key)
    dates = self._date + np.arange(count)
    self._date += count
    self.num_items[table.table_name] += count
    return encoding.encode_items(
        table.table_name,
        items.key,
        items.priority,
        chunks.slices(items),
        len(tf.nest.flatten(self._source.spec)),
        dates,
    )

  def _episode_keys(self, segment, episode) -> np.ndarray:
    """Returns the keys of episodes, by which a server counts them."""
    # An observer whose items cross episodes writes all data as one episode of
    # Reverb, which has one key. Sequences are an episode each.
    source = self._source
    if source.of_sequences or len(self._crossing) < len(source.tables):
      return self._keys.of_episodes(segment, episode)
    if self._episode_key is None:
      self._episode_key = self._keys.of_episodes(segment, episode[:1])
    return self._episode_key.repeat(len(episode))

  def _first_needed(self, chunks) -> int:
    """Returns the first chunk that items of later segments need, an index."""
    end = chunks.end
    position = min(
        [int(t.windows.first_needed(end)) for t in self._crossing], default=end
    )
    if position >= end:
      return len(chunks.keys)
    return int(np.searchsorted(chunks.starts, position, 'right')) - 1

  def _go_on(self, placed: _Placed) -> None:
    """Remembers what the next segment depends on."""
    segment, episodes = placed.segment, placed.episodes
    self.num_frames += len(segment.frames.step_type)
    self._episode_ids.update(self._new_ids(segment))
    for table in self._source.tables:
      too_long = table.is_too_long(episodes.length) & episodes.is_end
      self._bypassed += int(np.count_nonzero(too_long))
    if self._crossing:
      longest = max(table.windows.length for table in self._crossing)
      self._tail = tf.nest.map_structure(
          lambda leaf: leaf[-longest:], placed.rows
      )


def _check_size(batch: Batch) -> None:
  size = sum(map(len, batch.chunks)) + sum(map(len, batch.items))
  if size > _MAX_BATCH_BYTES:
    raise ValueError(
        f'A chunk and its items have {size} bytes, and Reverb can take 2 GB.'
        ' Choose a smaller chunk_length.'
    )


def _priorities(name, function, items, rows, first) -> np.ndarray:
  """Returns the priorities of items that a function gives, float64 `[N]`.

  Args:
    name: the name of their table.
    function: a function of `priorities.batched`.
    items: the places of the items.
    rows: the rows from a position on.
    first: this position.
  """
  priorities = np.zeros(len(items.start))
  lengths = items.end - items.start
  for length in np.unique(lengths).tolist():
    chosen = np.flatnonzero(lengths == length)
    index = windows_lib.window_index(items.start[chosen] - first, length)
    priorities[chosen] = function(
        tf.nest.map_structure(lambda leaf: leaf[index], rows)  # pylint: disable=cell-var-from-loop
    )
  starts = items.start - items.origin
  priorities_lib.check(priorities, name, lambda item: starts[item])
  return priorities
