"""Windows: runs of consecutive rows of one length, their rows and padding.

Sequences, the items of tables, chunks for recurrent agents, stacked frames and
slices are all windows. `Windows` defines where windows start, in NumPy for
arrays and in TensorFlow, which is imported only then, for tensors.
`take_windows` gathers their rows. The package `rlds2reverb.windows` makes
training data of the windows of one episode.
"""

from collections.abc import Mapping
import dataclasses
import enum
from typing import Any, NamedTuple, Union

from etils import epy
import numpy as np

from rlds2reverb.episodes import checks

with epy.lazy_imports():
  import tensorflow as tf

  from rlds2reverb.episodes import rows as rows_lib


class EndOfEpisode(str, enum.Enum):
  """How to treat the last rows of an episode if they do not fill a window.

  `Windows` illustrates each. The string may be used instead of the member.
  """

  DROP = 'drop'
  PAD = 'pad'
  TILE = 'tile'
  ZERO_PAD = 'zero_pad'
  REPEAT_LAST = 'repeat_last'
  OVERLAP = 'overlap'
  CROSS = 'cross'


class WindowStarts(NamedTuple):
  """The starts of windows.

  Attributes:
    episode: int64 `[W]`: the index of the episode of each window.
    start: int64 `[W]`: the row of the episode at which the window starts.
  """

  episode: Any
  start: Any


