"""Columns: arrays with a row for each step, in memory or in a file.

A column is a NumPy array, an `h5py.Dataset` or a `LazyColumn`. Its name is its
path in the nest, with the keys joined by `/` as in HDF5: `infos/qpos`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, TypeAlias

from absl import logging
from etils import epy
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py

# The NumPy number types that TensorFlow supports.
_NUMBERS = tuple(map(np.dtype, '?bhilBHILefdFD'))
# The names of observations, actions and rewards in most formats.
NAMES = {
    rlds.OBSERVATION: 'observations',
    rlds.ACTION: 'actions',
    rlds.REWARD: 'rewards',
}
# The end of an error about a pickled array.
RUNS_CODE = (
    'has pickled Python objects, which can run any code when they are loaded.'
    ' They are not read.'
)
# The number of bytes that are compared at a time.
_CHUNK_BYTES = 8 << 20
# The maximum number of unused rows between two rows that are read together.
_MAX_GAP = 64
# Minari names the elements of a tuple `_index_0`, `_index_1` and so on.
_INDEX = '_index_'


@dataclasses.dataclass(frozen=True, eq=False)
class LazyColumn:
  """Rows that are read lazily, as from h5py.

  Attributes:
    dtype: the dtype of the rows.
    shape: the shape of all rows, `[N, ...]`.
    read: a function of `begin` and `end` that returns the rows between them.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  read: Callable[[int, int], np.ndarray]

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
    """Returns the rows of a slice, or of increasing indices."""
    if isinstance(rows, slice):
      begin, end, step = rows.indices(len(self))
      return self.read(begin, max(begin, end))[::step]
    if not len(rows):
      return self.read(0, 0)
    return self.read(rows[0], rows[-1] + 1)[np.asarray(rows) - rows[0]]


AnyColumn: TypeAlias = 'np.ndarray | h5py.Dataset | LazyColumn'


def part(
    column: AnyColumn, begin: int, end: int, shape: Any = None
) -> LazyColumn:
  """Returns a range of rows as a column, reshaped if `shape` is given."""
  shape = column.shape[1:] if shape is None else shape
  return LazyColumn(
      column.dtype,
      (end - begin, *shape),
      lambda first, last: np.reshape(
          column[begin + first : begin + last], (last - first, *shape)
      ),
  )


def reordered(column: AnyColumn, order: np.ndarray) -> LazyColumn:
  """Returns a column with its rows in another order.

  Args:
    column: the column.
    order: int64 `[M]`: the indices of rows of `column`.
  """

  def read_rows(begin: int, end: int) -> np.ndarray:
    rows, places = np.unique(order[begin:end], return_inverse=True)
    if not len(rows):
      return column[0:0]
    # Spans of rows are faster to read than single rows.
    spans = np.split(rows, np.flatnonzero(np.diff(rows) > _MAX_GAP) + 1)
    parts = [
        column[int(span[0]) : int(span[-1]) + 1][span - span[0]]
        for span in spans
    ]
    return np.concatenate(parts)[places.reshape(-1)]

  return LazyColumn(column.dtype, (len(order), *column.shape[1:]), read_rows)


def leaves(source: Mapping[str, Any]) -> dict[str, AnyColumn]:
  """Returns the columns in an HDF5 group or in a dict, by name.

  Args:
    source: an `h5py.Group`, or a dict of arrays, dicts and tuples. A key may be
      a path: `{'infos/qpos': array}`.
  """
  columns = {}
  for key, value in source.items():
    if isinstance(value, tuple):
      value = {f'{_INDEX}{index}': item for index, item in enumerate(value)}
    if isinstance(value, Mapping):
      columns |= {f'{key}/{name}': leaf for name, leaf in leaves(value).items()}
    else:
      is_column = isinstance(value, (np.ndarray, h5py.Dataset, LazyColumn))
      columns[key] = value if is_column else np.asarray(value)
  return columns


def nest(columns: Mapping[str, Any]) -> Any:
  """Returns columns as nested dicts and tuples; the inverse of `leaves`."""
  if columns.keys() == {''}:
    return columns['']
  below: dict[str, dict[str, Any]] = {}
  for name, column in columns.items():
    top, _, suffix = name.partition('/')
    below.setdefault(top, {})[suffix] = column
  nested = {top: nest(part) for top, part in below.items()}
  indices = [f'{_INDEX}{index}' for index in range(len(nested))]
  if nested and nested.keys() == set(indices):
    return tuple(nested[key] for key in indices)
  return nested


