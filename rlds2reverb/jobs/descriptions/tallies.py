"""Counts the episodes for which conditions hold."""

import numpy as np


class Tally:
  """Counts the episodes for which each of several conditions holds.

  Attributes, int64 `[K]` each:
    counts: the number of episodes for which each condition holds.
    episodes: the index of the first of them; -1 if there is none.
    steps: the step there that shows it; -1 if no single one does.
  """

  def __init__(self, size: int):
    self.counts = np.zeros(size, np.int64)
    self.episodes = np.full(size, -1, np.int64)
    self.steps = np.full(size, -1, np.int64)

  def add(
      self, episodes: np.ndarray, found: np.ndarray, steps: np.ndarray
  ) -> None:
    """Adds episodes, in any order.

    Args:
      episodes: their indices in the data set, `[B]`.
      found: which conditions hold for each, bool `[B, K]`.
      steps: the step that shows it, `[B, K]`; -1 for none.
    """
    self.counts += found.sum(0)
    for column in np.flatnonzero(found.any(0)):
      rows = np.flatnonzero(found[:, column])
      row = rows[np.argmin(episodes[rows])]
      first = self.episodes[column]
      if first < 0 or episodes[row] < first:
        self.episodes[column] = episodes[row]
        self.steps[column] = steps[row, column]
