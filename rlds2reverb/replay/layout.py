"""Lays blocks of trajectories out as Reverb's chunks and items.

A chunk holds consecutive rows of a group of columns; an item refers to slices
of chunks, so overlapping items, and those of several tables, share their rows:

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
    Tuple,
)

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.replay import chunks as chunks_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import keys as keys_lib

# Larger requests are not sent faster, and a server has several at a time.
_BATCH_BYTES = 512 << 10


class Batch(NamedTuple):
  """Chunks and items that belong together.

  Attributes:
    chunks: encoded chunks.
    items: encoded items, arrays as of `encoding.encode_items`. They refer to
      these chunks and to those that the last batch kept.
    keep_chunk_keys: the chunks that later batches refer to.
  """

  chunks: List[bytes]
  items: List[np.ndarray]
  keep_chunk_keys: List[int]

  @property
  def num_items(self) -> int:
    return sum(map(len, self.items))

  @property
  def num_bytes(self) -> int:
    return sum(map(len, self.chunks)) + sum(rows.nbytes for rows in self.items)


class Block(NamedTuple):
  """Frames that are laid out at once.

  Attributes:
    frames: a `Trajectory` of arrays `[B, ...]`, consecutive frames of one
      episode; or whole sequences, one behind the other.
    episode_id: what identifies the episode, as a JSON value; None where the
      blocks are of sequences.
    step: the index in its episode of the first frame; of sequences, in the
      data.
  """

  frames: Any
  episode_id: Any
  step: int


class Layout:
  """Turns blocks of frames, in their order, into batches of chunks and items.

  Attributes:
    frames: the number of frames that came in.
    num_items: the number of items of each table.
  """

  def __init__(
      self,
      tables: Sequence[items_lib.TableItems],
      identity: Optional[Any],
      groups: Sequence[chunks_lib.ColumnGroup],
      *,
      form: Any = None,
      of_sequences: bool = False,
  ):
    """Creates the layout.

    Args:
      tables: which items go into which table.
      identity: what the keys are a function of, see `keys.make_keys`.
      groups: the columns that share chunks.
      form: what the keys are a function of beside `identity`.
      of_sequences: whether the blocks are of sequences, each of which is a
        chunk and an item of its own, whatever its step types.

    Raises:
      ValueError: if there are no tables, or `"cross"` and padded items are to
        share chunks.
    """
    if not tables:
      raise ValueError('There must be a table that the items go into.')
    crossing = [t.table for t in tables if t.end_of_episode == 'cross']
    padded = [t.table for t in tables if t.end_of_episode in ('pad', 'tile')]
    if crossing and padded:
      raise ValueError(
          f'The items of table {crossing[0]!r} cross episodes, between which'
          f' those of table {padded[0]!r} are padded. Write them one after the'
          ' other.'
      )
    self.frames = 0
    self.num_items = {table.table: 0 for table in tables}
    self._tables = tables
    self._keys = keys_lib.make_keys(identity, form)
    self._has_identity = identity is not None
    self._of_sequences = of_sequences
    self._groups = [group.columns for group in groups]
    # Observers whose items cross episodes write one episode, to Reverb.
    self._is_one_episode = len(crossing) == len(tables)
    self._priority_fns = [
        _batched(table.priority) if callable(table.priority) else None
        for table in tables
    ]
    self._bypassed = 0
    self._episode_ids = set()
    self._next_inserted_at = time.time_ns()
    # Positions are in frames from the start of the data, padding included.
    self._end = 0
    self._episode_start = 0
    self._episode_key = None
    # What is added to a position is its step in the episode of its block.
    self._steps_ahead = 0
    # What items may still refer to; frames, where priorities are functions of
    # them.
    self._chunks = [chunks_lib.KeptChunks(group) for group in groups]
    self._kept_frames: List[Tuple[int, Any]] = []

  def batches(self, blocks: Iterable[Block]) -> Iterator[Batch]:
    """Yields the batches of `blocks`.

    Args:
      blocks: the blocks. The frame whose step type is LAST ends an episode.

    Raises:
      ValueError: if an episode is longer than a table takes, before any item
        of it; under an identity two episodes have the same `episode_id`; or a
        priority is not a number from 0 up. Of an episode that is one block
        no item comes out then; of a longer one some may have.
    """
    batch = Batch([], [], [])
    whole = 0, 0  # how many of its chunks and items are of whole episodes
    try:
      for block in self._refuse_long_episodes(blocks):
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
      # What came before a bad episode is not lost with it.
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

  def _refuse_long_episodes(self, blocks: Iterable[Block]) -> Iterator[Block]:
    """Yields `blocks`, those of an episode when it is known to be valid."""
    tables = [
        table
        for table in self._tables
        if table.max_sequence_length and not table.bypass_longer_episodes
    ]
    if not tables:
      yield from blocks
      return
    table = min(tables, key=lambda table: table.max_sequence_length)
    held = []  # No more than the frames that an item may have, and a block.
    length = 0
    for block in blocks:
      for begin, end, is_end in items_lib.split_at_ends(block.frames.step_type):
        length += end - begin
        if table.is_too_long(length):
          raise ValueError(
              f'Episode {block.episode_id} has more frames than the'
              f' {table.max_sequence_length} that an item of table'
              f' {table.table!r} may have. Raise max_sequence_length, or leave'
              ' such episodes out: bypass_partial_episodes=True of the'
              ' observer, bypass_longer_episodes=True of TableItems.'
          )
        if is_end:
          yield from held
          held = []
          length = 0
      held.append(block)
      if not length:
        yield from held
        held = []
    yield from held

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
        piece = slice_frames(frames, begin, end)
      self._steps_ahead = step + begin - self._end
      self._append(batch, piece, episode_id)
      if is_end:
        self._end_episode(batch, piece, episode_id)
      self._forget()

  def _append(self, batch, frames, episode_id) -> None:
    """Lays out consecutive frames of an episode, and the items they end."""
    begin = self._end
    self._append_chunks(batch, frames, episode_id)
    for table, priority_fn in zip(self._tables, self._priority_fns):
      if table.sequence_length is not None:
        origin = self._origin(table)
        starts = table.starts(begin - origin, self._end - origin) + origin
        self._append_items(
            batch, table, priority_fn, starts, table.sequence_length, episode_id
        )

  def _end_episode(self, batch, frames, episode_id) -> None:
    """Lays out what an episode's end makes; `frames` are its last ones."""
    end = self._end
    length = end - self._episode_start
    padding = max(table.padding(length) for table in self._tables)
    if padding:
      self._append_chunks(
          batch, _padding(frames, padding), episode_id, is_padding=True
      )
    for table, priority_fn in zip(self._tables, self._priority_fns):
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
          batch, table, priority_fn, starts, item_length, episode_id
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
        # Apart from chunks of the same rows in other columns.
        of.append(chunks.group.columns)
      if is_padding:
        # Behind a step, where other padding, or other steps, may be as well.
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
    if any(self._priority_fns):
      self._kept_frames.append((self._end, frames))
    self._end += length

  def _places(self, episode_id, step, begins):
    """Returns the episode's key of each chunk, and its start there, as lists.

    Args:
      episode_id: see `Block`.
      step: the index in its episode of the first row of the first chunk.
      begins: what is added to it for the others, `[N]`.
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
      self, batch, table, priority_fn, starts, length, episode_id
  ) -> None:
    """Lays out the items of `length` frames that start at `starts`."""
    if not len(starts):
      return
    of = ['item', table.table, table.sequence_length]
    if table.end_of_episode == 'cross':
      keys = self._keys(of, starts)
    else:
      keys = self._keys([*of, episode_id], starts + self._steps_ahead)
    inserted_at = self._next_inserted_at + np.arange(len(starts))
    self._next_inserted_at += len(starts)
    if priority_fn:
      priorities = self._priorities(table, priority_fn, starts, length)
    else:
      priorities = np.full(len(starts), table.priority)
    ends = starts + length
    spans = [chunks.spans(starts, ends) for chunks in self._chunks]
    # Items of as many slices in every group are of one form.
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
          table.table,
          keys[chosen],
          priorities[chosen],
          self._groups,
          slices,
          inserted_at[chosen],
      )
    # Tables go by the order of insertion, so the items keep theirs.
    run_starts = np.flatnonzero(np.diff(form, prepend=0)).tolist()
    for begin, end in zip(run_starts, [*run_starts[1:], len(form)]):
      each = form[begin]
      batch.items.append(rows[each][: end - begin])
      rows[each] = rows[each][end - begin :]
    self.num_items[table.table] += len(starts)

  def _priorities(self, table, priority_fn, starts, length) -> np.ndarray:
    kept_starts, frames = zip(*self._kept_frames)
    index = (starts - kept_starts[0])[:, None] + np.arange(length)  # [N, L]
    windows = tf.nest.map_structure(
        lambda *leaves: np.concatenate(leaves)[index], *frames
    )
    priorities = priority_fn(windows).numpy().astype(np.float64)
    wrong = np.flatnonzero(~(priorities >= 0))
    if len(wrong):
      raise ValueError(
          f'A priority must be a number from 0 up, but that of an item of table'
          f' {table.table!r} is {priorities[wrong[0]]}: of the one that starts'
          f' at frame {starts[wrong[0]] - self._origin(table)} of its episode.'
      )
    return priorities

  def _forget(self) -> None:
    """Forgets what no item to come refers to."""
    needed = min(
        self._origin(table) + table.next_start(self._end - self._origin(table))
        for table in self._tables
    )
    for chunks in self._chunks:
      chunks.forget(needed)
    self._kept_frames = [
        (start, frames)
        for start, frames in self._kept_frames
        if start + len(frames.step_type) > needed
    ]

  def _origin(self, table) -> int:
    """Returns where the positions of a table's items count from."""
    return 0 if table.end_of_episode == 'cross' else self._episode_start


def slice_frames(frames: Any, begin: int, end: int) -> Any:
  """Returns the frames `[begin, end)` of a nest of arrays `[B, ...]`."""
  return tf.nest.map_structure(lambda leaf: leaf[begin:end], frames)


def _padding(frames, length):
  """Returns `length` boundary frames of zeros, as TF-Agents pads with."""

  def zeros(leaf):
    zero = b'' if leaf.dtype == object else 0
    return np.full((length,) + leaf.shape[1:], zero, leaf.dtype)

  padding = tf.nest.map_structure(zeros, frames)
  return padding._replace(
      step_type=np.full_like(padding.step_type, ts.StepType.LAST)
  )


def _batched(priority_fn):
  """Returns a priority of each item of a batch, `[N]`, as a graph function."""

  @tf.function(reduce_retracing=True)
  def priorities(items):
    # A batch of one would have its dimension squeezed away by tf.squeeze.
    twice = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf, leaf[:1]], 0), items
    )
    return tf.vectorized_map(priority_fn, twice)[:-1]

  return priorities