def below(name: str, names: Iterable[str]) -> list[str]:
  """Returns `name` and the names below it."""
  return [column for column in names if f'{column}/'.startswith(f'{name}/')]


def renamed(
    columns: Mapping[str, AnyColumn], names: Mapping[str, str | None]
) -> dict[str, AnyColumn]:
  """Renames columns.

  Args:
    columns: the columns by name.
    names: the old names by new name, of columns or of nests of columns. None
      removes the column.

  Raises:
    ValueError: if a column does not exist.
  """
  renamed = dict(columns)
  for name in (*names, *filter(None, names.values())):
    for below_new in below(name, columns):
      renamed.pop(below_new, None)
  for new, old in names.items():
    if old is None:
      continue
    below_old = below(old, columns)
    if not below_old:
      raise ValueError(
          f'There is no column {old}, which column_names maps to {new}.'
          f'{checks.did_you_mean(old, columns)} The columns are'
          f' {sorted(columns)}.'
      )
    renamed |= {new + name[len(old) :]: columns[name] for name in below_old}
  return renamed


def check_exclude(
    place: str, names: Iterable[str], exclude: Sequence[str]
) -> None:
  """Raises a ValueError if `exclude` is not a list of names in `names`."""
  paths.check_list('exclude', exclude)
  for name in exclude:
    checks.check_known(place, 'field', name, names)


def check_has(
    place: str, required: Iterable[str], names: Iterable[str], help: str = ''
) -> None:
  """Raises a ValueError if a required name is missing from `names`."""
  missing = [name for name in required if name not in names]
  if missing:
    raise ValueError(
        f'{place} has no {" and no ".join(missing)}, but {sorted(names)}.{help}'
    )


def warn_skipped(description: str, names: Iterable[str]) -> None:
  """Logs a warning with the names of skipped columns, if there are any."""
  text = ', '.join(names)
  if text:
    logging.warning('Skipped %s: %s.', description, text)


def is_readable(column: AnyColumn) -> bool:
  """Returns whether a column has rows of numbers or strings."""
  dtype = column.dtype
  if dtype.kind == 'O':
    is_known = h5py.check_vlen_dtype(dtype) in (None, str, bytes, np.uint8)
    is_known = is_known and h5py.check_ref_dtype(dtype) is None
  else:
    is_known = dtype.newbyteorder('=') in _NUMBERS or dtype.kind in 'SU'
  return bool(column.shape) and is_known


def has_rows(column: AnyColumn, *counts: int) -> bool:
  """Returns whether a column is readable and has one of the given lengths."""
  return is_readable(column) and len(column) in counts


def checked_spec(
    name: str, column: AnyColumn, place: str = ''
) -> tf.TensorSpec:
  """Returns the spec of one row of a column; see `row_spec`.

  Args:
    name: the name of the column.
    column: the column.
    place: the description of the column for errors; by default its name.

  Raises:
    ValueError: if the column has no rows, or if its rows are neither numbers
      nor strings.
  """
  if not is_readable(column):
    raise ValueError(
        f'{place or f"The column {name}"} must have a row of numbers or strings'
        f' for each step, but is {column.dtype} {column.shape}.'
    )
  if isinstance(column, np.ndarray) and column.dtype.kind == 'O':
    for index, value in enumerate(column.flat):
      is_bytes = getattr(value, 'dtype', None) == np.uint8 and value.ndim == 1
      if not is_bytes and not isinstance(value, (str, bytes)):
        row = index // int(np.prod(column.shape[1:]))
        raise ValueError(
            f'The column {name} has dtype object, so its values must be'
            f' strings, but row {row} is {value!r}, a {type(value).__name__}.'
            ' Convert it to a numeric dtype with astype, or skip it.'
        )
  return row_spec(column)


def row_spec(column: AnyColumn) -> tf.TensorSpec:
  """Returns the spec of one row of a readable column.

  Text, bytes, and rows of uint8 of varying length become strings.
  """
  dtype = tf.as_dtype(column.dtype.newbyteorder('='))
  limits.check_size(
      f'A row of {getattr(column, "name", "a column")}, {dtype.name}'
      f' {list(column.shape[1:])},',
      math.prod(column.shape[1:]) * column.dtype.itemsize,
  )
  return tf.TensorSpec(column.shape[1:], dtype)


