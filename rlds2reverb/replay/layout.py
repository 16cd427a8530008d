"""Lays blocks of frames out as the chunks and items of Reverb.

A chunk holds consecutive rows of a group of columns. An item refers to slices
of chunks, so items that overlap, and items of several tables, share their rows:

    frames     |  0  1  2  3 |  4  5  6  7 |  8  9 |
    chunks     |      a      |      b      |   c   |
    an item               [3, 6)  =  a[3:4] + b[0:2]
"""

import functools
import time
from typing import (
    Any,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
)

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.replay import chunks as chunks_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frame_blocks
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import keys as keys_lib
from rlds2reverb.replay import priorities as priorities_lib

# Larger requests are not sent faster, and a server holds several at a time.
_BATCH_BYTES = 512 << 10


class Batch(NamedTuple):
  """Chunks and items that are sent or written together.

  Attributes:
    chunks: encoded chunks.
    items: encoded items, arrays as `encoding.encode_items` returns them. They
      refer to chunks of this batch and to chunks that the batch before kept.
    keep_chunk_keys: the keys of the chunks that later batches refer to.
  """

  chunks: List[bytes]
  items: List[np.ndarray]
  keep_chunk_keys: List[int]

  @property
  def num_items(self) -> int:
    """The number of items."""
    return sum(map(len, self.items))

  @property
  def num_bytes(self) -> int:
    """The number of bytes of the chunks and items."""
    return sum(map(len, self.chunks)) + sum(rows.nbytes for rows in self.items)


