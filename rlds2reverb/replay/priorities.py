"""The priorities of items: a number, or a function of their frames."""

from typing import Any, List, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import pieces as pieces_lib


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

  def keep(self, start: int, frames: Any, needed: int) -> None:
    """Keeps frames, and drops frames that no later item needs.

    Args:
      start: the position of the first frame, which follows those kept before.
      frames: consecutive frames, a `Trajectory` of arrays `[B, ...]`.
      needed: the first position that later items need.
    """
    if self._function:
      self._kept = [
          (start, frames)
          for start, frames in [*self._kept, (start, frames)]
          if start + len(frames.step_type) > needed
      ]

  def of_items(
      self, items: pieces_lib.FoundItems, start: int, frames: Any
  ) -> np.ndarray:
    """Returns the priorities of items, float64 `[N]`.

    Args:
      items: where the items lie.
      start: the position of the first of `frames`.
      frames: the frames that follow those that are kept.

    Raises:
      ValueError: if the function returns a priority that is not a number from
        0 up.
    """
    if self._function is None:
      return np.full(len(items.starts), self._table.priority)
    starts, kept = zip(*self._kept, (start, frames))
    frames = tf.nest.map_structure(
        lambda *leaves: np.concatenate(leaves), *kept
    )
    priorities = np.zeros(len(items.starts))
    lengths = items.ends - items.starts
    for length in np.unique(lengths).tolist():
      chosen = np.flatnonzero(lengths == length)
      begins = items.starts[chosen] - starts[0]
      rows = windows_lib.window_index(begins, length)
      priorities[chosen] = self._function(_take(frames, rows))
    wrong = np.flatnonzero(~(priorities >= 0))
    if len(wrong):
      item = wrong[0]
      frame = items.starts[item] - items.origins[item]
      raise ValueError(
          f'A priority must be a number from 0 up, but that of an item of table'
          f' {self._table.table_name!r} is {priorities[item]}: of the one that'
          f' starts at frame {frame} of its episode.'
      )
    return priorities


def _take(frames, rows):
  return tf.nest.map_structure(lambda leaf: leaf[rows], frames)


def _batched(priority_fn):
  """Returns a graph function that gives the priorities of items, `[N]`."""

  @tf.function(reduce_retracing=True)
  def priorities(items):
    # tf.squeeze in a priority function would remove a batch dimension of 1, so
    # there are always two items or more.
    twice = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf, leaf[:1]], 0), items
    )
    # A priority function may return a variable.
    return tf.vectorized_map(
        lambda item: tf.convert_to_tensor(priority_fn(item)), twice
    )[:-1]

  return priorities
