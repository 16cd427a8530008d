"""Items: windows of the rows of episodes, each found by its index.

Items are numbered in the order of the data. An item is found by arithmetic on
its episode, so there is no list of items:

    episodes     | 0  1  2  3  4 | 5  6  7 |
    items of 2   | 0  1  2  3    | 4  5    |
    episode_begins 0               4        6

Only rows of the data are stored. Padding after the end of an episode is filled
in when an item is read.
"""

from collections.abc import Callable
import functools
import threading
from typing import Any, NamedTuple

from etils import epy
import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.store import rows as store_rows

with epy.lazy_imports():
  from rlds2reverb.store import kernels


class SamplingError(ValueError):
  """No item can be drawn, or an item index never existed."""


class Episodes(NamedTuple):
  """Rows and items of episodes, arrays `[E]`.

  Where items cross episodes, all data counts as one episode.

  Attributes:
    first_row: the first row of each episode.
    num_rows: the number of rows.
    num_items: the number of items.
    undiscounted_return: the sum of the rewards of the transitions, float64; NaN
      if the reward of a row is not one number.
  """

  first_row: np.ndarray
  num_rows: np.ndarray
  num_items: np.ndarray
  undiscounted_return: Any = None


class ItemIndex:
  """The items of episodes.

  Attributes:
    windows: the windows of an episode that are items; None if each episode is
      an item.
    episodes: the episodes that have items.
    first: the index of the first item.
    num_items: the number of items.
    episode_begins: the index of the first item of each episode and, at the
      end, the number of items, int64 `[E + 1]`.
    length: the number of rows of an item; None if each episode is an item.
    crosses_episodes: whether items continue into the next episode.
    num_slots: the largest possible number of items.
    priorities: the priority of each item, float64 `[N]`; None if all are 1.
    changes: whether items are added and removed.
    lock: protects values of items that change.
  """

  first = 0
  changes = False

  def __init__(
      self,
      episodes: Episodes,
      windows: windows_lib.Windows | None,
      priorities: np.ndarray | None = None,
  ):
    """Numbers the items of all episodes; see the attributes."""
    self.windows, self.priorities = windows, priorities
    self.crosses_episodes = windows is not None and windows.crosses_episodes
    self.length: Any = None if windows is None else windows.length
    self.lock = threading.RLock()
    # The indices of the episodes that have items.
    self._episode_indices = np.flatnonzero(episodes.num_items)
    self.episodes = Episodes(
        *[
            values[self._episode_indices]
            for values in episodes
            if values is not None
        ]
    )
    counts = self.episodes.num_items
    self.episode_begins = np.concatenate([[0], np.cumsum(counts)])
    self.num_items = self.num_slots = int(self.episode_begins[-1])

  def find(
      self, items: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the rows of items.

    Args:
      items: the item indices, int64 `[N]`.

    Returns:
      The episode of each item, among `episodes`; the first row of the item; and
      the row after the last row of the episode; int64 `[N]`.
    """
    episode, start, end = np.empty([3, len(items)], np.int64)
    self._find_items(items, episode, start, end)
    return episode, start, end

  @functools.cached_property
  def _find_items(self) -> Callable[..., None]:
    """The kernel with the arrays that say where items are."""
    first_row, num_rows, counts, _ = self.episodes
    stride = 1 if self.windows is None else self.windows.stride
    # The episode of every `2**shift`-th item, for the search of an item.
    shift = max((self.num_items // max(len(counts), 1)).bit_length() - 1, 0)
    places = np.arange((self.num_items >> shift) + 2) << shift
    guide = self.episode_begins.searchsorted(places, 'right') - 1
    ends = latest = first_row + num_rows
    if self.windows and self.windows.end == windows_lib.EndOfEpisode.OVERLAP:
      latest = first_row + np.maximum(num_rows - self.windows.length, 0)
    return functools.partial(
        kernels.find_items,
        self.episode_begins,
        np.minimum(guide, len(counts) - 1),
        shift,
        first_row - self.episode_begins[:-1] * stride,
        latest,
        stride,
        ends,
    )

  def episode_and_start(
      self, items: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the episode of each item, and its row in the episode."""
    episode, start, _ = self.find(items)
    return (
        self._episode_indices[episode],
        start - self.episodes.first_row[episode],
    )

  def read(
      self, rows: store_rows.RowStore, items: np.ndarray
  ) -> list[np.ndarray]:
    """Reads items of one length.

    Args:
      rows: the rows.
      items: the item indices, int64 `[N]`.

    Returns:
      All columns, arrays `[N, L, ...]`, with cells for strings. Rows after the
      end of an episode repeat the last row if `windows.fill` is `'repeat'`, and
      otherwise are the padding of `rows`.
    """
    episode, start, end = self.find(items)
    if self.windows is None:
      [length] = self.episodes.num_rows[episode].tolist()
      return rows.gather(start, length)
    repeats_last = self.windows.fill == 'repeat'
    return rows.gather(start, self.length, None, end, repeats_last)

  def is_data(self, items: np.ndarray) -> np.ndarray:
    """Returns which rows of items are not padding, bool `[N, L]`."""
    _, start, end = self.find(items)
    return start[:, np.newaxis] + np.arange(self.length) < end[:, np.newaxis]


def find_episodes(
    lengths: np.ndarray,
    windows: windows_lib.Windows | None,
    returns: Any = np.nan,
    is_open: bool = False,
) -> Episodes:
  """Returns consecutive episodes, with the number of their items.

  Args:
    lengths: the number of rows of each episode, int64 `[E]`.
    windows: the windows of an episode that are items; None if each episode is
      an item.
    returns: the undiscounted return of each episode.
    is_open: whether the data ends before the last episode does.
  """
  returns = np.broadcast_to(returns, lengths.shape)
  if windows is not None and windows.crosses_episodes:
    lengths, returns = lengths.sum(keepdims=True), returns.sum(keepdims=True)
  is_end = np.full(len(lengths), True)
  is_end[-1:] = not is_open
  counts = (is_end & (lengths > 0)).astype(np.int64)
  if windows is not None:
    counts = windows.count(lengths, is_end=is_end)
  return Episodes(np.cumsum(lengths) - lengths, lengths, counts, returns)


def alive(index: Any, items: np.ndarray) -> np.ndarray:
  """Returns whether items can still be drawn, bool `[N]`.

  Args:
    index: an `ItemIndex` or a `FrameRing`.
    items: the item indices.

  Raises:
    SamplingError: if an item never existed.
  """
  count = index.first + index.num_items
  is_wrong = (items < 0) | (items >= count)
  if is_wrong.any():
    raise SamplingError(
        'There is no item of this key. Use the keys of the SampleInfo of a'
        ' batch of this replay buffer. Found:'
        f' {items[is_wrong][:16].tolist()} of {count} items.'
    )
  return items >= index.first


def check_drawable(is_drawable: Any, num_items: int) -> None:
  """Raises a SamplingError unless an item can be drawn."""
  if not is_drawable:
    raise SamplingError(
        'All priorities are 0, so that no item can be drawn.'
        if num_items
        else 'There is nothing to sample yet. Append frames before a batch is'
        ' taken.'
    )
