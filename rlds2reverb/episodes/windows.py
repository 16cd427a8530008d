"""`Windows` says how windows are cut from episodes, and finds them.

Sequences, the items of tables, chunks for recurrent agents and slices are all
windows: runs of consecutive rows of one length. One computation finds them all:
with NumPy for arrays, and with TensorFlow, which is imported only then, for
tensors.
"""

import dataclasses
import enum
from typing import Any, Mapping, NamedTuple, Optional, Tuple, Union

from etils import epy
import numpy as np

from rlds2reverb.episodes import checks

with epy.lazy_imports():
  import tensorflow as tf  # pylint: disable=g-import-not-at-top


class EndOfEpisode(str, enum.Enum):
  """The ways to treat the last rows of an episode if they fill no window.

  `Windows` has a drawing of each. Its string may be given in place of a member.
  """

  DROP = 'drop'
  PAD = 'pad'
  TILE = 'tile'
  ZERO_PAD = 'zero_pad'
  REPEAT_LAST = 'repeat_last'
  OVERLAP = 'overlap'
  CROSS = 'cross'


class FoundWindows(NamedTuple):
  """The starts of windows.

  Attributes:
    episode: int64 `[W]`: the index of the episode of each window.
    start: int64 `[W]`: the row of that episode at which it starts.
  """

  episode: Any
  start: Any


