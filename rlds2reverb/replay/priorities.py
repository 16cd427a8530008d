"""The priorities of items: a number, or a function of their frames."""

from typing import Any, List, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.replay import items as items_lib


class Priorities:
  """Gives the priorities of the items of a table.

  If the priority is a function of the frames of an item, the frames are kept as
  long as an item may still need them.
  """

  def __init__(self, table: items_lib.TableItems):
    self._table = table
    self._function = (
        _batched(table.priority) if callable(table.priority) else None
    )
    # The position of the first frame of each piece, and its frames.
    self._kept: List[Tuple[int, Any]] = []

  def append(self, start: int, frames: Any) -> None:
    """Takes note of frames.

    Args:
      start: the position of the first frame.
      frames: consecutive frames, a `Trajectory` of arrays `[B, ...]`.
    """
    if self._function:
      self._kept.append((start, frames))

  def forget(self, needed: int) -> None:
    """Forgets the frames before the position `needed`, piece by piece."""
    self._kept = [
        (start, frames)
        for start, frames in self._kept
        if start + len(frames.step_type) > needed
    ]

  def of_items(
      self, starts: np.ndarray, length: int, origin: int
  ) -> np.ndarray:
    """Returns the priorities of items, float64 `[N]`.

    Args:
      starts: the position of the first frame of each item, `[N]`.
      length: the number of frames of every item.
      origin: the position that frames are counted from in the message of an
        error.

    Raises:
      ValueError: if the function returns a priority that is not a number from
        0 up.
    """
    if self._function is None:
      return np.full(len(starts), self._table.priority)
    kept_starts, frames = zip(*self._kept)
    index = (starts - kept_starts[0])[:, None] + np.arange(length)  # [N, L]
    windows = tf.nest.map_structure(
        lambda *leaves: np.concatenate(leaves)[index], *frames
    )
    priorities = self._function(windows).numpy().astype(np.float64)
    wrong = np.flatnonzero(~(priorities >= 0))
    if len(wrong):
      raise ValueError(
          f'A priority must be a number from 0 up, but that of an item of table'
          f' {self._table.table_name!r} is {priorities[wrong[0]]}: of the one'
          f' that starts at frame {starts[wrong[0]] - origin} of its episode.'
      )
    return priorities


def _batched(priority_fn):
  """Returns a graph function that gives the priorities of items, `[N]`."""

  @tf.function(reduce_retracing=True)
  def priorities(items):
    # tf.squeeze in a priority function would remove a batch dimension of 1, so
    # there are always two items or more.
    twice = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf, leaf[:1]], 0), items
    )
    return tf.vectorized_map(priority_fn, twice)[:-1]

  return priorities
