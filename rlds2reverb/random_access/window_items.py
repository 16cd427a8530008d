"""The rows of an index that the items of `Windows` have."""

from typing import Any, Dict, Tuple

import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.random_access import chunk_items
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.store import layout as layout_lib

_MASK = 'mask'
# The step types of a frame of padding, as TF-Agents' observers pad.
_BOUNDARY = {'step_type': 2, 'next_step_type': 0}

_COUNTED_EPISODES = 1 << 16


class WindowItems:
  """The items of `Windows`; the attributes are those of `ChunkItems`."""

  def __init__(
      self,
      index: index_lib.Index,
      windows: windows_lib.Windows,
      with_mask: bool,
  ):
    """Finds the items; see `Items`."""
    windows_lib.check_windows(windows)
    self._index, self._windows = index, windows
    self.lengths = index.lengths
    if windows.crosses_episodes:
      self.lengths = np.array([self.lengths.sum()], np.int64)
    self.counts = self._count()
    self.masks: Dict[str, Tuple[int, ...]] = (
        {_MASK: (windows.length,)} if with_mask else {}
    )

  def starts(self, episode: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns the first row of items, given their numbers in their episodes."""
    start = number * self._windows.stride
    if self._windows.end == windows_lib.EndOfEpisode.OVERLAP:
      latest = self.lengths[episode] - self._windows.length
      start = np.minimum(start, np.maximum(latest, 0))
    return start

  def lead(self, column: layout_lib.Column) -> Tuple[int, ...]:
    """Returns the first dimensions of a column in an item."""
    del column
    return (self._windows.length,)

  def make(
      self,
      read: chunk_items.Read,
      episode: np.ndarray,
      first: np.ndarray,
      start: np.ndarray,
  ) -> Any:
    """Returns items, stacked; see `ChunkItems.make`."""
    rows = start[:, np.newaxis] + np.arange(self._windows.length)
    length = self.lengths[episode][:, np.newaxis]
    mask = rows < length
    rows = first[:, np.newaxis] + np.minimum(rows, length - 1)
    columns = self._index.layout.columns
    leaves = read(rows, range(len(columns)))
    if self._windows.fill != 'repeat':
      for column, leaf in zip(columns, leaves):
        leaf[~mask] = b'' if leaf.dtype == object else 0
        if self._index.is_trajectory and column.name in _BOUNDARY:
          leaf[~mask] = _BOUNDARY[column.name]
    nest = self._index.layout.nest(leaves)
    return {**nest, _MASK: mask} if self.masks else nest

  def _count(self) -> np.ndarray:
    counts = [np.zeros(0, np.int64)]
    for begin in range(0, len(self.lengths), _COUNTED_EPISODES):
      part = self.lengths[begin : begin + _COUNTED_EPISODES]
      found = self._windows.find(part).episode
      counts.append(np.bincount(found, minlength=len(part)))
    return np.concatenate(counts)