class Layout:
  """Turns blocks of frames, in their order, into batches of chunks and items.

  Attributes:
    frames: the number of frames so far.
    num_items: the number of items so far of each table, by its name.
  """

  def __init__(
      self,
      tables: Sequence[items_lib.TableItems],
      identity: Optional[Any],
      groups: Sequence[chunks_lib.ColumnGroup],
      *,
      form: Any = None,
      of_sequences: bool = False,
      inserted_at: Optional[int] = None,
  ):
    """Creates the layout.

    Args:
      tables: which items go into which table.
      identity: what tells the data from other data, see `keys.make_keys`.
      groups: the columns that share chunks.
      form: what else the keys depend on, see `keys.make_keys`.
      of_sequences: whether the blocks consist of sequences, each of which is a
        chunk and an item of its own, whatever its step types.
      inserted_at: the date of the first item, in nanoseconds, by which a server
        orders items; every further item is a nanosecond younger. The default is
        now.

    Raises:
      ValueError: if there is no table, or if items of one table cross episodes
        between which items of another one are padded.
    """
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
    self._tables = tables
    self._keys = keys_lib.make_keys(identity, form)
    self._has_identity = identity is not None
    self._of_sequences = of_sequences
    self._groups = [group.columns for group in groups]
    # An observer whose items cross episodes writes all data as one episode of
    # Reverb.
    self._is_one_episode = len(crossing) == len(tables)
    self._priorities = [priorities_lib.Priorities(table) for table in tables]
    self._bypassed = 0
    self._episode_ids = set()
    self._next_inserted_at = (
        time.time_ns() if inserted_at is None else inserted_at
    )
    # Positions count frames from the start of the data, padding included.
    self._end = 0
    self._episode_start = 0
    self._episode_key = None
    # A position plus this number is the step in the episode of the block.
    self._steps_ahead = 0
    # The chunks that items may still refer to.
    self._chunks = [chunks_lib.KeptChunks(group) for group in groups]

  def batches(
      self, blocks: Iterable[frame_blocks.Block]
  ) -> Iterator[Batch]:
    """Yields the batches of `blocks`.

    Args:
      blocks: the blocks. A frame whose step type is LAST ends an episode.

    Raises:
      ValueError: if an episode is longer than a table takes; if two episodes
        have the same `episode_id` under an identity; or if a priority is not a
        number from 0 up. No item of the episode at fault was yielded then,
        unless a priority is wrong and the episode has several blocks.
    """
    batch = Batch([], [], [])
    # How many of the batch's chunks and items belong to whole episodes.
    whole = 0, 0
    try:
      for block in frame_blocks.refuse_long_episodes(blocks, self._tables):
        self._append_block(batch, block)
        if (
            self._of_sequences
            or block.frames.step_type[-1] == ts.StepType.LAST
        ):
          whole = len(batch.chunks), len(batch.items)
        if batch.num_bytes >= _BATCH_BYTES:
          keys = np.concatenate([chunks.keys for chunks in self._chunks])
          yield batch._replace(keep_chunk_keys=keys.tolist())
          batch = Batch([], [], [])
          whole = 0, 0
    except Exception:
      # The episodes before the one at fault are not lost with it.
      num_chunks, num_items = whole
      batch = Batch(batch.chunks[:num_chunks], batch.items[:num_items], [])
      if batch.items:
        yield batch
      raise
    if batch.items:
      yield batch
    if self._bypassed:
      logging.warning(
          'Left out %d episodes that are longer than max_sequence_length.',
          self._bypassed,
      )

  def _append_block(self, batch, block) -> None:
    frames, episode_id, step = block
    if self._has_identity and step == 0:
      if episode_id in self._episode_ids:
        raise ValueError(
            f'Two episodes have the episode_id {episode_id!r}, so their items'
            ' would have the same keys. Give each its own.'
        )
      self._episode_ids.add(episode_id)
    length = len(frames.step_type)
    self.frames += length
    if self._of_sequences:
      pieces = [(0, length, False)]
    else:
      pieces = items_lib.split_at_ends(frames.step_type)
    for begin, end, is_end in pieces:
      piece = frames
      if end - begin < length:
        piece = frame_blocks.slice_frames(frames, begin, end)
      self._steps_ahead = step + begin - self._end
      self._append(batch, piece, episode_id)
      if is_end:
        self._end_episode(batch, piece, episode_id)
      self._forget()

  def _append(self, batch, frames, episode_id) -> None:
    """Lays out frames of an episode, and the items that end with them."""
    begin = self._end
    self._append_chunks(batch, frames, episode_id)
    for table, priorities in zip(self._tables, self._priorities):
      if table.sequence_length is not None:
        origin = self._origin(table)
        starts = table.starts(begin - origin, self._end - origin) + origin
        self._append_items(
            batch, table, priorities, starts, table.sequence_length, episode_id
        )

  def _end_episode(self, batch, frames, episode_id) -> None:
    """Lays out padding after an episode, and the items that need its end.

    Args:
      batch: the batch that they are added to.
      frames: the last frames of the episode.
      episode_id: see `Block`.
    """
    end = self._end
    length = end - self._episode_start
    padding = max(table.padding(length) for table in self._tables)
    if padding:
      self._append_chunks(
          batch,
          frame_blocks.padding_frames(frames, padding),
          episode_id,
          is_padding=True,
      )
    for table, priorities in zip(self._tables, self._priorities):
      if table.sequence_length is not None:
        origin = self._episode_start
        starts = table.starts(length, length + table.padding(length)) + origin
        item_length = table.sequence_length
      elif table.is_too_long(length):
        self._bypassed += 1
        continue
      else:
        starts = np.array([self._episode_start])
        item_length = length
      self._append_items(
          batch, table, priorities, starts, item_length, episode_id
      )
    self._episode_start = self._end
    if not self._is_one_episode:
      self._episode_key = None

  def _append_chunks(
      self, batch, frames, episode_id, is_padding=False
  ) -> None:
    leaves = tf.nest.flatten(frames)
    length = len(leaves[0])
    step = self._end + self._steps_ahead
    for chunks in self._chunks:
      chunk_length = chunks.group.chunk_length
      columns = [leaves[column] for column in chunks.group.columns]
      begins = np.arange(0, length, chunk_length)
      of = ['chunk', episode_id, chunk_length]
      if len(columns) < len(leaves):
        # Chunks of the same rows in other columns need other keys.
        of.append(chunks.group.columns)
      if is_padding:
        # The same places after a step may hold other padding, or other steps.
        keys = self._keys(['padding', step, length, *of], begins)
      else:
        keys = self._keys(of, step + begins)
      episode_keys, firsts = self._places(episode_id, step, begins)
      for key, begin, episode_key, first in zip(
          keys.tolist(), begins.tolist(), episode_keys, firsts
      ):
        end = begin + chunk_length
        batch.chunks.append(
            encoding.encode_chunk(
                key,
                episode_key,
                first,
                [column[begin:end] for column in columns],
            )
        )
      chunks.append(keys, self._end + begins, self._end + length)
    for priorities in self._priorities:
      priorities.append(self._end, frames)
    self._end += length

  def _places(self, episode_id, step, begins):
    """Returns where chunks lie, by which a server counts episodes.

    Args:
      episode_id: see `Block`.
      step: the index in its episode of the first row of the first chunk.
      begins: the distance of the first row of each chunk from that row, `[N]`.

    Returns:
      Two lists: the key of the episode of each chunk, and the index there of
      its first row.
    """
    if self._of_sequences:
      episode_keys = self._keys(['episode', episode_id], step + begins)
      return episode_keys.tolist(), [0] * len(begins)
    if self._episode_key is None:
      (self._episode_key,) = self._keys(
          ['episode', episode_id], np.array([step])
      ).tolist()
    firsts = self._end - self._episode_start + begins
    return [self._episode_key] * len(begins), firsts.tolist()

  def _append_items(
      self, batch, table, priorities, starts, length, episode_id
  ) -> None:
    """Lays out the items of `length` frames that start at `starts`."""
    if not len(starts):
      return
    of = ['item', table.table_name, table.sequence_length]
    if table.crosses_episodes:
      keys = self._keys(of, starts)
    else:
      keys = self._keys([*of, episode_id], starts + self._steps_ahead)
    inserted_at = self._next_inserted_at + np.arange(len(starts))
    self._next_inserted_at += len(starts)
    priorities = priorities.of_items(starts, length, self._origin(table))
    ends = starts + length
    spans = [chunks.spans(starts, ends) for chunks in self._chunks]
    # Items are encoded together if they have the same number of slices in every
    # group of columns. `form` is a number that says so.
    form = functools.reduce(
        lambda form, count: form * (count.max() + 1) + count,
        [count for _, count in spans],
    )
    rows = {}
    for each in np.unique(form).tolist():
      chosen = np.flatnonzero(form == each)
      slices = [
          chunks.slices(
              first[chosen], count[chosen[0]], starts[chosen], ends[chosen]
          )
          for chunks, (first, count) in zip(self._chunks, spans)
      ]
      rows[each] = encoding.encode_items(
          table.table_name,
          keys[chosen],
          priorities[chosen],
          self._groups,
          slices,
          inserted_at[chosen],
      )
    # Tables depend on the order of insertion, so the items keep their order.
    run_starts = np.flatnonzero(np.diff(form, prepend=0)).tolist()
    for begin, end in zip(run_starts, [*run_starts[1:], len(form)]):
      each = form[begin]
      batch.items.append(rows[each][: end - begin])
      rows[each] = rows[each][end - begin :]
    self.num_items[table.table_name] += len(starts)

  def _forget(self) -> None:
    """Forgets what no later item refers to."""
    needed = min(
        self._origin(table) + table.next_start(self._end - self._origin(table))
        for table in self._tables
    )
    for chunks in self._chunks:
      chunks.forget(needed)
    for priorities in self._priorities:
      priorities.forget(needed)

  def _origin(self, table) -> int:
    """Returns the position that the frames of a table's items count from."""
    return 0 if table.crosses_episodes else self._episode_start
