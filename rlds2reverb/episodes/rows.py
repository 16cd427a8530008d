"""Gathering, slicing and filling rows: nests of tensors `[N, ...]`.

An index outside of the rows gathers the nearest row, which is then replaced
unless it is to be repeated:

    rows                    a  b  c  d
    index           -2  -1  0  1  2  3   4   5
    "zeros"          0   0  a  b  c  d   0   0
    "repeat"         a   a  a  b  c  d   d   d
"""

from collections.abc import Callable
from collections.abc import Sequence
import math
import numbers
from typing import Any

import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths

FILLS = ('zeros', 'repeat')


def num_rows(rows: Any) -> tf.Tensor:
  """Returns the number of rows of a nest of `[N, ...]`, int64 `[]`.

  Raises:
    ValueError: if the nest is empty.
  """
  leaves = tf.nest.flatten(rows)
  if not leaves:
    raise ValueError(f'Rows must have a field, but have none: {rows}.')
  return tf.shape(leaves[0], tf.int64)[0]


def map_dense(function: Callable[[Any], Any], nest: Any) -> Any:
  """Maps the dense tensors of a nest, or their specs.

  Ragged and sparse tensors, and data sets, are returned unchanged. They occur
  only in batches of one episode.
  """

  def map_leaf(leaf):
    is_data = isinstance(leaf, (tf.data.Dataset, tf.data.DatasetSpec))
    return leaf if is_data or is_composite(leaf) else function(leaf)

  return tf.nest.map_structure(map_leaf, nest)


def is_composite(leaf) -> bool:
  """Returns whether a leaf, or its spec, is ragged or sparse."""
  if isinstance(leaf, tf.TypeSpec):
    return not isinstance(leaf, tf.TensorSpec)
  return isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))


def copy_rows(nest: Any, start: Any, stop: Any) -> Any:
  """Returns a copy of the rows `[start, stop)`.

  A slice would share the memory of the tensor, which TensorFlow 2.15 does not
  protect if the tensor is an array of a `from_generator` data set: in
  `map(lambda a: a[:-1] * 2.0)`, the product is written into the array of the
  generator, and the next epoch reads it. So this function gathers the rows,
  which copies them. Strings do not share memory and are sliced.

  Args:
    nest: a nest of tensors `[N, ...]`; see `map_dense` about others.
    start: an integer `[]` in `[0, N]`.
    stop: an integer `[]` in `[0, N]`, of the same dtype.

  Returns:
    The nest, every leaf `[stop - start, ...]`.
  """
  index = tf.range(start, stop)
  return map_dense(
      lambda leaf: leaf[start:stop]
      if leaf.dtype == tf.string
      else tf.gather(leaf, index),
      nest,
  )


def slice_rows(nest: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
  """Returns the rows `[start, stop)` without a copy; see `copy_rows`."""
  # `leaf[start:stop]` would add the same operations for every leaf.
  begin, end = tf.reshape(start, [1]), tf.reshape(stop, [1])
  strides = tf.ones([1], end.dtype)
  return tf.nest.map_structure(
      lambda leaf: tf.strided_slice(leaf, begin, end, strides), nest
  )


def concat_rows(rows: Any, more_rows: Any) -> Any:
  """Concatenates two nests of tensors along their leading dimension."""
  return tf.nest.map_structure(
      lambda *leaves: tf.concat(leaves, 0), rows, more_rows
  )


def take(rows: Any, index: tf.Tensor) -> Any:
  """Gathers rows.

  Args:
    rows: a nest of tensors `[N, ...]`.
    index: int32 or int64 of any shape, with values in `[0, N)`.

  Returns:
    The nest, every leaf `index.shape + [...]`, its dtype unchanged.
  """
  return tf.nest.map_structure(lambda leaf: tf.gather(leaf, index), rows)


def take_filled(
    rows: Any,
    index: tf.Tensor,
    stop: tf.Tensor,
    *,
    before: str | float = 'zeros',
    after: str | float = 'zeros',
    start: int | tf.Tensor = 0,
) -> Any:
  """Gathers rows, and fills those outside of `[start, stop)`.

  Args:
    rows: a nest of tensors `[N, ...]`; `N > 0`, unless `index` is empty.
    index: int32 or int64 of any shape.
    stop: an integer `[]`, or of a shape that broadcasts to `index`: the end of
      the valid rows.
    before: the fill for an index below `start`: `"zeros"` (False, or an empty
      string); `"repeat"`, the first row; or a number, for leaves that are not
      strings.
    after: the fill for an index from `stop` on. `"repeat"` is the last row.
    start: the start of the valid rows, like `stop`.

  Returns:
    The nest, every leaf `index.shape + [...]`, its dtype unchanged.

  Raises:
    ValueError: if the dtype of a leaf cannot hold the number. A float may be
      rounded.
  """
  start, stop = tf.cast(start, index.dtype), tf.cast(stop, index.dtype)
  last = tf.maximum(stop - 1, start)
  gathered = take(rows, tf.clip_by_value(index, start, last))
  if before == after:
    masks = [(before, is_in_range(index, stop, start))]
  else:
    masks = [(before, index >= start), (after, index < stop)]
  for fill, is_valid in masks:
    if fill != 'repeat':
      value = 0 if fill == 'zeros' else fill
      gathered = fill_unless(is_valid, gathered, value)
  return gathered


def is_in_range(index: tf.Tensor, stop: Any, start: Any = 0) -> tf.Tensor:
  """Returns, bool, which indices are in `[start, stop)`."""
  return (index >= start) & (index < stop)


def check_fill(fill: str | float, choices: Sequence[str] = FILLS) -> None:
  """Raises a ValueError if `fill` is neither one of `choices` nor a number."""
  if isinstance(fill, str):
    checks.check_choice('fill', fill, choices)
  elif not isinstance(fill, numbers.Real):
    raise ValueError(
        f'fill must be one of {choices}, or a number, but is {fill!r}.'
    )


def fill_unless(is_valid: tf.Tensor, rows: Any, value: Any = 0) -> Any:
  """Replaces rows by a number where `is_valid` is False.

  Args:
    is_valid: bool, of any shape.
    rows: a nest of `is_valid.shape + [...]`.
    value: the number. 0 means False for bools, and an empty string for strings.

  Returns:
    The nest, its dtypes and shapes unchanged.

  Raises:
    ValueError: if the dtype of a leaf cannot hold the number.
  """

  def select(path, leaf):
    fill = _fill_value(path, value, leaf.dtype)
    return tf.where(expand_to_rank(is_valid, leaf), leaf, fill)

  return tree.map_structure_with_path(select, rows)


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
        f'{paths.name_of(path)} is {dtype.name}, which cannot hold the fill'
        f' value {value}. Choose another fill, or cast the field first.'
    )
  return tf.constant(convert(value), dtype)


def expand_to_rank(column: tf.Tensor, leaf: tf.Tensor) -> tf.Tensor:
  """Appends dimensions of 1 to a column, up to the rank of a leaf."""
  missing = leaf.shape.rank - column.shape.rank
  return column[(...,) + (tf.newaxis,) * missing]


def swap_time(nest: Any) -> Any:
  """Swaps the first two dimensions of every leaf: batch-major, time-major."""

  def swap(leaf):
    rank = leaf.shape.rank
    return tf.transpose(leaf, [1, 0, *range(2, rank)])

  return tf.nest.map_structure(swap, nest)
