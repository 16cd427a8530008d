"""Windows on an episode's rows: one gather with a matrix of row indices.

Sequences, chunks, views, stacked frames, slices and n-step returns differ only
in the indices of the rows that they gather. Indices outside the rows are
replaced before the gather, because indices are far smaller than rows:

    rows                    a  b  c  d
    index           -2  -1  0  1  2  3   4   5
    mask             F   F  T  T  T  T   F   F
    "zeros"          0   0  a  b  c  d   0   0
    "repeat"         a   a  a  b  c  d   d   d
"""

import math
import numbers
from typing import Any, Sequence, Union

import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib

FILLS = ('zeros', 'repeat')


def is_inside(index: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
  """Returns, bool, which indices are in `[0, stop)`."""
  return (index >= 0) & (index < stop)


def take(rows: Any, index: tf.Tensor) -> Any:
  """Gathers rows that all exist.

  Args:
    rows: a nest of tensors `[N, ...]`.
    index: int32 or int64 of any shape, every value in `[0, N)`.

  Returns:
    The nest, every leaf `index.shape + [...]`, its dtype kept.
  """
  return tf.nest.map_structure(lambda leaf: tf.gather(leaf, index), rows)


def take_windows(rows: Any, starts: tf.Tensor, length: int, stride: int) -> Any:
  """Gathers windows of consecutive rows.

  Long windows that overlap are put together from pieces of several rows, which
  takes far fewer copies than single rows do. Here are pieces of two rows:

      pieces           ab  bc  cd  de
      windows          ab cd   bc de

  Args:
    rows: a nest of tensors `[N, ...]`.
    starts: int32 or int64 `[W]`, ascending, every value in `[0, N)`; `W > 0`.
    length: `L`, of each window. The last row is repeated beyond the end.
    stride: about how many rows lie between two starts.

  Returns:
    The nest, every leaf `[W, L, ...]`, its dtype kept.
  """
  starts = tf.cast(starts, tf.int32)
  last = tf.cast(num_rows(rows), tf.int32) - 1
  piece_length = _piece_length(length, stride)
  if piece_length == 1:
    index = windows_lib.window_index(starts, length)
    return take(rows, tf.minimum(index, last))
  first = starts[0]
  heads = tf.range(first, tf.minimum(starts[-1] + length, last + 1))
  index = windows_lib.window_index(heads, piece_length)
  pieces = take(rows, tf.minimum(index, last))
  index = (starts - first)[:, tf.newaxis] + tf.range(0, length, piece_length)
  # The last piece that may be asked for is the last row, repeated.
  index = tf.minimum(index, tf.size(heads) - 1)

  def join(leaf):
    joined = tf.gather(leaf, index)
    row_shape = tf.shape(leaf)[2:]
    joined = tf.reshape(joined, tf.concat([[-1, length], row_shape], 0))
    return tf.ensure_shape(joined, [None, length] + leaf.shape[2:])

  return tf.nest.map_structure(join, pieces)


def take_filled(
    rows: Any,
    index: tf.Tensor,
    stop: tf.Tensor,
    *,
    before: Union[str, float] = 'zeros',
    after: Union[str, float] = 'zeros',
) -> Any:
  """Gathers rows, and fills rows outside `[0, stop)`.

  Args:
    rows: a nest of tensors `[N, ...]`.
    index: int32 or int64 of any shape.
    stop: a scalar, at most `N`: the rows from here on do not count.
    before: the values for an index below 0: `"zeros"` (False, or an empty
      string); `"repeat"`, the first row; or a number, for leaves that are not
      strings.
    after: the values for an index from `stop` on: `"repeat"` is the last row; a
      number must be that of `before`, if that is one too.

  Returns:
    The nest, every leaf `index.shape + [...]`, its dtype kept.

  Raises:
    ValueError: if the dtype of a leaf cannot hold the number; a float may be
      rounded.
  """
  stop = tf.cast(stop, index.dtype)
  # The row of the fill stands where the rows end.
  last = tf.maximum(stop - 1, 0)
  below = tf.zeros_like(stop) if before == 'repeat' else stop
  above = last if after == 'repeat' else stop
  index = tf.where(index < 0, below, tf.where(index < stop, index, above))
  values = [fill for fill in (before, after) if fill != 'repeat']
  if not values:
    return take(rows, index)
  value = 0 if values[0] == 'zeros' else values[0]

  def gather(path, leaf):
    shape = tf.concat([[1], tf.shape(leaf)[1:]], 0)
    fill = tf.fill(shape, _fill_value(path, value, leaf.dtype))
    fill = tf.ensure_shape(fill, [1] + leaf.shape[1:])
    return tf.gather(tf.concat([leaf[:stop], fill], 0), index)

  return tree.map_structure_with_path(gather, rows)


def check_fill(fill: Union[str, float], choices: Sequence[str] = FILLS) -> None:
  """Raises a ValueError if `fill` is neither one of `choices` nor a number."""
  if isinstance(fill, str):
    checks.check_choice('fill', fill, choices)
  elif not isinstance(fill, numbers.Real):
    raise ValueError(
        f'fill must be one of {choices}, or a number, but is {fill!r}.'
    )


def _fill_value(path, value, dtype) -> tf.Tensor:
  """Returns a number in the dtype of the leaf at `path`."""
  if dtype == tf.string:
    return tf.constant('')
  is_finite = math.isfinite(value)
  if dtype.is_bool:
    fits, convert = value in (0, 1), bool
  elif dtype.is_integer:
    fits, convert = is_finite and dtype.min <= value <= dtype.max, int
    fits = fits and int(value) == value
  elif dtype.is_floating:
    fits, convert = not is_finite or abs(value) <= dtype.max, float
  else:
    fits, convert = True, complex
  if not fits:
    raise ValueError(
        f'{steps_lib.field_path(path)} is {dtype.name}, which cannot hold'
        f' {value}, the number to fill with. Choose another fill, or cast the'
        ' field first.'
    )
  return tf.constant(convert(value), dtype)


def _piece_length(length: int, stride: int) -> int:
  """Returns how many rows a piece has; 1 if longer pieces are no faster."""
  copies = {
      size: length // size + size * stride
      for size in range(2, length)
      if length % size == 0
  }
  best = min(copies, key=copies.get, default=1)
  return best if copies.get(best, length) <= length // 2 else 1


def swap_time(nest: Any) -> Any:
  """Swaps the first two dimensions of every leaf: batch-major, time-major."""

  def swap(leaf):
    rank = leaf.shape.rank
    return tf.transpose(leaf, [1, 0, *range(2, rank)])

  return tf.nest.map_structure(swap, nest)


def zeros_unless(keep: tf.Tensor, rows: Any) -> Any:
  """Replaces rows by zeros, False or empty strings where `keep` is False.

  Args:
    keep: bool, of any shape.
    rows: a nest of `keep.shape + [...]`.

  Returns:
    The nest, its dtypes and shapes kept.
  """

  def select(leaf):
    ones = [1] * (leaf.shape.rank - keep.shape.rank)
    mask = tf.reshape(keep, tf.concat([tf.shape(keep), ones], 0))
    return tf.where(mask, leaf, tf.zeros([], leaf.dtype))

  return tf.nest.map_structure(select, rows)


def num_rows(rows: Any) -> tf.Tensor:
  """Returns, int64 `[]`, how many rows a nest of `[N, ...]` has.

  Raises:
    ValueError: if the nest is empty.
  """
  leaves = tf.nest.flatten(rows)
  if not leaves:
    raise ValueError(f'Rows must have a field, but have none: {rows}.')
  return tf.shape(leaves[0], tf.int64)[0]
