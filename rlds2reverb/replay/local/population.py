"""The items that can be drawn, and the rows that each of them has."""

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import store as store_lib


class Population:
  """The items of a store, or of its best episodes.

  Items are numbered in the order of the data. An item is found by arithmetic on
  the run that it belongs to, so there is no list of items:

      runs         | 0  1  2  3  4 | 5  6  7 |
      items of 2   | 0  1  2  3    | 4  5    |
      first_item     0               4        6

  Attributes:
    num_frames: how many frames are stored, without padding.
    num_items: how many items there are.
    first_item: the number of the first item of each run and, at the end, the
      number of items, int64 `[R + 1]`.
    runs: the runs, all of which have items.
    priorities: the priority of each item, float64 `[num_items]`; None if all
      are 1.
    crosses_episodes: whether all items are one run.
  """

  def __init__(
      self, store: store_lib.FrameStore, top_episodes: Optional[int] = None
  ):
    """Creates the population.

    Args:
      store: the store.
      top_episodes: how many episodes to keep: those with the highest returns.
        Of episodes with equal returns the first ones are kept.

    Raises:
      ValueError: if episodes have no returns.
    """
    self.num_frames = store.num_frames
    self._all_runs = store.runs
    counts = store.runs.num_items
    chosen = counts > 0
    if top_episodes is not None:
      chosen &= _best(store, chosen, top_episodes)
    self.runs = store_lib.Runs(*[values[chosen] for values in store.runs])
    self.first_item = np.concatenate([[0], np.cumsum(self.runs.num_items)])
    self.num_items = int(self.first_item[-1])
    self.crosses_episodes = store.form.crosses_episodes
    self.priorities = store.priorities
    if self.priorities is not None:
      self.priorities = self.priorities[np.repeat(chosen, counts)]
    self._form = store.form
    with tf.device('cpu'):
      self._last_items = tf.constant(self.first_item[1:])
      self._first_items = tf.constant(self.first_item[:-1])
      self._first_rows = tf.constant(self.runs.first_row)
      self._num_rows = tf.constant(self.runs.num_rows)
      self._priorities = (
          None
          if self.priorities is None
          else tf.constant(self.priorities, tf.float64)
      )

  def first(self) -> tf.Tensor:
    """Returns the number of the first item, int64 `[]`."""
    return tf.constant(0, tf.int64)

  def size(self) -> tf.Tensor:
    """Returns how many items there are, int64 `[]`."""
    return tf.constant(self.num_items, tf.int64)

  def all_rows(self) -> np.ndarray:
    """Returns the row of each frame, in the order of the data, int64 `[N]`."""
    runs = self._all_runs
    begins = np.cumsum(runs.num_rows) - runs.num_rows
    rows = np.repeat(runs.first_row - begins, runs.num_rows)
    return rows + np.arange(len(rows))

  @property
  def num_slots(self) -> int:
    """How many places there are for what is kept of every item."""
    return self.num_items

  def slots(self, items: tf.Tensor) -> tf.Tensor:
    """Returns the place of what is kept of each item, int64 `[...]`."""
    return items

  def items_in(self, slots: tf.Tensor) -> tf.Tensor:
    """Returns the items of places, int64 `[...]`."""
    return slots

  def known(self, items: tf.Tensor) -> tf.Tensor:
    """Returns whether there are such items, bool `[B]`.

    Raises:
      InvalidArgumentError: if one of them never was.
    """
    return check_items(items, self.num_items) >= 0

  def priority(self, items: tf.Tensor) -> tf.Tensor:
    """Returns the priorities of items, float64, for int64 `[...]`."""
    if self._priorities is None:
      return tf.ones_like(items, tf.float64)
    return tf.gather(self._priorities, items)

  def rows(self, items: tf.Tensor) -> tf.Tensor:
    """Returns the rows of items.

    Args:
      items: numbers of items, int64 `[N]`; `[1]` if an item is a whole episode.

    Returns:
      int64 `[N, L]`.
    """
    run = tf.searchsorted(self._last_items, items, 'right', tf.int64)
    within = items - tf.gather(self._first_items, run)
    starts = tf.gather(self._first_rows, run)
    length = self._form.sequence_length
    if length is None:
      length = tf.gather(self._num_rows, run[0])
    starts += within * self._form.stride_length
    return starts[:, tf.newaxis] + tf.range(tf.cast(length, tf.int64))


def check_items(items: tf.Tensor, num_items: Any) -> tf.Tensor:
  """Returns numbers of items, or fails if there never was such an item.

  Args:
    items: the numbers, int64 `[B]`.
    num_items: how many items there have been, int64 `[]`.

  Raises:
    InvalidArgumentError: if a number is not that of an item.
  """
  check = tf.debugging.Assert(
      tf.reduce_all((items >= 0) & (items < num_items)),
      [
          'There is no item of this key. Keys are those of the SampleInfo that'
          ' came with a batch of this replay buffer. Found:',
          items,
      ],
      summarize=16,
  )
  with tf.control_dependencies([check]):
    return tf.identity(items)


def _best(store, chosen, count) -> np.ndarray:
  """Returns which runs are the best `count` ones of those that are chosen."""
  returns = store.runs.undiscounted_return
  if store.form.crosses_episodes or np.isnan(returns[chosen]).any():
    raise ValueError(
        'top_episodes chooses episodes by their returns, but these have none:'
        ' their items cross episodes, or their reward is not one number, or is'
        ' NaN.'
    )
  runs = np.flatnonzero(chosen)
  order = runs[np.argsort(-returns[runs], kind='stable')]
  best = np.zeros(len(chosen), bool)
  best[order[:count]] = True
  return best
