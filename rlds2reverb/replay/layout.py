"""Lays segments of frames out as the chunks and items of Reverb.

    frames     |  0  1  2  3 |  4  5  6  7 |  8  9 |
    chunks     |      a      |      b      |   c   |
    an item               [3, 6)  =  a[3:4] + b[0:2]

All episodes of a segment are laid out by the same arithmetic on arrays, since
Python for each episode would be slow.
"""

import functools
import itertools
import time
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional

from absl import logging
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import blocks as blocks_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import keys as keys_lib
from rlds2reverb.replay import places

# Larger requests are not sent faster, and a server holds several at a time.
_BATCH_BYTES = 512 << 10


class Batch(NamedTuple):
  """Chunks and items that are sent or written together.

  Attributes:
    chunks: encoded chunks.
    items: encoded items. They refer to chunks of this batch and to chunks that
      the batch before kept.
    chunk_keys: the keys of the chunks, arrays of uint64.
    item_keys: the keys of the items, arrays of uint64.
    keep_chunk_keys: the keys of the chunks that later batches refer to.
  """

  chunks: List[bytes]
  items: List[bytes]
  chunk_keys: List[np.ndarray]
  item_keys: List[np.ndarray]
  keep_chunk_keys: List[int]


class _Arranged(NamedTuple):
  """A segment, and the places and priorities of its items by table."""

  segment: frames_lib.Segment
  episodes: places.Episodes
  frames: Any
  items: List[places.Items]
  priorities: List[np.ndarray]


