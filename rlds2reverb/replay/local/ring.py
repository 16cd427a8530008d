"""A ring of frames, in which new frames overwrite the oldest ones.

Rows and items are numbered from the start of the data, and lie in rings: of `C`
places, row `r` has place `r % C`.

    capacity of 4 frames, after frames 0 to 5    | 4  5  2  3 |
    items of 2 that can be drawn                   2-3  3-4  4-5

Each of `E` parallel environments has its own segment, as in
`TFUniformReplayBuffer`. Row `r` of all environments was appended in the same
call, so items in the order of their starts are in the order of their age in
all environments together.
"""

from collections.abc import Sequence
import io
import threading
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import fingerprints
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.store import memory
from rlds2reverb.store import rows as store_rows
from rlds2reverb.store import sum_tree

# The maximum number of frames per write.
_MAX_ROWS_PER_WRITE = 4096

_REFUSED = {
    end: 'Items of appended frames are not padded: use "drop" or "cross".'
    for end in windows_lib.EndOfEpisode
    if windows_lib.Windows(1, end=end).pads_episodes
}


class FrameRing(tf.train.experimental.PythonState):
  """The last frames of a stream, and their items, whose numbers grow.

  It has the interfaces of `ItemIndex` and of `FrameStore`. Its content becomes
  part of a `tf.train.Checkpoint`. Several threads may append and sample: a
  reader of frames holds the lock from the draw on.

  Attributes:
    spec: the spec of a frame, a `Trajectory`.
    rows: the frames.
    windows: the windows of frames that are items.
    length: the number of frames of an item.
    batch_size: the number of environments `E`.
    capacity: the largest number of frames of one environment.
    first: the number of the first item that can be drawn.
    num_slots: the maximum number of items.
    fingerprint: a value that differs for other settings.
    step_type_column: the number of the column of step types.
    listener: a `Prioritized` sampler, to which items are added and from which
      items are removed; or None.
    lock: protects all attributes.
  """

  changes = True
  priorities = None

  def __init__(
      self,
      spec: Any,
      windows: windows_lib.Windows,
      capacity: int,
      batch_size: int = 1,
  ):
    """Creates an empty ring.

    Args:
      spec: the spec of one frame, a `Trajectory`.
      windows: the windows of frames that are items.
      capacity: the largest number of frames of each environment whose items can
        be drawn.
      batch_size: the number of environments `E`.

    Raises:
      ValueError: if frames have strings, or items are complete episodes,
        padded, or longer than `capacity`.
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
          f' capacity of each of {checks.counted(batch_size, "environment")},'
          f' but it is {windows.length}.'
      )
    self.spec, self.windows, self.length = spec, windows, windows.length
    self.capacity, self.batch_size = capacity, batch_size
    self.num_slots = capacity * batch_size
    self.listener: sum_tree.Prioritized | None = None
    self.lock = threading.RLock()
    segments = [batch_size] if batch_size > 1 else []
    self.fingerprint = fingerprints.fingerprint(
        repr(spec), capacity, windows, *segments
    )
    # The first rows of each segment are repeated at its end, so that every item
    # is contiguous.
    self._segment = capacity + windows.length - 1
    self._groups = [
        memory.zeros([batch_size * self._segment, size], np.uint8)
        for size in layout.row_bytes
    ]
    self.rows = store_rows.RowStore(layout, self._groups)
    self.step_type_column = loading.step_type_column(layout)
    # The row at which each item starts, and its environment.
    self._starts = np.zeros(self.num_slots, np.int64)
    self._environments = np.zeros(self.num_slots, np.int64)
    # The next row, of all environments; the first row of each one, and the
    # first row of its last episode.
    self._end = 0
    self._begin = np.zeros(batch_size, np.int64)
    self._origin = np.zeros(batch_size, np.int64)
    # The first item that can be drawn, and the next one.
    self.first = self._next = 0

  @property
  def num_items(self) -> int:
    """The number of items that can be drawn."""
    return self._next - self.first

  @property
  def num_frames(self) -> int:
    """The number of frames of all environments."""
    return int(self.frame_counts().sum())

  def frame_counts(self) -> np.ndarray:
    """Returns the number of frames of each environment, int64 `[E]`."""
    return np.minimum(self._end - self._begin, self.capacity)

  def all_rows(self) -> np.ndarray:
    """Returns the place of each frame, by environment, int64 `[N]`."""
    counts = self.frame_counts()
    environment, rows = windows_lib.expand_ranges(self._end - counts, counts, 1)
    return self._places(environment, rows)

  def read(
      self, rows: store_rows.RowStore, items: np.ndarray
  ) -> list[np.ndarray]:
    """Reads items; see `ItemIndex`."""
    slots = items % self.num_slots
    starts = self._places(self._environments[slots], self._starts[slots])
    return rows.gather(starts, self.length)

  def load(self, rows: store_rows.RowStore) -> None:
    """Appends recorded episodes to an empty ring.

    Each episode goes to the environment with the fewest frames so far. Each
    segment ends with the same row, and begins where its frames do.
    """
    numbers = np.arange(rows.num_rows)
    [step_type] = rows.take(numbers, [self.step_type_column])
    is_last = step_type == ts.StepType.LAST
    segments: list[list[np.ndarray]] = [[] for _ in range(self.batch_size)]
    counts = np.zeros(self.batch_size, np.int64)
    for episode in np.split(numbers, np.flatnonzero(is_last) + 1):
      environment = counts.argmin()
      segments[environment].append(episode)
      counts[environment] += len(episode)
    frames = [np.concatenate([numbers[:0], *parts]) for parts in segments]
    self._begin = counts.max() - counts
    self._origin = self._begin.copy()
    # The environments that have frames change where a segment begins.
    edges = np.unique([*self._begin, counts.max()]).tolist()
    for begin, end in zip(edges, edges[1:]):
      environments = np.flatnonzero(self._begin <= begin)
      size = max(_MAX_ROWS_PER_WRITE // len(environments), 1)
      for row in range(begin, end, size):
        places = np.arange(row, min(row + size, end))
        batch = [frames[e][places - self._begin[e]] for e in environments]
        self._append(environments, rows.take(np.stack(batch, 1).ravel()))

  def append(self, *leaves: np.ndarray) -> None:
    """Appends consecutive frames of all environments.

    Their items have the highest priority that any item has had so far. An
    episode ends with a frame whose step type is LAST, and before one whose step
    type is FIRST.

    Args:
      *leaves: the leaves of `T` frames of each environment, arrays
        `[T * E, ...]`, in which the first frames of all come first.
    """
    self._append(np.arange(self.batch_size), leaves)

  def _append(
      self, environments: np.ndarray, leaves: Sequence[np.ndarray]
  ) -> None:
    """Appends consecutive frames of some environments; see `append`."""
    width = len(environments)
    # [E, T]
    step_type = leaves[self.step_type_column].reshape([-1, width]).T
    groups = [
        group.reshape([-1, width, group.shape[1]])
        for group in self.rows.layout.encode(leaves)
    ]
    count = step_type.shape[1]
    is_first = step_type == ts.StepType.FIRST
    is_last = step_type == ts.StepType.LAST
    if self.windows.crosses_episodes:
      is_first, is_last = np.zeros([2, width, count], bool)
    with self.lock:
      # The parts of episodes, by environment and in their order.
      begins = is_first.copy()
      begins[:, 1:] |= is_last[:, :-1]
      begins[:, 0] = True
      part, begin = np.nonzero(begins)
      end = np.append(begin[1:], count)
      end[end == 0] = count  # The next part is of the next environment.
      is_open = (begin == 0) & ~is_first[part, begin]
      origins = np.where(
          is_open, self._origin[environments[part]], self._end + begin
      )
      windows = self.windows.find(
          self._end + end - origins, self._end + begin - origins
      )
      starts = origins[windows.episode] + windows.start
      # The oldest items come first, whose environments come in their order.
      order = np.argsort(starts, kind='stable')
      starts, owners = starts[order], environments[part][windows.episode[order]]
      # The last part of each environment wins.
      self._origin[environments[part]] = origins
      self._origin[environments[is_last[:, -1]]] = self._end + count
      self._remove_before(self._end + count - self.capacity)
      num_dropped = max(count - self.capacity, 0)
      self._end += num_dropped
      self._write(environments, [rows[num_dropped:] for rows in groups])
      # Items that would begin before the frames that are kept do not exist.
      is_kept = starts >= self._end - self.capacity
      items = self._next + np.arange(np.count_nonzero(is_kept))
      self._starts[items % self.num_slots] = starts[is_kept]
      self._environments[items % self.num_slots] = owners[is_kept]
      if self.listener is not None and len(items):
        self.listener.add(self._next, self._next + len(items))
      self._next += len(items)

  def clear(self) -> None:
    """Removes all frames."""
    with self.lock:
      self._remove_before(self._end)
      self._begin[:] = self._origin[:] = self._end

  def serialize(self) -> bytes:
    """Returns the content, for a checkpoint."""
    file = io.BytesIO()
    with self.lock:
      rows = self.all_rows()
      slots = np.arange(self.first, self._next) % self.num_slots
      np.savez(
          file,
          *[group[rows] for group in self._groups],
          place=[self.capacity, self.first, self._end],
          counts=self.frame_counts(),
          spans=np.stack([self._starts[slots], self._environments[slots]]),
      )
    return file.getvalue()

  def deserialize(self, value: bytes) -> None:
    """Restores the result of `serialize`.

    An unfinished episode stays unfinished: the next frame begins a new one.

    Raises:
      ValueError: if the capacity or the number of environments differs.
    """
    with np.load(io.BytesIO(value)) as saved:
      capacity, first, end = saved['place'].tolist()
      groups = [saved[f'arr_{i}'] for i in range(len(self._groups))]
      counts, [starts, owners] = saved['counts'], saved['spans']
    if len(counts) != self.batch_size:
      raise ValueError(
          f'The checkpoint has batch_size={len(counts)}, but this replay buffer'
          f' has {self.batch_size} environments. Make it with'
          f' batch_size={len(counts)}.'
      )
    if capacity != self.capacity:
      raise ValueError(
          'The checkpoint is of a replay buffer with a capacity of'
          f' {capacity} frames of each environment, but this one has'
          f' {self.capacity}.'
      )
    with self.lock:
      self._begin = end - counts
      self._end = end
      places = self._places(*windows_lib.expand_ranges(self._begin, counts, 1))
      self._fill(places, groups)
      self._origin[:] = end
      self.first = first
      self._next = first + len(starts)
      slots = np.arange(first, self._next) % self.num_slots
      self._starts[slots], self._environments[slots] = starts, owners

  def _places(self, environments: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns where rows of environments are in `rows`."""
    return environments * self._segment + rows % self.capacity

  def _write(self, environments, groups) -> None:
    """Writes frames `[T, E, row_bytes]` after the last ones."""
    count = len(groups[0])
    rows = np.arange(self._end, self._end + count)
    places = self._places(environments, rows[:, np.newaxis]).ravel()
    self._fill(
        places, [group.reshape([-1, group.shape[2]]) for group in groups]
    )
    self._end += count

  def _fill(self, places, groups) -> None:
    """Writes rows to places, and to their repetitions."""
    first = np.flatnonzero(places % self._segment < self.length - 1)
    for group, new in zip(self._groups, groups):
      group[places] = new
      group[places[first] + self.capacity] = new[first]

  def _remove_before(self, row: int) -> None:
    """Removes the items that start before a row."""
    # Items are in the order of their starts, so the oldest go first.
    first = self.first
    while first < self._next and self._starts[first % self.num_slots] < row:
      first += 1
    if self.listener is not None and first > self.first:
      self.listener.remove(self.first, first)
    self.first = first
