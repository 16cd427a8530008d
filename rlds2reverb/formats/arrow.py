"""Columns of Arrow, as in parquet files and HuggingFace data sets, to NumPy."""

import contextlib
import json
import math
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyarrow import parquet

from rlds2reverb.datasets import files

# How many rows of a file are read at a time, if each is a step.
_BATCH_SIZE = 256
_IMAGE_BYTES = 'bytes'
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


@contextlib.contextmanager
def open_errors(path: str) -> Iterator[None]:
  """Turns errors while a file is read into ValueErrors that name it."""
  try:
    yield
  except FileNotFoundError:
    raise ValueError(f'There is no file {path}.') from None
  except pa.ArrowException as e:
    raise ValueError(f'{path} is not a whole file: {e}') from e


def open_parquet(path: str) -> parquet.ParquetFile:
  """Opens a parquet file, on the local disk.

  Raises:
    ValueError: if there is no such file, or if it is damaged.
  """
  with open_errors(path):
    return parquet.ParquetFile(path)


def read_table(path: str) -> pa.Table:
  """Reads a file of parquet, or of Arrow's own format.

  Raises:
    ValueError: if there is no such file, or if it is damaged.
  """
  with open_errors(path):
    if path.endswith('.parquet'):
      return parquet.read_table(path, partitioning=None)
    with pa.memory_map(path) as file:
      return pa.ipc.open_file(file).read_all()


def find_parquet(path: str) -> List[str]:
  """Returns the parquet files at a path, a file or a folder, sorted by name."""
  return [
      found
      for found in files.local_files(path)
      if found == path or found.endswith('.parquet')
  ]


def read_episodes(
    paths: Sequence[str], column: str
) -> Iterator[Tuple[Any, pa.Table]]:
  """Yields the episodes in parquet files whose rows are steps.

  Args:
    paths: the files.
    column: the column whose value is the same in all rows of an episode, and
      differs in the rows of the next.

  Yields:
    This value, and the rows of the episode, which may begin in one file and end
    in the next.
  """
  waiting: List[pa.RecordBatch] = []
  for path in paths:
    with open_parquet(path) as file:
      for batch in file.iter_batches(_BATCH_SIZE):
        values = batch[column].to_numpy(zero_copy_only=False)
        cuts = 1 + np.flatnonzero(values[1:] != values[:-1])
        for begin, end in zip([0, *cuts], [*cuts, len(values)]):
          if waiting and waiting[-1][column][0].as_py() != values[begin]:
            yield waiting[0][column][0].as_py(), pa.Table.from_batches(waiting)
            waiting = []
          waiting.append(batch.slice(begin, end - begin))
  if waiting:
    yield waiting[0][column][0].as_py(), pa.Table.from_batches(waiting)


def read_rows(batch: pa.RecordBatch) -> Iterator[Dict[str, Any]]:
  """Yields what each row has: the array of a list, or a single value."""
  for row in range(len(batch)):
    yield {
        name: to_array(column.slice(row, 1).flatten(), None, name)
        if is_list(column.type)
        else column[row].as_py()
        for name, column in zip(batch.schema.names, batch.columns)
    }


def to_array(
    column: Any, shape: Optional[Sequence[int]], name: str
) -> np.ndarray:
  """Returns the rows of a column of numbers, text, bytes, or lists of numbers.

  Args:
    column: the column, of `N` rows, an array of Arrow's or a chunked one.
    shape: the shape of a row that is a list, which may be nested; None if all
      lists of this column are equally long.
    name: the name of the column, for errors.

  Returns:
    An array `[N]` or `[N, *shape]`. Text, bytes and the images of HuggingFace,
    which stay encoded, are `bytes` in an array of objects; so is the JSON text
    of lists of dicts, which no array can hold.

  Raises:
    ValueError: if a row is empty, or if a list has another length.
  """
  if _is_json(column.type):
    rows = [json.dumps(row, ensure_ascii=False) for row in column.to_pylist()]
    return np.array([row.encode() for row in rows], object)
  if isinstance(column, pa.ChunkedArray):
    column = pa.concat_arrays(column.chunks)
  if isinstance(column, pa.ExtensionArray):
    column = column.storage
  num_rows = len(column)
  if pa.types.is_struct(column.type):
    column = column.field(column.type.get_field_index(_IMAGE_BYTES))
  _check_no_nulls(column, name)
  if column.type in _TEXTS:
    return np.array(column.cast(pa.large_binary()).to_pylist(), object)
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


def is_list(type_: pa.DataType) -> bool:
  """Returns whether rows are lists."""
  return isinstance(type_, _LISTS)


def _is_json(type_: pa.DataType) -> bool:
  """Returns whether rows are lists of dicts, however deep."""
  return is_list(type_) and (
      pa.types.is_struct(type_.value_type)
      or pa.types.is_null(type_.value_type)
      or _is_json(type_.value_type)
  )


def _check_no_nulls(column: pa.Array, name: str) -> None:
  if column.null_count:
    raise ValueError(
        f'{name} must have a value in every row, but {column.null_count} of'
        f' {len(column)} are empty.'
    )
