"""Converts columns of Arrow, as in parquet files and HuggingFace data sets."""

import contextlib
import json
import math
from typing import Iterator, Optional, Sequence, Union

import numpy as np
import pyarrow as pa
from pyarrow import compute

_IMAGE_BYTES = 'bytes'


@contextlib.contextmanager
def open_errors(path: str) -> Iterator[None]:
  """Turns errors while a file is read into ValueErrors that name it."""
  try:
    yield
  except FileNotFoundError:
    raise ValueError(f'There is no file {path}.') from None
  except pa.ArrowException as e:
    raise ValueError(f'{path} is not a whole file: {e}') from e


def to_array(
    column: Union[pa.Array, pa.ChunkedArray],
    shape: Optional[Sequence[int]],
    name: str,
) -> np.ndarray:
  """Returns the rows of a column of numbers, text, bytes, or lists of numbers.

  Args:
    column: the column, of `N` rows.
    shape: the shape of a row that is a list, which may be nested; None if all
      lists of this column are equally long.
    name: the name of the column, for errors.

  Returns:
    An array `[N]` or `[N, *shape]`. Text, bytes and the images of HuggingFace,
    which stay encoded, are `bytes` in an array of objects.

  Raises:
    ValueError: if a row is empty, or if a list has another length.
  """
  if isinstance(column, pa.ChunkedArray):
    column = pa.concat_arrays(column.chunks)
  if isinstance(column, pa.ExtensionArray):
    column = column.storage
  num_rows = len(column)
  if pa.types.is_struct(column.type):
    column = column.field(column.type.get_field_index(_IMAGE_BYTES))
  _check_no_nulls(column, name)
  if _is_text(column.type):
    values = [
        value.encode() if isinstance(value, str) else value
        for value in column.to_pylist()
    ]
    return np.array(values, object)
  if not is_list(column.type):
    return column.to_numpy(zero_copy_only=False)
  found = ()
  while is_list(column.type):
    lengths = set(compute.list_value_length(column).unique().to_pylist())
    if len(lengths) > 1:
      raise ValueError(
          f'The rows of {name} must be lists of one length, but have'
          f' {sorted(lengths)}.'
      )
    column = column.flatten()
    found = (*found, *lengths)
  _check_no_nulls(column, name)
  shape = tuple(found if shape is None else shape)
  if len(column) != num_rows * math.prod(shape):
    raise ValueError(
        f'The rows of {name} must be lists of the shape {shape}, but have the'
        f' shape {found}.'
    )
  return column.to_numpy(zero_copy_only=False).reshape(num_rows, *shape)


def to_json(column: Union[pa.Array, pa.ChunkedArray]) -> np.ndarray:
  """Returns the rows of any column as JSON text, `bytes` in an array `[N]`."""
  return np.array(
      [
          json.dumps(row, ensure_ascii=False).encode()
          for row in column.to_pylist()
      ],
      object,
  )


def is_json(type_: pa.DataType) -> bool:
  """Returns whether rows are lists of dicts, which no array can hold."""
  return is_list(type_) and (
      pa.types.is_struct(type_.value_type)
      or pa.types.is_null(type_.value_type)
      or is_json(type_.value_type)
  )


def is_list(type_: pa.DataType) -> bool:
  """Returns whether rows are lists."""
  return (
      pa.types.is_list(type_)
      or pa.types.is_large_list(type_)
      or pa.types.is_fixed_size_list(type_)
  )


def _is_text(type_: pa.DataType) -> bool:
  return (
      pa.types.is_string(type_)
      or pa.types.is_large_string(type_)
      or pa.types.is_binary(type_)
      or pa.types.is_large_binary(type_)
  )


def _check_no_nulls(column: pa.Array, name: str) -> None:
  if column.null_count:
    raise ValueError(
        f'{name} must have a value in every row, but {column.null_count} of'
        f' {len(column)} are empty.'
    )