def has_spec(column: AnyColumn, spec: tf.TensorSpec) -> bool:
  """Returns whether `row_spec(column)` is `spec`; fast if it is."""
  is_same = column.dtype == spec.dtype.as_numpy_dtype
  return (is_same and column.shape[1:] == spec.shape) or row_spec(
      column
  ) == spec


def read(
    column: AnyColumn, rows: slice | np.ndarray, spec: tf.TensorSpec
) -> np.ndarray:
  """Reads rows of a column.

  Args:
    column: the column.
    rows: the rows to read, as a slice or as increasing indices.
    spec: the spec of one row. If the spec is a string and the column is uint8,
      the bytes of a row become one string.

  Returns:
    An array `[rows, ...]`. Strings are `bytes` in an array of objects.
  """
  values = column[rows]
  if spec.dtype != tf.string:
    return np.asarray(values, spec.dtype.as_numpy_dtype)
  shape = values.shape[: 1 + spec.shape.rank]
  strings = np.empty(int(np.prod(shape)), object)
  flat = values.reshape(-1, *values.shape[len(shape) :])
  strings[:] = [
      value.encode() if isinstance(value, str) else bytes(value)
      for value in flat
  ]
  return strings.reshape(shape)


def equal_rows(first: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Returns whether each row is equal, bool `[N]`; NaN equals NaN."""
  same = np.asarray(first == other)
  if first.dtype.kind in 'fc':
    same |= (first != first) & (other != other)
  return same.reshape(len(first), math.prod(first.shape[1:])).all(1)


def find_jumps(
    column: AnyColumn,
    next_column: AnyColumn,
    spec: tf.TensorSpec | None = None,
) -> np.ndarray:
  """Returns the rows whose next observation is not the next row, `[N - 1]`.

  Args:
    column: observations `[N, ...]`, read in chunks.
    next_column: next observations, of the same shape.
    spec: the spec of one row; by default the spec of `column`.
  """
  spec = row_spec(column) if spec is None else spec
  chunk = max(_CHUNK_BYTES // steps_lib.estimate_step_bytes(spec), 1)
  jumps = np.zeros(max(len(column) - 1, 0), bool)
  for begin in range(0, len(jumps), chunk):
    end = min(begin + chunk, len(jumps))
    expected = read(next_column, slice(begin, end), spec)
    actual = read(column, slice(begin + 1, end + 1), spec)
    if not np.array_equal(expected, actual):
      jumps[begin:end] = ~equal_rows(expected, actual)
  return jumps


def check_next_rows(
    place: str,
    name: str,
    column: AnyColumn,
    next_name: str,
    next_column: AnyColumn,
) -> None:
  """Checks that the next observations of an episode repeat the observations.

  RLDS stores every observation once, so a different next observation would be
  lost.

  Args:
    place: the description of the episode for errors.
    name: the name of the observations.
    column: observations `[T, ...]`.
    next_name: the name of the next observations.
    next_column: next observations `[T, ...]`.

  Raises:
    ValueError: if the shapes differ, or if the next observation of a row is not
      the observation of the next row.
  """
  if column.shape != next_column.shape:
    raise ValueError(
        f'{next_name} of {place} has the shape {list(next_column.shape)}, but'
        f' {name} has {list(column.shape)}.'
    )
  if not is_readable(column) or not is_readable(next_column):
    return  # The column is skipped.
  jumps = np.flatnonzero(find_jumps(column, next_column))
  if jumps.size:
    step = int(jumps[0])
    raise ValueError(
        f'{next_name} at step {step} of {place} is not {name} at step'
        f' {step + 1}. They differ in {jumps.size} of {len(column) - 1} steps.'
        ' The steps belong to several episodes, are not in order, or have next'
        ' observations several steps ahead, as for n-step returns.'
    )


def row(value: Any) -> np.ndarray:
  """Returns a column of one value; NumPy strings would drop trailing zeros."""
  is_text = isinstance(value, (bytes, str))
  return np.asarray([value], object if is_text else None)


def zeros(length: int, spec: tf.TensorSpec) -> np.ndarray:
  """Returns rows of zeros or empty strings."""
  if spec.dtype == tf.string:
    return np.full((length, *spec.shape), b'', object)
  return np.zeros((length, *spec.shape), spec.dtype.as_numpy_dtype)
