"""Items: windows of the rows of episodes, each found by its number.

Items are numbered in the order of the data. An item is found by arithmetic on
the episode that it belongs to, so there is no list of items:

    episodes     | 0  1  2  3  4 | 5  6  7 |
    items of 2   | 0  1  2  3    | 4  5    |
    first_item     0               4        6

Only rows of the data are stored. Rows beyond the end of an episode are filled
in when an item is read.
"""

import threading
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.store import rows as rows_lib
from rlds2reverb.store import strings

# Beyond this number of steps a binary search is as fast.
_MAX_STEPS = 4
_NO_STRING = np.array((strings.OWN_FILE, 0, 0, 0), strings.CELL)


class SamplingError(ValueError):
  """Nothing can be drawn, or there never was such an item."""


class Episodes(NamedTuple):
  """Episodes that have items, arrays `[E]`.

  Where items cross episodes, all data is one of them.

  Attributes:
    first_row: the first row of each.
    num_rows: how many rows each has.
    num_items: how many items each has.
    undiscounted_return: the sum of the rewards of its transitions, float64; NaN
      where a row has not one reward.
  """

  first_row: np.ndarray
  num_rows: np.ndarray
  num_items: np.ndarray
  undiscounted_return: Any = None


class ItemIndex:
  """The items of episodes.

  Attributes:
    windows: which rows of an episode are items; None for whole episodes.
    episodes: the episodes that have items.
    first: the number of the first item.
    num_items: how many items there are.
    first_item: the number of the first item of each episode and, at the end,
      the number of items, int64 `[E + 1]`.
    length: the number of rows of an item; None for whole episodes.
    crosses_episodes: whether items go on into the next episode.
    num_slots: how many items there can be at most.
    priorities: the priority of each item, float64 `[N]`; None if all are 1.
    changes: whether items are added and removed.
    lock: protects values of items that change.
  """

  first = 0
  changes = False

  def __init__(
      self,
      episodes: Episodes,
      windows: Optional[windows_lib.Windows],
      priorities: Optional[np.ndarray] = None,
  ):
    """Finds the items of all episodes; see the attributes."""
    self.windows, self.priorities = windows, priorities
    self.crosses_episodes = windows is not None and windows.crosses_episodes
    self.length: Any = None if windows is None else windows.length
    self.lock = threading.RLock()
    # The numbers, among all episodes, of those that have items.
    self._numbers = np.flatnonzero(episodes.num_items)
    self.episodes = Episodes(
        *[each[self._numbers] for each in episodes if each is not None]
    )
    first_row, num_rows, counts, _ = self.episodes
    self.first_item = np.concatenate([[0], np.cumsum(counts)])
    self.num_items = self.num_slots = int(self.first_item[-1])
    self._ends = first_row + num_rows
    # The row of an item is its number times the stride, and its offset; or the
    # latest, if that comes before.
    self._stride = 1 if windows is None else windows.stride
    self._offsets = first_row - self.first_item[:-1] * self._stride
    self._latest = None
    if windows is not None and windows.end == windows_lib.EndOfEpisode.OVERLAP:
      self._latest = first_row + np.maximum(num_rows - windows.length, 0)
    # For each block of items, the episode of its first item. The episode of any
    # other item of the block is a few steps further. A block is about as long
    # as an episode.
    self._shift = (self.num_items // max(len(counts), 1)).bit_length()
    begins = np.arange(0, self.num_items, 1 << self._shift)
    last_of = np.append(begins[1:], self.num_items) - 1
    self._of_block, last = (
        self.first_item[1:].searchsorted(each, 'right')
        for each in (begins, last_of)
    )
    self._steps = int((last - self._of_block).max(initial=0))

  def find(self, items: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the episode of each item, among `episodes`, and its first row."""
    ends = self.first_item[1:]
    if self._steps > _MAX_STEPS:
      episode = ends.searchsorted(items, 'right')
    else:
      episode = self._of_block[items >> self._shift]
      for _ in range(self._steps):
        episode += items >= ends[episode]
    starts = items * self._stride + self._offsets[episode]
    if self._latest is not None:
      starts = np.minimum(starts, self._latest[episode])
    return episode, starts

  def episode_and_start(
      self, items: np.ndarray
  ) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the episode of each item, and the row of it where it starts."""
    episode, starts = self.find(items)
    return self._numbers[episode], starts - self.episodes.first_row[episode]

  def read(
      self,
      rows: rows_lib.RowStore,
      items: np.ndarray,
      boundary: Mapping[int, Any],
  ) -> Tuple[List[np.ndarray], Optional[np.ndarray]]:
    """Reads items, of one length.

    Args:
      rows: the rows.
      items: the numbers of the items, int64 `[N]`.
      boundary: the values, by the numbers of columns, of rows that are filled
        in. Others are 0, or the last row again if `windows` say so.

    Returns:
      All columns, arrays `[N, L, ...]`, with cells for strings; and which rows
      are those of the data, bool `[N, L]`, or None for all.
    """
    episode, starts = self.find(items)
    if self.windows is None:
      [length] = self.episodes.num_rows[episode]
      return rows.read(starts, int(length)), None
    if not self.windows.pads_episodes:
      return rows.read(starts, self.length), None
    places = starts[:, np.newaxis] + np.arange(self.length)
    ends = self._ends[episode][:, np.newaxis]
    is_real = places < ends
    if is_real.all():
      return rows.read(starts, self.length), is_real
    repeats = self.windows.fill == 'repeat'
    if repeats or places[:, -1].max() >= rows.num_rows:
      leaves = rows.take(np.minimum(places, ends - 1))
    else:
      leaves = rows.read(starts, self.length)
    if not repeats:
      filled = np.nonzero(~is_real)
      for number, leaf in enumerate(leaves):
        is_string = leaf.dtype == strings.CELL
        leaf[filled] = _NO_STRING if is_string else boundary.get(number, 0)
    return leaves, is_real


def find_episodes(
    lengths: np.ndarray,
    windows: Optional[windows_lib.Windows],
    returns: Any = np.nan,
    is_open: bool = False,
) -> Episodes:
  """Returns consecutive episodes, with the numbers of their items.

  Args:
    lengths: how many rows each has, int64 `[E]`.
    windows: which rows are items; None for whole episodes.
    returns: the undiscounted return of each.
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
    items: their numbers.

  Raises:
    SamplingError: if there never was such an item.
  """
  count = index.first + index.num_items
  wrong = items[(items < 0) | (items >= count)]
  if len(wrong):
    raise SamplingError(
        'There is no item of this key. Keys are those of the SampleInfo that'
        ' came with a batch of this replay buffer. Found:'
        f' {wrong[:16].tolist()} of {count} items.'
    )
  return items >= index.first


def check_drawable(is_drawable: Any, num_items: int) -> None:
  """Raises a SamplingError unless there are items, and one can be drawn."""
  if not is_drawable:
    raise SamplingError(
        'All priorities are 0, so that no item can be drawn.'
        if num_items
        else 'There is nothing to sample yet. Append frames before a batch is'
        ' taken.'
    )
