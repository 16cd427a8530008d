"""The items that can be drawn, and the row at which each of them starts."""

import threading
from typing import Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import store as store_lib

# Beyond this number of steps a binary search is as fast.
_MAX_STEPS = 4


class SamplingError(tf.errors.InvalidArgumentError, ValueError):
  """An error while items are drawn, eagerly and in a graph.

  TensorFlow makes an `InvalidArgumentError` of a `ValueError` of a NumPy
  function, and loses its own errors.
  """

  def __init__(self, message: str):
    super().__init__(None, None, message)


class Population:
  """The items of a store.

  Items are numbered in the order of the data. An item is found by arithmetic on
  the run that it belongs to, so there is no list of items:

      runs         | 0  1  2  3  4 | 5  6  7 |
      items of 2   | 0  1  2  3    | 4  5    |
      first_item     0               4        6

  Attributes:
    num_frames: how many frames are stored, without padding.
    num_items: how many items there are.
    first: the number of the first item.
    first_item: the number of the first item of each run and, at the end, the
      number of items, int64 `[R + 1]`.
    runs: the runs, all of which have items.
    priorities: the priority of each item, float64 `[num_items]`; None if all
      are 1.
    crosses_episodes: whether all items are one run.
    num_slots: how many slots there are; a slot keeps the values of one item.
    lock: protects values of items that change.
    changes: whether items are added and removed.
  """

  first = 0
  changes = False

  def __init__(self, store: store_lib.FrameStore):
    """Creates the population of a store."""
    self.num_frames = store.num_frames
    self._all_runs = store.runs
    counts = store.runs.num_items
    chosen = counts > 0
    self.runs = store_lib.Runs(*[values[chosen] for values in store.runs])
    self.first_item = np.concatenate([[0], np.cumsum(self.runs.num_items)])
    self.num_items = self.num_slots = int(self.first_item[-1])
    self.crosses_episodes = store.windows.crosses_episodes
    self.priorities = store.priorities
    if self.priorities is not None:
      self.priorities = self.priorities[np.repeat(chosen, counts)]
    self.lock = threading.RLock()
    self._windows = store.windows
    # The row of an item is this number + item * stride.
    self._offsets = (
        self.runs.first_row - self.first_item[:-1] * store.windows.stride_length
    )
    if self._windows.overlaps:
      length = self._windows.sequence_length
      left = np.maximum(self.runs.num_rows - length, 0)
      self._latest = self.runs.first_row + left
    # For each block of items, the run of its first item. The run of any other
    # item of the block is a few steps further. A block is about as long as a
    # run.
    self._shift = (self.num_items // max(len(self._offsets), 1)).bit_length()
    begins = np.arange(0, self.num_items, 1 << self._shift)
    ends = np.append(begins[1:], self.num_items) - 1
    self._run_of_block = self.first_item[1:].searchsorted(begins, 'right')
    last = self.first_item[1:].searchsorted(ends, 'right')
    self._steps = int((last - self._run_of_block).max(initial=0))

  def all_rows(self) -> np.ndarray:
    """Returns the row of each frame, in the order of the data, int64 `[N]`."""
    runs = self._all_runs
    begins = np.cumsum(runs.num_rows) - runs.num_rows
    rows = np.repeat(runs.first_row - begins, runs.num_rows)
    return rows + np.arange(len(rows))

  def check_not_empty(self) -> None:
    """Does nothing: recorded frames always have items."""

  def slots(self, items: np.ndarray) -> np.ndarray:
    """Returns the slot of each item, int64 `[N]`."""
    return items

  def items_in(self, slots: np.ndarray) -> np.ndarray:
    """Returns the item in each slot, int64 `[N]`."""
    return slots

  def alive(self, items: np.ndarray) -> np.ndarray:
    """Returns whether items can still be drawn, bool `[N]`.

    Raises:
      SamplingError: if there never was such an item.
    """
    check_items(items, self.num_items)
    return np.ones(len(items), bool)

  def priority(self, items: np.ndarray) -> np.ndarray:
    """Returns the priorities of items, float64, for int64 `[...]`."""
    if self.priorities is None:
      return np.ones(items.shape)
    return self.priorities[items]

  def starts(self, items: np.ndarray) -> np.ndarray:
    """Returns the first row of each item, int64 `[N]`."""
    run = 0 if len(self._offsets) == 1 else self._runs_of(items)
    starts = items * self._windows.stride_length + self._offsets[run]
    if self._windows.overlaps:
      starts = np.minimum(starts, self._latest[run])
    return starts

  def _runs_of(self, items: np.ndarray) -> np.ndarray:
    """Returns the run of each item."""
    ends = self.first_item[1:]
    if self._steps > _MAX_STEPS:
      return ends.searchsorted(items, 'right')
    runs = self._run_of_block[items >> self._shift]
    for _ in range(self._steps):
      runs += items >= ends[runs]
    return runs

  def length(self, items: np.ndarray) -> int:
    """Returns the number of frames of items, or of one item if they differ."""
    if self._windows.sequence_length is not None:
      return self._windows.sequence_length
    [item] = items
    run = self.first_item[1:].searchsorted(item, 'right')
    return int(self.runs.num_rows[run])


def check_items(items: np.ndarray, num_items: int) -> None:
  """Raises a SamplingError if there never was an item of one of the numbers."""
  if len(items) and not (items.min() >= 0 and items.max() < num_items):
    raise SamplingError(
        'There is no item of this key. Keys are those of the SampleInfo that'
        ' came with a batch of this replay buffer. Found:'
        f' {items[(items < 0) | (items >= num_items)][:16].tolist()} of'
        f' {num_items} items.'
    )


def check_has_items(
    num_frames: int,
    num_items: int,
    sequence_length: Optional[int],
    longest: Optional[int] = None,
) -> None:
  """Raises a ValueError if there is nothing to sample.

  Args:
    num_frames: how many frames there are.
    num_items: how many items.
    sequence_length: how many frames an item has.
    longest: the number of frames of the longest episode, if that is known.
  """
  if not num_frames:
    raise ValueError(
        'There are no frames in the data set, so there is nothing to sample. Is'
        ' it empty, or were all its episodes left out?'
    )
  if not num_items:
    raise ValueError(
        f'No item fits: every episode has fewer than {sequence_length} frames'
        + (f'; the longest has {longest}' if longest else '')
        + '. Choose shorter windows, or an end of "pad".'
    )
