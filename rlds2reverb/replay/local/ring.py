"""A ring of frames, in which new frames overwrite the oldest ones.

Rows and items are numbered from the start of the data, and lie in rings: of `C`
places, row `r` has place `r % C`.

    capacity of 4 frames, after frames 0 to 5    | 4  5  2  3 |
    items of 2 that can be drawn                   2-3  3-4  4-5
"""

import io
import threading
from typing import Any, Iterable, Optional

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.replay import arranging
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.trajectories import frame_blocks

# The number of frames that are encoded and written at once.
_ROWS_AT_ONCE = 4096


class FrameRing(tf.train.experimental.PythonState):
  """The last frames of a stream, and their items.

  It is a population, as `Population` is, of items whose numbers grow. Its
  content becomes part of a `tf.train.Checkpoint`. Several threads may append
  and sample: a reader of frames holds the lock from the draw on.

  Attributes:
    store: the frames. Its runs are empty.
    num_slots: how many items can be drawn at most.
    listener: a `Prioritized` sampler, which is told of added and removed items;
      or None.
    lock: protects all of it.
  """

  changes = True
  crosses_episodes = True
  priorities = None

  def __init__(self, spec: Any, items: items_lib.TableItems, capacity: int):
    """Creates an empty ring.

    Args:
      spec: the spec of one frame, a `Trajectory`.
      items: which items there will be.
      capacity: the largest number of frames whose items can be drawn.

    Raises:
      ValueError: if frames have strings, or items are whole episodes or longer
        than `capacity`.
    """
    format_ = store_lib.layout_of(spec)
    if format_.has_strings:
      raise ValueError(
          'Frames that are appended must have a fixed size, but there are'
          ' strings among their fields. Decode or encode them first.'
      )
    length = items.sequence_length
    if length is None or length > capacity:
      raise ValueError(
          f'The windows of items must have a length of at most {capacity}, the'
          f' capacity, but it is {length}.'
      )
    self.capacity = self.num_slots = capacity
    self.listener: Optional[Any] = None
    self.lock = threading.RLock()
    self._items = items
    self._arranger = arranging.Arranger([items])
    self._length = length
    # The first rows are repeated at the end, so that every item is contiguous.
    self._rows = [
        np.zeros([capacity + length - 1, size], np.uint8)
        for size in format_.row_bytes
    ]
    # The row at which each item starts.
    self._starts = np.zeros([capacity], np.int64)
    # The first and the next row.
    self._begin = self._end = 0
    # The first item that can be drawn, and the next one.
    self.first = self._next = 0
    none = np.zeros(0, np.int64)
    self.store = store_lib.FrameStore(
        spec,
        format_,
        store_lib.ItemWindows.of(items.windows),
        self._rows,
        np.zeros([0], np.uint8),
        store_lib.Runs(none, none, none, none.astype(np.float64)),
        None,
        identity_lib.fingerprint(
            repr(spec),
            capacity,
            length,
            items.windows.stride,
            items.windows.end,
        ),
    )

  @property
  def num_items(self) -> int:
    """The number of items that can be drawn."""
    return self._next - self.first

  @property
  def num_frames(self) -> int:
    """The number of frames, with padding."""
    return min(self._end - self._begin, self.capacity)

  def all_rows(self) -> np.ndarray:
    """Returns the row of each frame, with padding, int64 `[N]`."""
    return np.arange(self._end - self.num_frames, self._end) % self.capacity

  def check_not_empty(self) -> None:
    """Raises a SamplingError if there is no item."""
    if not self.num_items:
      raise population_lib.SamplingError(
          'There is nothing to sample yet. Append frames before a batch is'
          ' taken.'
      )

  def slots(self, items: np.ndarray) -> np.ndarray:
    """Returns the slots of items; see `Population`."""
    return items % self.capacity

  def items_in(self, slots: np.ndarray) -> np.ndarray:
    """Returns the items in slots; see `Population`."""
    return self.first + (slots - self.first) % self.capacity

  def alive(self, items: np.ndarray) -> np.ndarray:
    """Returns whether items were not overwritten by newer ones, bool `[N]`.

    Raises:
      SamplingError: if there never was such an item.
    """
    population_lib.check_items(items, self._next)
    return items >= self.first

  def priority(self, items: np.ndarray) -> np.ndarray:
    """Returns the priorities of items, which are 1."""
    return np.ones(items.shape)

  def starts(self, items: np.ndarray) -> np.ndarray:
    """Returns the first row of each item, int64 `[N]`."""
    return self._starts[items % self.capacity] % self.capacity

  def length(self, items: np.ndarray) -> int:
    """Returns how many frames an item has."""
    del items
    return self._length

  def load(self, blocks: Iterable[frame_blocks.FrameBlock]) -> None:
    """Appends recorded frames, whose items have priorities of their own."""
    with self.lock:
      for arranged in self._arranger.arrange(blocks):
        self._add(arranged, arranged.priorities[0])

  def append_leaves(self, *leaves: np.ndarray) -> None:
    """Appends frames, given their leaves; see `append`."""
    self.append(tf.nest.pack_sequence_as(self.store.spec, leaves))

  def append(self, frames: Any) -> None:
    """Appends consecutive frames, a `Trajectory` of arrays `[B, ...]`.

    Their items have the highest priority that any item has had so far. An
    episode ends with a frame whose step type is LAST.
    """
    ends = np.flatnonzero(frames.step_type == ts.StepType.LAST) + 1
    begin = 0
    with self.lock:
      for end in [*ends.tolist(), len(frames.step_type)]:
        if end > begin:
          block = frame_blocks.FrameBlock(
              frame_blocks.slice_frames(frames, begin, end),
              [None],
              np.array([0, end - begin]),
              0,
          )
          for arranged in self._arranger.arrange([block]):
            self._add(arranged, None)
        begin = end

  def clear(self) -> None:
    """Removes all frames."""
    with self.lock:
      self._remove_before(self._next)
      self._begin = self._end
      self._arranger = arranging.Arranger([self._items], position=self._end)

  def serialize(self) -> bytes:
    """Returns the content, for a checkpoint."""
    file = io.BytesIO()
    with self.lock:
      rows = self.all_rows()
      items = np.arange(self.first, self._next)
      np.savez(
          file,
          *[group[rows] for group in self._rows],
          place=[self.capacity, self.first, self._end],
          starts=self._starts[items % self.capacity],
      )
    return file.getvalue()

  def deserialize(self, value: bytes) -> None:
    """Restores what `serialize` returned.

    An unfinished episode stays unfinished: the next frame begins a new one.
    """
    with np.load(io.BytesIO(value)) as saved:
      capacity, first, end = saved['place'].tolist()
      if capacity != self.capacity:
        raise ValueError(
            'The checkpoint is of a replay buffer with a capacity of'
            f' {capacity} frames, but this one has {self.capacity}.'
        )
      groups = [saved[f'arr_{i}'] for i in range(len(self._rows))]
      starts = saved['starts']
    with self.lock:
      self._begin = self._end = end - len(groups[0])
      self._write(groups)
      items = np.arange(first, first + len(starts))
      self._starts[items % self.capacity] = starts
      self.first, self._next = first, first + len(starts)
      self._arranger = arranging.Arranger([self._items], position=self._end)

  def _add(self, arranged, priorities) -> None:
    """Stores frames and items; without priorities, at the highest so far."""
    encoded = self.store.format.encode(tf.nest.flatten(arranged.frames))
    count = min(_ROWS_AT_ONCE, self.capacity)
    for begin in range(0, len(encoded[0]), count):
      self._add_rows([rows[begin : begin + count] for rows in encoded])
    starts = arranged.items[0].starts
    # Items that would begin before the frames that are kept do not exist.
    kept = starts >= max(self._end - self.capacity, self._begin)
    starts = starts[kept]
    if not len(starts):
      return
    items = np.arange(self._next, self._next + len(starts))
    self._starts[items % self.capacity] = starts
    if self.listener is not None:
      self.listener.add(items, None if priorities is None else priorities[kept])
    self._next += len(starts)

  def _add_rows(self, groups) -> None:
    # Items are in the order of their starts, so the oldest go first.
    limit = self._end + len(groups[0]) - self.capacity
    first = self.first
    while first < self._next and self._starts[first % self.capacity] < limit:
      first += 1
    self._remove_before(first)
    self._write(groups)

  def _write(self, groups) -> None:
    rows = np.arange(self._end, self._end + len(groups[0])) % self.capacity
    first = np.flatnonzero(rows < self._length - 1)
    for group, new in zip(self._rows, groups):
      group[rows] = new
      group[rows[first] + self.capacity] = new[first]
    self._end += len(groups[0])

  def _remove_before(self, first: int) -> None:
    """Removes the items before one."""
    if self.listener is not None and first > self.first:
      self.listener.remove(np.arange(self.first, first))
    self.first = first
