"""Windows on an episode's rows: one gather with a matrix of row indices.

Sequences, chunks, views, stacked frames, slices and n-step returns differ only
in the indices of the rows that they gather. Where an index lies outside of the
rows, the nearest one is gathered, and is replaced if it is not to be repeated:

    rows                    a  b  c  d
    index           -2  -1  0  1  2  3   4   5
    mask             F   F  T  T  T  T   F   F
    "zeros"          0   0  a  b  c  d   0   0
    "repeat"         a   a  a  b  c  d   d   d
"""

import math
import numbers
from typing import Any, Sequence, Tuple, Union

import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib

FILLS = ('zeros', 'repeat')


def is_inside(index: tf.Tensor, stop: Any, start: Any = 0) -> tf.Tensor:
  """Returns, bool, which indices are in `[start, stop)`."""
  return (index >= start) & (index < stop)


def take(rows: Any, index: tf.Tensor) -> Any:
  """Gathers rows that all exist.

  Args:
    rows: a nest of tensors `[N, ...]`.
    index: int32 or int64 of any shape, every value in `[0, N)`.

  Returns:
    The nest, every leaf `index.shape + [...]`, its dtype kept.
  """
  return tf.nest.map_structure(lambda leaf: tf.gather(leaf, index), rows)


def take_filled(
    rows: Any,
    index: tf.Tensor,
    stop: tf.Tensor,
    *,
    before: Union[str, float] = 'zeros',
    after: Union[str, float] = 'zeros',
    start: Union[int, tf.Tensor] = 0,
) -> Any:
  """Gathers rows, and fills those outside `[start, stop)`.

  Args:
    rows: a nest of tensors `[N, ...]`; `N > 0`, unless `index` is empty.
    index: int32 or int64 of any shape.
    stop: an integer `[]`, or of a shape like that of `index`: the rows from
      here on do not count.
    before: the values for an index below `start`: `"zeros"` (False, or an empty
      string); `"repeat"`, the first row; or a number, for leaves that are not
      strings.
    after: the values for an index from `stop` on, where `"repeat"` is the last
      row.
    start: where the rows begin that count, as `stop`.

  Returns:
    The nest, every leaf `index.shape + [...]`, its dtype kept.

  Raises:
    ValueError: if the dtype of a leaf cannot hold the number; a float may be
      rounded.
  """
  start, stop = tf.cast(start, index.dtype), tf.cast(stop, index.dtype)
  last = tf.maximum(stop - 1, start)
  taken = take(rows, tf.clip_by_value(index, start, last))
  are_real = {before: index >= start}
  are_real[after] = are_real.get(after, True) & (index < stop)
  for fill, is_real in are_real.items():
    if fill != 'repeat':
      taken = fill_unless(is_real, taken, 0 if fill == 'zeros' else fill)
  return taken


def take_windows(
    rows: Any,
    starts: tf.Tensor,
    length: Any,
    stop: tf.Tensor,
    *,
    fill: Union[str, float] = 'zeros',
    start: Union[int, tf.Tensor] = 0,
) -> Tuple[Any, tf.Tensor]:
  """Gathers windows of consecutive rows, all of one length.

  Args:
    rows: a nest of tensors `[N, ...]`.
    starts: int64 `[W]`: the row at which each window starts.
    length: the number of rows of a window, `L`.
    stop: an integer `[]` or `[W]`: the rows from here on do not count.
    fill: the values of rows that do not count; see `take_filled`.
    start: where the rows begin that count, as `stop`.

  Returns:
    The nest, every leaf `[W, L, ...]`; and, bool `[W, L]`, which rows count.
  """
  index = windows_lib.window_index(starts, length)
  start, stop = (
      tf.reshape(tf.cast(bound, index.dtype), [-1, 1])
      for bound in (start, stop)
  )
  taken = take_filled(rows, index, stop, before=fill, after=fill, start=start)
  return taken, is_inside(index, stop, start)


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
  fits, convert = True, complex
  if dtype.is_floating:
    fits, convert = not is_finite or abs(value) <= dtype.max, float
  elif not dtype.is_complex:
    low, high = (0, 1) if dtype.is_bool else (dtype.min, dtype.max)
    fits = is_finite and low <= value <= high and int(value) == value
    convert = bool if dtype.is_bool else int
  if not fits:
    raise ValueError(
        f'{steps_lib.field_path(path)} is {dtype.name}, which cannot hold'
        f' {value}, the number to fill with. Choose another fill, or cast the'
        ' field first.'
    )
  return tf.constant(convert(value), dtype)


def swap_time(nest: Any) -> Any:
  """Swaps the first two dimensions of every leaf: batch-major, time-major."""

  def swap(leaf):
    rank = leaf.shape.rank
    return tf.transpose(leaf, [1, 0, *range(2, rank)])

  return tf.nest.map_structure(swap, nest)


def fill_unless(keep: tf.Tensor, rows: Any, value: Any = 0) -> Any:
  """Replaces rows by a number, or by zeros, where `keep` is False.

  Args:
    keep: bool, of any shape.
    rows: a nest of `keep.shape + [...]`.
    value: the number; False or an empty string for 0.

  Returns:
    The nest, its dtypes and shapes kept.

  Raises:
    ValueError: if the dtype of a leaf cannot hold the number.
  """

  def select(path, leaf):
    fill = _fill_value(path, value, leaf.dtype)
    return tf.where(with_rank_of(keep, leaf), leaf, fill)

  return tree.map_structure_with_path(select, rows)


def with_rank_of(column: tf.Tensor, leaf: tf.Tensor) -> tf.Tensor:
  """Returns a column with dimensions of 1 up to the rank of a leaf."""
  missing = leaf.shape.rank - column.shape.rank
  return column[(...,) + (tf.newaxis,) * missing]


def num_rows(rows: Any) -> tf.Tensor:
  """Returns, int64 `[]`, how many rows a nest of `[N, ...]` has.

  Raises:
    ValueError: if the nest is empty.
  """
  leaves = tf.nest.flatten(rows)
  if not leaves:
    raise ValueError(f'Rows must have a field, but have none: {rows}.')
  return tf.shape(leaves[0], tf.int64)[0]