@dataclasses.dataclass(frozen=True)
class Windows:
  """Defines how windows of one length are cut from episodes.

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
  and `"overlap"` would not, because no row remains.

  Masks of windows are False for padding and repeated rows.

  Attributes:
    length: the number of rows of a window.
    stride: the number of rows from the start of a window to the start of the
      next one. If it is larger than `length`, the rows between windows are
      skipped.
    end: how the last rows of an episode are treated, an `EndOfEpisode` or its
      string. `"drop"` makes full windows only. `"pad"` makes one padded window
      of an episode that is shorter than a window, and drops the remaining rows
      of a longer one (`pad_end_of_episodes` of TF-Agents). `"tile"` starts a
      window at every `stride`-th row of the episode, and pads those that extend
      beyond its end (`tile_end_of_episodes` of TF-Agents). `"zero_pad"` makes
      one more window of the remaining rows, if any, and pads it.
      `"repeat_last"` does the same, but repeats the last row instead of
      padding. `"overlap"` makes one more window that starts earlier, so that it
      ends with the episode; an episode that is shorter than a window is padded.
      `"cross"` lets windows continue into the next episode.

  Raises:
    ValueError: if a number is not a positive integer, or `end` is unknown.
  """

  length: int
  stride: int = 1
  end: str | EndOfEpisode = EndOfEpisode.DROP

  def __post_init__(self):
    checks.check_positive('The length of windows', self.length)
    checks.check_positive('The stride of windows', self.stride)
    checks.check_choice(
        'The end of windows', self.end, [end.value for end in EndOfEpisode]
    )
    object.__setattr__(self, 'end', EndOfEpisode(self.end))

  @property
  def fill(self) -> str:
    """The fill after an episode: `"repeat"` or `"zeros"`, see `take_filled`."""
    return 'repeat' if self.end == EndOfEpisode.REPEAT_LAST else 'zeros'

  @property
  def crosses_episodes(self) -> bool:
    """Whether windows continue into the next episode."""
    return self.end == EndOfEpisode.CROSS

  @property
  def pads_episodes(self) -> bool:
    """Whether rows may be added after an episode."""
    return self.end not in (EndOfEpisode.DROP, EndOfEpisode.CROSS)

  def find(
      self, num_rows: Any, num_seen: Any = 0, is_end: Any = True
  ) -> WindowStarts:
    """Finds the windows of episodes, or of parts of episodes in a stream.

    The windows of a part are those that end in it. Rows are counted from the
    start of the episode; if windows cross episodes, from the start of the data,
    which then counts as one episode.

    Args:
      num_rows: int64 `[E]`, an array or a tensor: the number of rows of each
        episode, up to the end of the part.
      num_seen: int64 `[E]`: the number of these rows before the part.
      is_end: bool `[E]`: whether the episode ends with the part.

    Returns:
      The windows, by episode and in the order of their starts.
    """
    ops = _module_of(num_rows)
    first = self.first_start(num_seen + ops.zeros_like(num_rows))
    count = self.count(num_rows, num_seen, is_end)
    episode, start = expand_ranges(first, count, self.stride)
    if self.end == EndOfEpisode.OVERLAP:
      latest = ops.maximum(num_rows - self.length, 0)
      start = ops.minimum(start, _gather(latest, episode))
    return WindowStarts(episode, start)

  def count(self, num_rows: Any, num_seen: Any = 0, is_end: Any = True) -> Any:
    """Returns the number of windows of each episode, int64 `[E]`."""
    ops = _module_of(num_rows)
    first = self.first_start(num_seen + ops.zeros_like(num_rows))
    count = (self.first_start(num_rows) - first) // self.stride
    return count + ops.where(is_end, self._num_padded(num_rows), 0)

  def padding(self, num_rows: Any) -> Any:
    """Returns the number of rows added after complete episodes, int64 `[E]`.

    Args:
      num_rows: int64 `[E]`, an array or a tensor: the length of each episode.
    """
    ops = _module_of(num_rows)
    count = self._num_padded(num_rows)
    start = self.first_start(num_rows) + (count - 1) * self.stride
    if self.end == EndOfEpisode.OVERLAP:
      start = ops.minimum(start, ops.maximum(num_rows - self.length, 0))
    missing = ops.maximum(start + self.length - num_rows, 0)
    return ops.where(count > 0, missing, 0)

  def first_start(self, num_seen: Any) -> Any:
    """Returns the start of the first window that ends after `num_seen` rows.

    Args:
      num_seen: int64 of any shape, an array or a tensor: numbers of rows.
    """
    first = _module_of(num_seen).maximum(num_seen + 1 - self.length, 0)
    return (first + self.stride - 1) // self.stride * self.stride

  def _num_padded(self, num_rows):
    """Returns the number of windows that extend beyond each episode."""
    ops = _module_of(num_rows)
    next_start = self.first_start(num_rows)
    zero = ops.zeros_like(num_rows)
    if not self.pads_episodes:
      return zero
    remaining = num_rows - next_start  # Negative if there is no such row.
    if self.end == EndOfEpisode.TILE:
      return ops.maximum((remaining + self.stride - 1) // self.stride, 0)
    if self.end == EndOfEpisode.PAD:
      is_padded = (num_rows > 0) & (num_rows < self.length)
    else:
      covered = next_start - self.stride + self.length
      is_padded = (remaining > 0) & ((next_start == 0) | (covered < num_rows))
    return ops.where(is_padded, zero + 1, zero)


def check_windows(
    windows: Windows,
    refused: Mapping[EndOfEpisode, str] | None = None,
    of: str = '',
) -> None:
  """Raises a ValueError unless an argument is a supported `Windows`.

  Args:
    windows: the argument of the caller.
    refused: the ends that are not supported, and the reasons, sentences.
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


def expand_ranges(first: Any, count: Any, stride: int) -> tuple[Any, Any]:
  """Concatenates arithmetic progressions.

  Args:
    first: int64 `[R]`, an array or a tensor: the first number of each range.
    count: int64 `[R]`: the length of each range.
    stride: the difference of consecutive numbers.

  Returns:
    The index of the range of each number, and the number; both int64 `[N]`.
  """
  if isinstance(count, np.ndarray):
    index = np.repeat(np.arange(len(count)), count)
    offset = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    return index, first[index] + stride * offset
  # `tf.repeat` takes as much memory as if all ranges were as long as the
  # longest one.
  stops = tf.cumsum(count)
  positions = tf.range(tf.reduce_sum(count))
  index = tf.searchsorted(stops, positions, 'right', tf.int64)
  return index, positions * stride + tf.gather(
      first - (stops - count) * stride, index
  )


def window_index(start: Any, length: Any) -> Any:
  """Returns the rows `[W, length]` of windows that start at `start` `[W]`."""
  if isinstance(start, np.ndarray):
    return start[:, np.newaxis] + np.arange(length)
  return start[:, tf.newaxis] + tf.range(length, dtype=start.dtype)


def _module_of(values):
  return np if isinstance(values, (np.ndarray, np.generic, int)) else tf


def _gather(values, index):
  if isinstance(values, np.ndarray):
    return values[index]
  return tf.gather(values, index)


def take_windows(
    rows: Any,
    starts: 'tf.Tensor',
    length: Any,
    stop: 'tf.Tensor',
    *,
    fill: str | float = 'zeros',
    start: Union[int, 'tf.Tensor'] = 0,
) -> tuple[Any, 'tf.Tensor']:
  """Gathers the rows of windows.

  Args:
    rows: a nest of tensors `[N, ...]`.
    starts: int64 `[W]`: the row at which each window starts.
    length: the number of rows of a window, `L`.
    stop: an integer `[]` or `[W]`: the end of the valid rows.
    fill: the fill for rows that are not valid; see `take_filled`.
    start: the start of the valid rows, like `stop`.

  Returns:
    The nest, every leaf `[W, L, ...]`; and a mask of the valid rows, bool
    `[W, L]`.
  """
  index = window_index(starts, length)
  start, stop = (
      tf.reshape(tf.cast(bound, index.dtype), [-1, 1])
      for bound in (start, stop)
  )
  gathered = rows_lib.take_filled(
      rows, index, stop, before=fill, after=fill, start=start
  )
  return gathered, rows_lib.is_in_range(index, stop, start)