class Layout:
  """Turns segments of frames, in their order, into batches.

  Attributes:
    frames: the number of frames so far.
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
    crossing = [t.table_name for t in tables if t.crosses_episodes]
    padded = [t.table_name for t in tables if t.pads_episodes]
    if crossing and padded:
      raise ValueError(
          f'The items of table {crossing[0]!r} cross episodes, between which'
          f' those of table {padded[0]!r} are padded. Write them one after the'
          ' other.'
      )
    self.frames = 0
    self.num_items = {table.table_name: 0 for table in tables}
    self._source = source
    self._keys = keys_lib.KeyMaker(source.options.identity, source.settings)
    self._priority_fns = [
        _batched(table.priority) if callable(table.priority) else None
        for table in tables
    ]
    self._date = time.time_ns() if inserted_at is None else inserted_at
    self._batch = Batch([], [], [], [], [])
    self._num_bytes = 0
    self._bypassed = 0
    self._episode_ids = set()
    self._end = 0  # The position of the next row.
    # An observer whose items cross episodes writes all data as one episode of
    # Reverb, which has one key. Sequences are an episode each.
    self._is_one_episode = len(crossing) == len(tables) and (
        not source.of_sequences
    )
    self._episode_key: Optional[np.ndarray] = None
    # What items that cross into the next segment may need.
    self._chunks = places.ChunkList()
    self._last_frames: Any = None
    self._num_columns = len(tf.nest.flatten(source.spec))
    self._row_bytes = blocks_lib.step_bytes(source.spec)

  def batches(self, segments: Iterable[frames_lib.Segment]) -> Iterator[Batch]:
    """Yields the batches of all segments.

    Raises:
      ValueError: as `add` does. The batches of the episodes before come first.
    """
    try:
      for segment in segments:
        yield from self.add(segment)
    except Exception:
      yield from self.flush()
      raise
    yield from self.flush()

  def add(self, segment: frames_lib.Segment) -> Iterator[Batch]:
    """Adds a segment; yields the batches that are full.

    Raises:
      ValueError: if an episode is longer than a table takes; if two episodes
        have the same `episode_id` under an identity; or if a priority is not a
        number from 0 up. The episodes before it are added then, and nothing of
        it.
    """
    try:
      arranged = [self._arrange(segment)]
    except Exception:
      count = len(segment.episode_ids)
      if count == 1:
        raise
      # One by one, so that the error comes after the episodes before.
      arranged = (
          self._arrange(segment.slice(index, index + 1))
          for index in range(count)
      )
    for each in arranged:
      yield from self._lay_out(each)

  def flush(self) -> Iterator[Batch]:
    """Yields what was added and has not come yet, if there is anything."""
    if self._batch.items:
      yield self._take([])
    if self._bypassed:
      logging.warning(
          'Left out %d episodes that are longer than max_sequence_length.',
          self._bypassed,
      )

  def _take(self, keep_chunk_keys) -> Batch:
    batch = self._batch._replace(keep_chunk_keys=keep_chunk_keys)
    self._batch = Batch([], [], [], [], [])
    self._num_bytes = 0
    return batch

  def _arrange(self, segment) -> _Arranged:
    """Finds the items of a segment. Nothing changes, here or in an error."""
    tables = self._source.tables
    self._check_episodes(segment)
    length = segment.length
    is_end = np.ones(len(length), bool)
    is_end[-1] = not segment.is_open
    padding = is_end * functools.reduce(
        np.maximum, [table.padding(length) for table in tables]
    )
    sizes = length + padding
    origin = self._end + np.cumsum(sizes) - sizes
    episodes = places.Episodes(origin, length, padding, is_end)
    rows = np.repeat(origin - segment.row_splits[:-1], length)
    frames = places.spread(
        segment.frames,
        rows + np.arange(len(rows)) - self._end,
        episodes.end - self._end,
    )
    items = [places.find_items(table, episodes) for table in tables]
    priorities = [
        self._priorities_of(number, found, frames)
        for number, found in enumerate(items)
    ]
    return _Arranged(segment, episodes, frames, items, priorities)

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
    seen = set(self._episode_ids)
    for episode_id in self._new_ids(segment):
      if episode_id in seen:
        raise ValueError(
            f'Two episodes have the episode_id {episode_id!r}, so their items'
            ' would have the same keys. Give each its own.'
        )
      seen.add(episode_id)

  def _new_ids(self, segment) -> List[Any]:
    """Returns the ids of the episodes that start in a segment."""
    if self._source.options.identity is None or self._source.of_sequences:
      return []
    return [
        segment.episode_ids[index]
        for index in np.flatnonzero(segment.step == 0)
    ]

  def _priorities_of(self, number, items, frames) -> np.ndarray:
    """Returns the priorities of the items of a table, float64 `[N]`."""
    table = self._source.tables[number]
    function = self._priority_fns[number]
    if function is None:
      return np.full(len(items.start), table.priority)
    begin = self._end + len(frames.step_type)
    frames = self._with_last(frames)
    begin -= len(frames.step_type)
    priorities = np.zeros(len(items.start))
    lengths = items.end - items.start
    for length in np.unique(lengths).tolist():
      chosen = np.flatnonzero(lengths == length)
      rows = windows_lib.window_index(items.start[chosen] - begin, length)
      priorities[chosen] = function(
          tf.nest.map_structure(lambda leaf: leaf[rows], frames)  # pylint: disable=cell-var-from-loop
      )
    wrong = np.flatnonzero(~(priorities >= 0))
    if len(wrong):
      item = wrong[0]
      raise ValueError(
          'A priority must be a number from 0 up, but that of an item of table'
          f' {table.table_name!r} is {priorities[item]}: of the one that starts'
          f' at frame {items.start[item] - items.origin[item]} of its episode.'
      )
    return priorities

  def _lay_out(self, arranged: _Arranged) -> Iterator[Batch]:
    """Adds the chunks and items of a segment, and yields full batches."""
    source, segment = self._source, arranged.segment
    episodes = arranged.episodes
    cuts = places.cut_chunks(
        episodes, source.chunk_length, not source.options.one_episode_chunks
    )
    keys = self._keys_of_chunks(segment, episodes, cuts)
    encoded = self._encode_chunks(arranged, cuts, keys)
    begin = len(self._chunks.keys)
    chunks = self._chunks.followed_by(keys, cuts.start, episodes.end)
    needed = self._first_needed(chunks)
    spans = [chunks.spans(items) for items in arranged.items]
    item_keys = [
        self._keys_of_items(table, segment, items)
        for table, items in zip(source.tables, arranged.items)
    ]
    # Not all of a long episode is encoded at once.
    step = max(_BATCH_BYTES // (self._row_bytes * source.chunk_length), 1)
    for begin in range(begin, len(chunks.keys), step):
      end = min(begin + step, len(chunks.keys))
      for chunk in itertools.islice(encoded, end - begin):
        self._batch.chunks.append(chunk)
        self._num_bytes += len(chunk)
      self._batch.chunk_keys.append(chunks.keys[begin:end])
      keep = needed
      for number, span in enumerate(spans):
        stop = self._add_items(
            number, arranged, item_keys[number], chunks, span, (begin, end)
        )
        keep = min([keep, *span[0][stop : stop + 1].tolist()])
      if self._num_bytes >= _BATCH_BYTES:
        yield self._take(chunks.keys[keep:end].tolist())
    self._chunks = chunks.from_chunk(needed)
    self._go_on(arranged)

  def _encode_chunks(self, arranged, chunks, keys) -> Iterator[bytes]:
    leaves = tf.nest.flatten(arranged.frames)
    begin = arranged.episodes.first
    for key, episode_key, first, start, end in zip(
        keys.tolist(),
        self._keys_of_episodes(arranged.segment, chunks.episode).tolist(),
        (chunks.start - arranged.episodes.origin[chunks.episode]).tolist(),
        (chunks.start - begin).tolist(),
        (chunks.end - begin).tolist(),
    ):
      columns = [leaf[start:end] for leaf in leaves]
      yield encoding.encode_chunk(key, episode_key, first, columns)

  def _add_items(self, number, arranged, keys, chunks, spans, between) -> int:
    """Adds the items of a table that end in some chunks, in their order.

    Args:
      number: the index of the table.
      arranged: the segment.
      keys: the keys of all items of the table in it.
      chunks: the chunks that items refer to.
      spans: the first and the last chunk of each item.
      between: the first of these chunks, and the one after the last.

    Returns:
      The index of the item after the last one added.
    """
    first, last = spans
    begin, end = np.searchsorted(last, between).tolist()
    table, items = self._source.tables[number], arranged.items[number]
    dates = self._date + np.arange(end - begin)
    self._date += end - begin
    self.num_items[table.table_name] += end - begin
    encoded: List[Any] = [None] * (end - begin)
    counts = (last - first + 1)[begin:end]
    for count in np.unique(counts).tolist():
      at = np.flatnonzero(counts == count)
      for index, item in zip(
          at.tolist(),
          encoding.encode_items(
              table.table_name,
              keys[begin + at],
              arranged.priorities[number][begin + at],
              chunks.slices(items, begin + at, first[begin + at], count),
              self._num_columns,
              dates[at],
          ),
      ):
        encoded[index] = item
        self._num_bytes += len(item)
    self._batch.items.extend(encoded)
    self._batch.item_keys.append(keys[begin:end])
    return end

  def _first_needed(self, chunks) -> int:
    """Returns the first chunk that items of later segments need, an index."""
    position = min(
        [
            int(table.windows.first_needed(chunks.end))
            for table in self._source.tables
            if table.crosses_episodes
        ],
        default=chunks.end,
    )
    if position >= chunks.end:
      return len(chunks.keys)
    return int(np.searchsorted(chunks.starts, position, 'right')) - 1

  def _go_on(self, arranged) -> None:
    """Remembers what the next segment depends on."""
    segment, episodes = arranged.segment, arranged.episodes
    self._end = episodes.end
    self.frames += len(segment.frames.step_type)
    self._episode_ids.update(self._new_ids(segment))
    for table in self._source.tables:
      too_long = episodes.is_end & table.is_too_long(episodes.length)
      self._bypassed += int(np.count_nonzero(too_long))
    longest = max(
        (
            table.windows.length
            for table in self._source.tables
            if table.crosses_episodes and callable(table.priority)
        ),
        default=0,
    )
    if longest:
      self._last_frames = tf.nest.map_structure(
          lambda leaf: leaf[-longest:], self._with_last(arranged.frames)
      )

  def _with_last(self, frames) -> Any:
    """Returns frames after the last ones of the segment before."""
    if self._last_frames is None:
      return frames
    return tf.nest.map_structure(
        lambda *leaves: np.concatenate(leaves), self._last_frames, frames
    )

  def _keys_of_items(self, table, segment, items) -> np.ndarray:
    of = ['item', table.table_name, table.sequence_length]
    if table.crosses_episodes:
      return self._keys.of(lambda _: of, items.episode, items.start)
    return self._keys.of(
        lambda index: [*of, segment.episode_ids[index]],
        items.episode,
        items.start - items.origin + segment.step[items.episode],
    )

  def _keys_of_chunks(self, segment, episodes, chunks) -> np.ndarray:
    length = self._source.chunk_length
    ids, step = segment.episode_ids, segment.step.tolist()
    sizes, padding = episodes.length.tolist(), episodes.padding.tolist()

    def rows_of(index):
      # The same frames may be followed by other padding.
      return ['chunk', ids[index], length, *filter(None, [padding[index]])]

    def episodes_of(chunk):
      begin = chunks.episode[chunk]
      held = range(begin, begin + chunks.num_episodes[chunk])
      content = [
          (ids[each], sizes[each], padding[each], *filter(None, [step[each]]))
          for each in held
      ]
      return ['episodes', content, length]

    numbers = np.arange(len(chunks.start))
    shared = chunks.num_episodes > 1
    positions = chunks.start - episodes.origin[chunks.episode]
    keys = np.zeros(len(numbers), np.uint64)
    keys[shared] = self._keys.of(
        episodes_of, numbers[shared], np.zeros_like(numbers[shared])
    )
    own = chunks.episode[~shared]
    keys[~shared] = self._keys.of(
        rows_of, own, segment.step[own] + positions[~shared]
    )
    return keys

  def _keys_of_episodes(self, segment, episode) -> np.ndarray:
    """Returns the keys of episodes, by which a server counts them."""
    if self._is_one_episode and self._episode_key is not None:
      return self._episode_key.repeat(len(episode))
    found, index = np.unique(episode, return_inverse=True)
    keys = self._keys.of(
        lambda each: ['episode', segment.episode_ids[each]],
        found,
        segment.step[found],
    )
    if self._is_one_episode:
      self._episode_key = keys[:1]
      return self._episode_key.repeat(len(episode))
    return keys[index]


def _batched(priority_fn):
  """Returns a graph function that gives the priorities of items, `[N]`."""

  @tf.function(reduce_retracing=True)
  def priorities(items):
    # tf.squeeze in a priority function would remove a batch dimension of 1, so
    # there are always two items or more.
    twice = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf, leaf[:1]], 0), items
    )
    # A priority function may return a variable.
    return tf.vectorized_map(
        lambda item: tf.convert_to_tensor(priority_fn(item)), twice
    )[:-1]

  return priorities
