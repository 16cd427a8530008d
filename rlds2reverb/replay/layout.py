"""Lays blocks of frames out as the chunks and items of Reverb.

A chunk holds consecutive rows of a group of columns. An item refers to slices
of chunks, so items that overlap, and items of several tables, share their rows:

    frames     |  0  1  2  3 |  4  5  6  7 |  8  9 |
    chunks     |      a      |      b      |   c   |
    an item               [3, 6)  =  a[3:4] + b[0:2]

A block is one episode, a part of one, or many short ones. All are laid out by
the same arithmetic on arrays, since Python for each episode would be slow.
"""

import time
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.replay import arranging
from rlds2reverb.replay import chunks as chunks_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import kept_chunks
from rlds2reverb.replay import keys as keys_lib
from rlds2reverb.trajectories import frame_blocks

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
      settings: Any = None,
      of_sequences: bool = False,
      one_episode_chunks: bool = False,
      inserted_at: Optional[int] = None,
  ):
    """Creates the layout.

    Args:
      tables: which items go into which table.
      identity: what tells the data from other data, see `keys.KeyMaker`.
      groups: the columns that share chunks.
      settings: what else the keys depend on, see `keys.KeyMaker`.
      of_sequences: whether the blocks consist of sequences, each of which is a
        chunk and an item of its own, even if it has LAST frames inside.
      one_episode_chunks: whether every chunk is of one episode. By default,
        short episodes of a block share chunks.
      inserted_at: the date of the first item, in nanoseconds, by which a server
        orders items; every further item is a nanosecond younger. The default is
        now.

    Raises:
      ValueError: if there is no table, or if items of one table cross episodes
        between which items of another one are padded.
    """
    self.frames = 0
    self.num_items = {table.table_name: 0 for table in tables}
    self._tables = tables
    self._keys = keys_lib.KeyMaker(identity, settings)
    self._arranger = arranging.Arranger(
        tables, has_identity=identity is not None, of_sequences=of_sequences
    )
    self._share_chunks = not one_episode_chunks
    # An observer whose items cross episodes writes all data as one episode of
    # Reverb. Sequences are an episode each.
    self._is_one_episode = (
        all(table.crosses_episodes for table in tables) and not of_sequences
    )
    self._next_inserted_at = (
        time.time_ns() if inserted_at is None else inserted_at
    )
    # The key of the unfinished episode.
    self._episode_key = None
    # The chunks to which later items may still refer.
    self._chunks = [kept_chunks.KeptChunks(group) for group in groups]

  @classmethod
  def of(
      cls, source: frames_lib.FrameSource, inserted_at: Optional[int] = None
  ) -> 'Layout':
    """Returns a new layout for the frames of a source.

    Args:
      source: the frames, and which items to make of them.
      inserted_at: see `__init__`.
    """
    return cls(
        source.tables,
        source.options.identity,
        source.groups,
        settings=source.settings,
        of_sequences=source.of_sequences,
        one_episode_chunks=source.options.one_episode_chunks,
        inserted_at=inserted_at,
    )

  def batches(
      self, blocks: Iterable[frame_blocks.FrameBlock]
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
    num_bytes = 0
    # How many of the batch's chunks and items belong to whole episodes.
    whole = 0, 0
    try:
      for arranged in self._arranger.arrange(blocks):
        laid_out = self._lay_out(arranged)
        batch.chunks.extend(laid_out.chunks)
        batch.items.extend(laid_out.items)
        num_bytes += laid_out.num_bytes
        if arranged.pieces.is_end[-1]:
          whole = len(batch.chunks), len(batch.items)
        if num_bytes >= _BATCH_BYTES:
          yield batch._replace(keep_chunk_keys=laid_out.keep_chunk_keys)
          batch = Batch([], [], [])
          num_bytes = 0
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

  def _lay_out(self, arranged) -> Batch:
    """Lays out a block, and the items that end in it."""
    encoded = self._lay_out_chunks(arranged)
    items = []
    for table, found, priorities in zip(
        self._tables, arranged.items, arranged.priorities
    ):
      if len(found.starts):
        items += self._lay_out_items(table, arranged, found, priorities)
    self.frames += len(arranged.block.frames.step_type)
    for chunks in self._chunks:
      chunks.forget(arranged.needed)
    kept = np.concatenate([each.keys for each in self._chunks])
    return Batch(encoded, items, kept.tolist())

  def _lay_out_chunks(self, arranged) -> List[bytes]:
    encoded = []
    pieces, episode_ids = arranged.pieces, arranged.block.episode_ids
    begin = pieces.first_position
    leaves = tf.nest.flatten(arranged.frames)
    cuts_of_groups = [
        chunks_lib.cut(pieces, chunks.group.chunk_length, self._share_chunks)
        for chunks in self._chunks
    ]
    episode_keys = self._keys_of_episodes(arranged, cuts_of_groups)
    for chunks, cuts in zip(self._chunks, cuts_of_groups):
      columns = [leaves[column] for column in chunks.group.columns]
      of: List[Any] = [chunks.group.chunk_length]
      if len(columns) < len(leaves):
        # Chunks of the same rows in other columns need other keys.
        of.append(chunks.group.columns)
      keys = self._keys.of_chunks(episode_ids, pieces, cuts, of)
      places = zip(
          keys.tolist(),
          episode_keys[cuts.first_piece].tolist(),
          (cuts.starts - pieces.origin[cuts.first_piece]).tolist(),
          (cuts.starts - begin).tolist(),
          (cuts.ends - begin).tolist(),
      )
      for key, episode_key, first, start, end in places:
        rows = [column[start:end] for column in columns]
        encoded.append(encoding.encode_chunk(key, episode_key, first, rows))
      chunks.append(keys, cuts.starts, pieces.end_position)
    return encoded

  def _keys_of_episodes(self, arranged, cuts_of_groups) -> np.ndarray:
    """Returns the episode keys of the pieces in which a chunk begins.

    A server counts episodes by these keys.

    Args:
      arranged: the arrangement of the block.
      cuts_of_groups: the `Cuts` of each group of columns.

    Returns:
      The keys, uint64 `[P]`. The values for other pieces have no meaning.
    """
    pieces = arranged.pieces
    numbers = np.arange(len(pieces.index))
    starts_episode = np.concatenate([[True], pieces.is_end[:-1]])
    if self._is_one_episode:
      starts_episode = numbers == 0
    # The piece that each piece's episode starts with in this block.
    first = np.maximum.accumulate(np.where(starts_episode, numbers, 0))
    is_needed = numbers == first[-1]
    for cuts in cuts_of_groups:
      is_needed[first[cuts.first_piece]] = True
    needed = np.flatnonzero(is_needed)
    keys = np.zeros(len(numbers), np.uint64)
    keys[needed] = self._keys.of_each(
        lambda index: ['episode', arranged.block.episode_ids[index]],
        pieces.index[needed],
        pieces.step[needed],
    )
    if self._episode_key is not None:
      keys[0] = self._episode_key
    keys = keys[first]
    goes_on = self._is_one_episode or not pieces.is_end[-1]
    self._episode_key = keys[-1] if goes_on else None
    return keys

  def _lay_out_items(
      self, table, arranged, items, priorities
  ) -> List[np.ndarray]:
    count = len(items.starts)
    inserted_at = self._next_inserted_at + np.arange(count)
    self._next_inserted_at += count
    self.num_items[table.table_name] += count
    return kept_chunks.encode_items(
        table.table_name,
        self._keys.of_items(
            table, arranged.block.episode_ids, arranged.pieces, items
        ),
        priorities,
        items,
        self._chunks,
        inserted_at,
    )
