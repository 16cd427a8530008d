"""A ring of frames, in which new frames overwrite the oldest ones.

Rows and items are numbered from the start of the data, and lie in rings: of `C`
places, row `r` has place `r % C`.

    capacity of 4 frames, after frames 0 to 5    | 4  5  2  3 |
    items of 2 that can be drawn                   2-3  3-4  4-5
"""

import io
import threading
from typing import Any, List, Optional, Tuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.store import prioritized
from rlds2reverb.store import rows as rows_lib

# The number of frames that are written at once.
_ROWS_AT_ONCE = 4096

_REFUSED = {
    end: 'Items of frames that are appended are whole: take "drop" or "cross".'
    for end in windows_lib.EndOfEpisode
    if windows_lib.Windows(1, end=end).pads_episodes
}


class FrameRing(tf.train.experimental.PythonState):
  """The last frames of a stream, and their items, whose numbers grow.

  It is what an `ItemIndex` and a `FrameStore` are. Its content becomes part of
  a `tf.train.Checkpoint`. Several threads may append and sample: a reader of
  frames holds the lock from the draw on.

  Attributes:
    spec: the spec of a frame, a `Trajectory`.
    rows: the frames.
    windows: which windows of frames are items.
    length: the number of frames of an item.
    first: the number of the first item that can be drawn.
    num_slots: how many items can be drawn at most.
    fingerprint: a value that differs for other settings.
    listener: a `Prioritized` sampler, which is told of added and removed items;
      or None.
    lock: protects all of it.
  """

  changes = True
  priorities = None

  def __init__(self, spec: Any, windows: windows_lib.Windows, capacity: int):
    """Creates an empty ring.

    Args:
      spec: the spec of one frame, a `Trajectory`.
      windows: which windows of frames are items.
      capacity: the largest number of frames whose items can be drawn.

    Raises:
      ValueError: if frames have strings, or items are whole episodes, padded,
        or longer than `capacity`.
    """
    layout = loading.layout_of(spec)
    if layout.has_strings:
      raise ValueError(
          'Frames that are appended must have a fixed size, but there are'
          ' strings among their fields. Decode or encode them first.'
      )
    windows_lib.check_windows(windows, _REFUSED)
    if windows.length > capacity:
      raise ValueError(
          f'The windows of items must have a length of at most {capacity}, the'
          f' capacity, but it is {windows.length}.'
      )
    self.spec, self.windows, self.length = spec, windows, windows.length
    self.capacity = self.num_slots = capacity
    self.listener: Optional[prioritized.Prioritized] = None
    self.lock = threading.RLock()
    self.fingerprint = identity_lib.fingerprint(repr(spec), capacity, windows)
    # The first rows are repeated at the end, so that every item is contiguous.
    self._groups = [
        np.zeros([capacity + windows.length - 1, size], np.uint8)
        for size in layout.row_bytes
    ]
    self.rows = rows_lib.RowStore(layout, self._groups)
    # The row at which each item starts.
    self._starts = np.zeros(capacity, np.int64)
    # The first and the next row, and the first one of the last episode.
    self._begin = self._end = self._origin = 0
    # The first item that can be drawn, and the next one.
    self.first = self._next = 0

  @property
  def num_items(self) -> int:
    """The number of items that can be drawn."""
    return self._next - self.first

  @property
  def num_frames(self) -> int:
    """The number of frames."""
    return min(self._end - self._begin, self.capacity)

  def all_rows(self) -> np.ndarray:
    """Returns the place of each frame, int64 `[N]`."""
    return np.arange(self._end - self.num_frames, self._end) % self.capacity

  def read(
      self, rows: rows_lib.RowStore, items: np.ndarray, boundary: Any
  ) -> Tuple[List[np.ndarray], None]:
    """Reads items; see `ItemIndex`."""
    del boundary  # All rows are those of the data.
    starts = self._starts[items % self.capacity] % self.capacity
    return rows.read(starts, self.length), None

  def load(self, rows: rows_lib.RowStore) -> None:
    """Appends recorded frames."""
    for begin in range(0, rows.num_rows, _ROWS_AT_ONCE):
      end = min(begin + _ROWS_AT_ONCE, rows.num_rows)
      self.append(*rows.take(np.arange(begin, end)))

  def append(self, *leaves: np.ndarray) -> None:
    """Appends consecutive frames, given their leaves, arrays `[B, ...]`.

    Their items have the highest priority that any item has had so far. An
    episode ends with a frame whose step type is LAST.
    """
    [column] = loading.boundary_of(self.rows.layout)
    step_type, groups = leaves[column], self.rows.layout.encode(leaves)
    count = len(step_type)
    splits, is_end = np.array([0, count]), np.array([False])
    if not self.windows.crosses_episodes:
      ends = np.flatnonzero(step_type == ts.StepType.LAST) + 1
      splits = np.unique([0, *ends, count])
      is_end = np.isin(splits[1:], ends)
    with self.lock:
      splits += self._end
      origins = np.array([self._origin, *splits[1:-1]])
      windows = self.windows.find(
          splits[1:] - origins, splits[:-1] - origins, is_end
      )
      starts = origins[windows.episode] + windows.start
      self._origin = int(splits[-1] if is_end[-1] else origins[-1])
      self._remove_before(self._end + count - self.capacity)
      left_out = max(count - self.capacity, 0)
      self._end += left_out
      self._write([rows[left_out:] for rows in groups])
      # Items that would begin before the frames that are kept do not exist.
      starts = starts[starts >= max(self._end - self.capacity, self._begin)]
      items = self._next + np.arange(len(starts))
      self._starts[items % self.capacity] = starts
      if self.listener is not None and len(items):
        self.listener.add(items)
      self._next += len(items)

  def clear(self) -> None:
    """Removes all frames."""
    with self.lock:
      self._remove_before(self._end)
      self._begin = self._origin = self._end

  def serialize(self) -> bytes:
    """Returns the content, for a checkpoint."""
    file = io.BytesIO()
    with self.lock:
      rows = self.all_rows()
      slots = np.arange(self.first, self._next) % self.capacity
      np.savez(
          file,
          *[group[rows] for group in self._groups],
          place=[self.capacity, self.first, self._end],
          spans=self._starts[np.newaxis, slots],
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
      groups = [saved[f'arr_{i}'] for i in range(len(self._groups))]
      starts = saved['spans'][0]
    with self.lock:
      self._begin = self._end = end - len(groups[0])
      self._write(groups)
      self._origin = end
      self.first, self._next = first, first + len(starts)
      self._starts[np.arange(first, self._next) % capacity] = starts

  def _write(self, groups) -> None:
    rows = np.arange(self._end, self._end + len(groups[0])) % self.capacity
    first = np.flatnonzero(rows < self.length - 1)
    for group, new in zip(self._groups, groups):
      group[rows] = new
      group[rows[first] + self.capacity] = new[first]
    self._end += len(groups[0])

  def _remove_before(self, row: int) -> None:
    """Removes the items that start before a row."""
    # Items are in the order of their starts, so the oldest go first.
    first = self.first
    while first < self._next and self._starts[first % self.capacity] < row:
      first += 1
    if self.listener is not None and first > self.first:
      self.listener.set(np.arange(self.first, first), 0.0)
    self.first = first
