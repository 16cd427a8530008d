"""Counts of a pass over a data set: conditions, and numbers in its order."""

from typing import List, NamedTuple, Optional

import numpy as np


class Example(NamedTuple):
  """The first episode of which something is true.

  Attributes:
    episode: the index of the episode in the data set.
    step: the index of the step that shows it; None if no single one does.
  """

  episode: int
  step: Optional[int]


class Tally:
  """Counts the episodes of which each of several conditions is true.

  Attributes:
    counts: int64 `[K]`: the number of episodes of which each is true.
  """

  def __init__(self, size: int):
    self.counts = np.zeros(size, np.int64)
    self._episodes = np.full(size, -1, np.int64)
    self._steps = np.full(size, -1, np.int64)

  def add(
      self, episodes: np.ndarray, found: np.ndarray, steps: np.ndarray
  ) -> None:
    """Adds episodes, in any order.

    Args:
      episodes: their indices in the data set, `[B]`.
      found: what is true of each, bool `[B, K]`.
      steps: the step that shows it, `[B, K]`; -1 for none.
    """
    self.counts += found.sum(0)
    for column in np.flatnonzero(found.any(0)):
      rows = np.flatnonzero(found[:, column])
      row = rows[np.argmin(episodes[rows])]
      first = self._episodes[column]
      if first < 0 or episodes[row] < first:
        self._episodes[column] = episodes[row]
        self._steps[column] = steps[row, column]

  def example(self, index: int) -> Optional[Example]:
    """Returns the first episode of which a condition is true, if any."""
    if self._episodes[index] < 0:
      return None
    step = int(self._steps[index])
    return Example(int(self._episodes[index]), step if step >= 0 else None)


class OrderedNumbers:
  """The mean and the range of a number along the order of a data set.

  Consecutive episodes share a bin. When an episode lies beyond the last bin,
  the bins are merged two by two, so that their number stays bounded.
  """

  def __init__(self, max_bins: int = 256):
    self._width = 1
    self._bins = np.zeros([max_bins, 2])  # the count and the sum
    self._lows = np.full(max_bins, np.inf)
    self._highs = np.full(max_bins, -np.inf)

  def add(self, positions: np.ndarray, numbers: np.ndarray) -> None:
    """Adds the finite ones of `numbers` `[B]`, at `positions` `[B]`."""
    is_finite = np.isfinite(numbers)
    positions, numbers = positions[is_finite], numbers[is_finite]
    if not positions.size:
      return
    while positions.max() >= self._width * len(self._lows):
      self._merge()
    bins = positions // self._width
    np.add.at(self._bins[:, 0], bins, 1)
    np.add.at(self._bins[:, 1], bins, numbers)
    np.minimum.at(self._lows, bins, numbers)
    np.maximum.at(self._highs, bins, numbers)

  def bins(self) -> List[dict]:
    """Returns the bins that hold numbers.

    Each is a dict: `first`, the first position of the bin; `count`, how many
    numbers it holds; and their `mean`, `min` and `max`.
    """
    return [
        {
            'first': int(index * self._width),
            'count': int(self._bins[index, 0]),
            'mean': float(self._bins[index, 1] / self._bins[index, 0]),
            'min': float(self._lows[index]),
            'max': float(self._highs[index]),
        }
        for index in np.flatnonzero(self._bins[:, 0])
    ]

  def _merge(self) -> None:
    """Merges the bins two by two."""
    half = len(self._lows) // 2
    self._bins[:half] = self._bins.reshape(half, 2, 2).sum(1)
    self._lows[:half] = self._lows.reshape(half, 2).min(1)
    self._highs[:half] = self._highs.reshape(half, 2).max(1)
    self._bins[half:] = 0
    self._lows[half:] = np.inf
    self._highs[half:] = -np.inf
    self._width *= 2
