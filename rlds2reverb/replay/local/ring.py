"""Frames that are appended, of which the oldest make room for the newest.

Rows and items are numbered from the start of the data, and lie in rings: of `C`
places, row `r` has place `r % C`.

    capacity of 4 frames, after frames 0 to 5    | 4  5  2  3 |
    items of 2 that can be drawn                   2-3  3-4  4-5
"""

import io
import mmap
from typing import Any, Iterable, Optional

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.replay import frame_blocks
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import plans
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import rows as rows_lib
from rlds2reverb.replay.local import store as store_lib

# A batch that was drawn is read while further frames are appended. So many may
# be appended until they overwrite it.
_SPARE_ROWS = 4096


class FrameRing(tf.train.experimental.PythonState):
  """The last frames of a stream, and their items.

  It is a population, as `Population` is, of items whose numbers grow. Its
  content becomes part of a `tf.train.Checkpoint`.

  Attributes:
    store: the frames. Its runs are empty.
    num_items: how many items can be drawn.
    num_frames: how many frames there are, with padding.
    listener: is told of items that come and go, if it is not None; see
      `Prioritized`.
  """

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
    format_ = rows_lib.RowFormat(spec)
    if format_.has_strings:
      raise ValueError(
          'Frames that are appended must have a fixed size, but there are'
          ' strings among their fields. Decode or encode them first.'
      )
    length = items.sequence_length
    if length is None or length > capacity:
      raise ValueError(
          f'The items must have a sequence_length of at most {capacity}, the'
          f' capacity, but it is {length}.'
      )
    self.capacity = capacity
    self.listener: Optional[Any] = None
    self._items = items
    self._planner = plans.Planner([items])
    self._num_rows = capacity + _SPARE_ROWS + length
    self._memory = [
        _Memory([self._num_rows, size], np.uint8) for size in format_.row_bytes
    ]
    # The row at which each item starts.
    self._starts = _Memory([self._num_rows], np.int64)
    # The first and the next row.
    self._begin = self._end = 0
    # The first item that can be drawn, and the next one; here and in a graph.
    self._first = self._next = 0
    with tf.device('cpu'):
      self._limits = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
    none = np.zeros(0, np.int64)
    self.store = store_lib.FrameStore(
        format_,
        store_lib.Form(length, items.stride_length, items.crosses_episodes),
        [memory.tensor for memory in self._memory],
        tf.zeros([0], tf.uint8),
        store_lib.Runs(none, none, none, none.astype(np.float64)),
        None,
    )

  @property
  def num_slots(self) -> int:
    """How many items can be drawn at most."""
    return self._num_rows

  @property
  def num_items(self) -> int:
    return self._next - self._first

  @property
  def num_frames(self) -> int:
    return min(self._end - self._begin, self.capacity)

  def all_rows(self) -> np.ndarray:
    """Returns the row of each frame, with padding, int64 `[N]`."""
    return np.arange(self._end - self.num_frames, self._end) % self._num_rows

  def first(self) -> tf.Tensor:
    """Returns the number of the first item that can be drawn, int64 `[]`."""
    return self._limits.read_value()[0]

  def size(self) -> tf.Tensor:
    """Returns how many items can be drawn, int64 `[]`.

    Raises:
      InvalidArgumentError: if there are none.
    """
    limits = self._limits.read_value()
    size = limits[1] - limits[0]
    check = tf.debugging.Assert(
        size > 0,
        [
            'There is nothing to sample yet. Append frames before a batch is'
            ' taken.'
        ],
    )
    with tf.control_dependencies([check]):
      return tf.identity(size)

  def slots(self, items: tf.Tensor) -> tf.Tensor:
    """Returns the slots of items; see `Population`."""
    return items % self._num_rows

  def items_in(self, slots: tf.Tensor) -> tf.Tensor:
    """Returns the items in slots; see `Population`."""
    first = self.first()
    return first + (slots - first) % self._num_rows

  def known(self, items: tf.Tensor) -> tf.Tensor:
    """Returns whether items have not made room for newer ones, bool `[B]`.

    Raises:
      InvalidArgumentError: if there never was such an item.
    """
    limits = self._limits.read_value()
    items = population_lib.check_items(items, limits[1])
    return (items >= limits[0]) & (items < limits[1])

  def priority(self, items: tf.Tensor) -> tf.Tensor:
    """Returns the priorities of items, which are 1."""
    return tf.ones_like(items, tf.float64)

  def rows(self, items: tf.Tensor) -> tf.Tensor:
    """Returns where the rows of items are; see `Population.rows`."""
    starts = tf.gather(self._starts.tensor, items % self._num_rows)
    length = tf.constant(self._items.sequence_length, tf.int64)
    return (starts[:, tf.newaxis] + tf.range(length)) % self._num_rows

  def load(self, blocks: Iterable[frame_blocks.Block]) -> None:
    """Appends recorded frames, whose items have priorities of their own."""
    for plan in self._planner.plans(blocks):
      self._add(plan, plan.priorities[0])

  def append(self, frames: Any) -> None:
    """Appends consecutive frames, a `Trajectory` of arrays `[B, ...]`.

    Their items have the highest priority that any item has had so far. An
    episode ends with a frame whose step type is LAST.
    """
    ends = np.flatnonzero(frames.step_type == ts.StepType.LAST) + 1
    begin = 0
    for end in [*ends.tolist(), len(frames.step_type)]:
      if end > begin:
        block = frame_blocks.Block(
            frame_blocks.slice_frames(frames, begin, end),
            [None],
            np.array([0, end - begin]),
            0,
        )
        for plan in self._planner.plans([block]):
          self._add(plan, None)
      begin = end

  def clear(self) -> None:
    """Removes all frames."""
    self._set_limits(self._next, self._next)
    self._begin = self._end
    self._planner = plans.Planner([self._items], position=self._end)

  def serialize(self) -> bytes:
    """Returns what there is, for a checkpoint."""
    begin = max(self._end - self._num_rows, self._begin)
    rows = np.arange(begin, self._end) % self._num_rows
    items = np.arange(self._first, self._next)
    file = io.BytesIO()
    np.savez(
        file,
        *[memory.array[rows] for memory in self._memory],
        place=[self.capacity, self._first, begin],
        starts=self._starts.array[items % self._num_rows],
    )
    return file.getvalue()

  def deserialize(self, value: bytes) -> None:
    """Restores what `serialize` returned.

    An episode that was not at its end is left at that: what is appended next
    begins another one.
    """
    with np.load(io.BytesIO(value)) as saved:
      capacity, first, begin = saved['place'].tolist()
      if capacity != self.capacity:
        raise ValueError(
            'The checkpoint is of a replay buffer with a capacity of'
            f' {capacity} frames, but this one has {self.capacity}.'
        )
      groups = [saved[f'arr_{i}'] for i in range(len(self._memory))]
      starts = saved['starts']
    for memory, rows in zip(self._memory, groups):
      self._end = begin + len(rows)
      memory.array[np.arange(begin, self._end) % self._num_rows] = rows
    numbers = np.arange(first, first + len(starts))
    self._starts.array[numbers % self._num_rows] = starts
    self._begin = begin
    self._first, self._next = first, first + len(starts)
    self._limits.assign([self._first, self._next])
    self._planner = plans.Planner([self._items], position=self._end)

  def _add(self, plan, priorities) -> None:
    """Stores what a plan makes; without priorities, at the highest so far."""
    encoded = self.store.format.encode(plan.frames, lambda strings: None)
    for begin in range(0, len(encoded[0]), _SPARE_ROWS // 2):
      self._add_rows(
          [rows[begin : begin + _SPARE_ROWS // 2] for rows in encoded]
      )
    starts = plan.items[0].starts
    # Items that begin before the frames that are kept never were.
    kept = starts >= max(self._end - self.capacity, self._begin)
    starts = starts[kept]
    if not len(starts):
      return
    numbers = np.arange(self._next, self._next + len(starts))
    self._starts.array[numbers % self._num_rows] = starts
    if self.listener is not None:
      self.listener.add(
          numbers, None if priorities is None else priorities[kept]
      )
    self._set_limits(self._first, self._next + len(starts))

  def _add_rows(self, groups) -> None:
    end = self._end + len(groups[0])
    # Items are in the order of their starts, so the oldest go first.
    first, starts = self._first, self._starts.array
    while (
        first < self._next
        and starts[first % self._num_rows] < end - self.capacity
    ):
      first += 1
    self._set_limits(first, self._next)
    rows = np.arange(self._end, end) % self._num_rows
    for memory, new in zip(self._memory, groups):
      memory.array[rows] = new
    self._end = end

  def _set_limits(self, first: int, next_: int) -> None:
    """Sets which items can be drawn, `[first, next_)`."""
    if self.listener is not None and first > self._first:
      self.listener.remove(np.arange(self._first, first))
    if (first, next_) != (self._first, self._next):
      self._first, self._next = first, next_
      self._limits.assign([first, next_])


class _Memory:
  """Memory that numpy writes and TensorFlow reads.

  Attributes:
    array: the memory, as an array that can be written.
    tensor: the same memory, as a tensor.
  """

  def __init__(self, shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    self.array = np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)
    self.tensor = store_lib.as_tensor(self.array)