@dataclasses.dataclass(frozen=True)
class Windows:
  """Says how windows of one length are cut from episodes.

  A window is `length` consecutive rows, and the next window starts `stride`
  rows later. Here are the windows of an episode of 6 rows and of one of 2 rows,
  with `Windows(3, stride=2)`. `P` is a row of padding, and a lower-case letter
  is a row that repeats the last one:

      rows             0 1 2 3 4 5              | 6 7
      "drop"           0 1 2   2 3 4            |
      "pad"            0 1 2   2 3 4            | 6 7 P
      "tile"           0 1 2   2 3 4   4 5 P    | 6 7 P
      "zero_pad"       0 1 2   2 3 4   4 5 P    | 6 7 P
      "repeat_last"    0 1 2   2 3 4   4 5 e    | 6 7 g     (e is 5, g is 7)
      "overlap"        0 1 2   2 3 4   3 4 5    | 6 7 P
      "cross"          0 1 2   2 3 4   4 5 6

  If the episode had 5 rows, the window 2 3 4 would end with it. `"tile"` would
  still start a window at row 4, which is 4 P P. `"zero_pad"`, `"repeat_last"`
  and `"overlap"` would not, because no row is left over.

  Where windows are masked, the mask is False for rows that were filled in.

  Attributes:
    length: the number of rows of a window.
    stride: the number of rows from the start of a window to the start of the
      next one. If it is larger than `length`, rows are left out between
      windows.
    end: how the last rows of an episode are treated, an `EndOfEpisode` or its
      string. `"drop"` makes no window that is not full. `"pad"` makes one
      padded window of an episode that is shorter than a window, and drops the
      rows left over in a longer one (`pad_end_of_episodes` of TF-Agents).
      `"tile"` starts a window at every `stride`-th row of the episode, and pads
      those that reach beyond its end (`tile_end_of_episodes` of TF-Agents).
      `"zero_pad"` makes one more window of the rows left over, if there are
      any, and pads it. `"repeat_last"` does the same, but repeats the last row
      instead of padding. `"overlap"` makes one more window that starts earlier,
      so that it ends with the episode; an episode that is shorter than a window
      is padded. `"cross"` lets windows go on into the next episode.

  Raises:
    ValueError: if a number is not a positive integer, or there is no such end.
  """

  length: int
  stride: int = 1
  end: Union[str, EndOfEpisode] = EndOfEpisode.DROP

  def __post_init__(self):
    checks.check_positive('The length of windows', self.length)
    checks.check_positive('The stride of windows', self.stride)
    checks.check_choice(
        'The end of windows', self.end, [end.value for end in EndOfEpisode]
    )
    object.__setattr__(self, 'end', EndOfEpisode(self.end))

  @property
  def fill(self) -> str:
    """The rows that fill in: `"repeat"` or `"zeros"`, see `take_filled`."""
    return 'repeat' if self.end == EndOfEpisode.REPEAT_LAST else 'zeros'

  @property
  def crosses_episodes(self) -> bool:
    """Whether windows go on into the next episode."""
    return self.end == EndOfEpisode.CROSS

  @property
  def pads_episodes(self) -> bool:
    """Whether rows may be filled in after an episode."""
    return self.end not in (EndOfEpisode.DROP, EndOfEpisode.CROSS)

  def find(
      self, num_rows: Any, seen: Any = 0, is_end: Any = True
  ) -> FoundWindows:
    """Finds the windows of episodes; or of parts of them, as they come.

    The windows of a part are those that end in it. Rows are counted from the
    start of the episode; where windows cross episodes, from the start of the
    data, which then counts as one episode.

    Args:
      num_rows: int64 `[E]`, an array or a tensor: how many rows each episode
        has, up to the end of the part.
      seen: int64 `[E]`: how many of these rows come before the part.
      is_end: bool `[E]`: whether the episode ends with the part.

    Returns:
      The windows, by episode and in the order of their starts.
    """
    ops = _module_of(num_rows)
    first = self.first_start(seen + ops.zeros_like(num_rows))
    count = self.count(num_rows, seen, is_end)
    episode, start = ranges(first, count, self.stride)
    if self.end == EndOfEpisode.OVERLAP:
      latest = ops.maximum(num_rows - self.length, 0)
      start = ops.minimum(start, _take(latest, episode))
    return FoundWindows(episode, start)

  def count(self, num_rows: Any, seen: Any = 0, is_end: Any = True) -> Any:
    """Returns how many windows `find` finds in each episode, int64 `[E]`."""
    ops = _module_of(num_rows)
    first = self.first_start(seen + ops.zeros_like(num_rows))
    count = (self.first_start(num_rows) - first) // self.stride
    return count + ops.where(is_end, self._num_ending(num_rows), 0)

  def padding(self, num_rows: Any) -> Any:
    """Returns how many rows are filled in after whole episodes, int64 `[E]`.

    Args:
      num_rows: int64 `[E]`, an array or a tensor: how many rows each has.
    """
    ops = _module_of(num_rows)
    count = self._num_ending(num_rows)
    start = self.first_start(num_rows) + (count - 1) * self.stride
    if self.end == EndOfEpisode.OVERLAP:
      start = ops.minimum(start, ops.maximum(num_rows - self.length, 0))
    missing = ops.maximum(start + self.length - num_rows, 0)
    return ops.where(count > 0, missing, 0)

  def first_start(self, seen: Any) -> Any:
    """Returns the start of the first window that ends after `seen` rows.

    Args:
      seen: int64 of any shape, an array or a tensor: numbers of rows.
    """
    first = _module_of(seen).maximum(seen + 1 - self.length, 0)
    return (first + self.stride - 1) // self.stride * self.stride

  def _num_ending(self, num_rows):
    """Returns how many windows episodes have that would reach beyond them."""
    ops = _module_of(num_rows)
    beyond = self.first_start(num_rows)
    nothing = ops.zeros_like(num_rows)
    if not self.pads_episodes:
      return nothing
    left = num_rows - beyond  # This is negative if the next start is no row.
    if self.end == EndOfEpisode.TILE:
      return ops.maximum((left + self.stride - 1) // self.stride, 0)
    if self.end == EndOfEpisode.PAD:
      is_ending = (num_rows > 0) & (num_rows < self.length)
    else:
      covered = beyond - self.stride + self.length
      is_ending = (left > 0) & ((beyond == 0) | (covered < num_rows))
    return ops.where(is_ending, nothing + 1, nothing)


def check_windows(
    windows: Windows,
    refused: Optional[Mapping[EndOfEpisode, str]] = None,
    of: str = '',
) -> None:
  """Raises a ValueError unless a caller gives `Windows` that can be cut.

  Args:
    windows: the argument of the caller.
    refused: the ends that are not possible here, and why, sentences.
    of: the owner of the windows, for the message, such as `' of table "a"'`.
  """
  if not isinstance(windows, Windows):
    raise ValueError(
        f'The windows{of} must be Windows(length, stride, end), but are'
        f' {windows!r}.'
    )
  end = EndOfEpisode(windows.end)
  if refused and end in refused:
    raise ValueError(
        f'The end of the windows{of} cannot be {end.value!r}: {refused[end]}'
    )


def ranges(first: Any, count: Any, stride: int) -> Tuple[Any, Any]:
  """Returns the numbers of several ranges, one range after the other.

  Args:
    first: int64 `[R]`, an array or a tensor: the first number of each range.
    count: int64 `[R]`: how many numbers each range has.
    stride: the distance between a number and the next.

  Returns:
    The range of each number, an index, and the number; both int64 `[N]`.
  """
  if isinstance(count, np.ndarray):
    index = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    return index, first[index] + stride * within
  # `tf.repeat` takes as much memory as if all ranges were as long as the
  # longest one.
  stops = tf.cumsum(count)
  numbers = tf.range(tf.reduce_sum(count))
  index = tf.searchsorted(stops, numbers, 'right', tf.int64)
  return index, numbers * stride + tf.gather(
      first - (stops - count) * stride, index
  )


def window_index(start: Any, length: Any) -> Any:
  """Returns the rows `[W, length]` of windows that start at `start` `[W]`."""
  if isinstance(start, np.ndarray):
    return start[:, np.newaxis] + np.arange(length)
  return start[:, tf.newaxis] + tf.range(length, dtype=start.dtype)


def _module_of(values):
  return np if isinstance(values, (np.ndarray, np.generic, int)) else tf


def _take(values, index):
  if isinstance(values, np.ndarray):
    return values[index]
  return tf.gather(values, index)
