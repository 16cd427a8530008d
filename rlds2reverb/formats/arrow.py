"""Converts Arrow columns, from parquet files and the like, to NumPy arrays."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import json
import math
import os
import re
from typing import Any, NamedTuple

from etils import epy
import numpy as np

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import limits
from rlds2reverb.formats import columns as columns_lib

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import pyarrow as pa
  from pyarrow import compute
  from pyarrow import parquet

# The number of rows that are read at a time if a row is a step.
_BATCH_SIZE = 256
# The maximum size of the cached footers, as serialized in the files.
_MAX_FOOTER_BYTES = 4 << 20
# If more rows are skipped, the stream restarts at a row group.
_MAX_SKIPPED = 4096
_IMAGE_BYTES = 'bytes'
# The file name of a shard that Hugging Face `datasets` writes.
_SHARD = re.compile(r'(.+)-(\d+)-of-(\d+)\.parquet')
# The bytes of a value by parquet type, except for text.
_WIDTHS = {'INT32': 4, 'FLOAT': 4, 'INT64': 8, 'DOUBLE': 8, 'INT96': 12}


class FileError(ValueError):
  """A damaged file, or a file whose columns differ from the other files.

  Attributes:
    path: the path of the file. The message contains it, too.
  """

  def __init__(self, path: str, message: str):
    super().__init__(message)
    self.path = path


@contextlib.contextmanager
def open_errors(path: str) -> Iterator[None]:
  """Converts errors of reading a file to FileErrors that name the file."""
  try:
    yield
  except FileNotFoundError:
    raise FileError(path, f'There is no file {path}.') from None
  except (pa.ArrowException, OSError) as e:
    if isinstance(e, OSError) and e.errno not in (None, errno.EINVAL):
      raise
    hint = files.pointer_hint(path)
    raise FileError(path, hint or f'{path} is not a complete file: {e}') from e


def open_parquet(path: str) -> parquet.ParquetFile:
  """Opens a local parquet file.

  Raises:
    ValueError: if the file does not exist or is damaged, or if a column of a
      row group expands beyond the limit.
  """
  with open_errors(path):
    file = parquet.ParquetFile(path)
  _check_sizes(path, file.metadata)
  return file


def _check_sizes(path: str, metadata: Any) -> int:
  """Returns the size of a parquet file in memory, in bytes.

  Raises:
    FileError: if a column of a row group expands beyond the limit.
  """
  sizes = _expanded_sizes(metadata)
  file_bytes = os.path.getsize(path)
  total = sum(sizes.values())
  # Columns are checked separately only if their sum is too large.
  if total > limits.max_expanded_bytes(file_bytes):
    for (group, name), size in sizes.items():
      try:
        limits.check_expanded(
            f'{name} of row group {group} of {path}', size, file_bytes
        )
      except ValueError as e:
        raise FileError(path, str(e)) from e
  return total


def _expanded_sizes(metadata: Any) -> dict[tuple[int, str], int]:
  """Returns the size in memory of each column of each row group."""
  sizes = {}
  for group in range(metadata.num_row_groups):
    rows = metadata.row_group(group)
    for index in range(rows.num_columns):
      column = rows.column(index)
      width = _WIDTHS.get(column.physical_type, 0)
      sizes[group, column.path_in_schema] = max(
          column.total_uncompressed_size, column.num_values * width
      )
  return sizes


def iter_batches(
    file: parquet.ParquetFile,
    batch_size: int,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
  """Yields the rows of a parquet file in batches within row groups.

  `ParquetFile.iter_batches` would keep all row groups in memory.
  """
  for group in range(file.num_row_groups):
    yield from file.iter_batches(
        batch_size, row_groups=[group], columns=columns
    )


def read_table(path: str) -> pa.Table:
  """Reads a parquet file or an Arrow IPC file.

  Raises:
    ValueError: if the file does not exist or is damaged.
  """
  with open_errors(path):
    if path.endswith('.parquet'):
      with parquet.ParquetFile(path) as file:
        size = _check_sizes(path, file.metadata)
        limits.check_expanded(path, size, os.path.getsize(path))
        return file.read()
    with pa.memory_map(path) as file:
      table = pa.ipc.open_file(file).read_all()
      # Arrow crashes the process if list offsets are out of range.
      table.validate(full=True)
      return table


def find_parquet(path: str) -> list[str]:
  """Returns a parquet file, or all parquet files in a folder, sorted by name.

  Raises:
    ValueError: if a shard is missing according to the names of the others, such
      as `train-00000-of-00002.parquet`.
  """
  paths = [
      file
      for file in files.local_files(path)
      if file == path or file.endswith('.parquet')
  ]
  for file in paths if os.path.isdir(path) else ():
    folder, name = os.path.split(file)
    shard = _SHARD.fullmatch(name)
    if shard is None:
      continue
    for number in range(int(shard[3])):
      other = f'{shard[1]}-{number:0{len(shard[2])}}-of-{shard[3]}.parquet'
      if os.path.join(folder, other) not in paths:
        raise ValueError(
            f'The shard {os.path.join(folder, other)} is missing: {name} is one'
            f' of {int(shard[3])} shards. Copy it again.'
        )
  return paths


class Footer(NamedTuple):
  """The number of rows and the column types of a parquet file."""

  num_rows: int
  types: Mapping[str, pa.DataType]


def read_footers(
    paths: Sequence[str],
) -> tuple[dict[str, Footer], dict[str, FileError]]:
  """Reads the footers of parquet files.

  Returns:
    The footers by path, and the errors of damaged files by path.

  Raises:
    FileError: if all files are damaged.
  """
  footers: dict[str, Footer] = {}
  damaged: dict[str, FileError] = {}
  types: dict[str, pa.DataType] = {}
  for path in paths:
    try:
      with open_parquet(path) as file:
        schema = file.schema_arrow
        column_types = dict(zip(schema.names, schema.types))
        types = (
            types if column_types == types else column_types
        )  # Most files share one.
        footers[path] = Footer(file.metadata.num_rows, types)
    except FileError as e:
      damaged[path] = e
  if not footers:
    raise damaged[paths[0]]
  return footers, damaged


class _Opener:
  """Opens parquet files, with a cache of footers.

  The columns of a range of rows are read one after the other, so each file is
  opened many times.
  """

  def __init__(self):
    self._metadata: dict[str, Any] = {}

  def open(self, path: str) -> parquet.ParquetFile:
    """Returns an open file; see `open_parquet`."""
    if path in self._metadata:
      with open_errors(path):
        return parquet.ParquetFile(path, metadata=self._metadata[path])
    file = open_parquet(path)
    self._metadata[path] = file.metadata
    while len(self._metadata) > 1 and _MAX_FOOTER_BYTES < sum(
        metadata.serialized_size for metadata in self._metadata.values()
    ):
      del self._metadata[next(iter(self._metadata))]
    return file


def read_episodes(
    paths: Sequence[str], column: str
) -> Iterator[tuple[Any, pa.Table]]:
  """Yields the episodes in parquet files whose rows are steps.

  Args:
    paths: the files.
    column: the column that identifies the episode of a row.

  Yields:
    The value of this column, and the rows of the episode, which may begin in
    one file and end in the next.
  """
  waiting: list[pa.RecordBatch] = []
  visited = set()
  for path in paths:
    with open_parquet(path) as file, open_errors(path):
      names = file.schema_arrow.names
      if column not in names:
        raise ValueError(f'{path} has no column {column}, but {names}.')
      for batch in iter_batches(file, _BATCH_SIZE):
        values = batch[column].to_numpy(zero_copy_only=False)
        cuts = 1 + np.flatnonzero(values[1:] != values[:-1])
        for begin, end in zip([0, *cuts], [*cuts, len(values)]):
          if waiting and waiting[-1][column][0].as_py() != values[begin]:
            visited.add(waiting[0][column][0].as_py())
            yield waiting[0][column][0].as_py(), pa.Table.from_batches(waiting)
            waiting = []
          if values[begin] in visited:
            raise ValueError(
                f'The rows of an episode are not contiguous: {column} is'
                f' {values[begin]} again in {path}, after the rows of other'
                ' episodes. Write the rows of an episode one after the other.'
            )
          waiting.append(batch.slice(begin, end - begin))
  if waiting:
    yield waiting[0][column][0].as_py(), pa.Table.from_batches(waiting)


@contextlib.contextmanager
def open_columns(
    footers: Mapping[str, Footer], unused: Collection[str] = ()
) -> Iterator[dict[str, columns_lib.LazyColumn]]:
  """Yields the columns of parquet files by name.

  Sequential reads are fast. Reading earlier rows restarts at the first row of
  their row group.

  Args:
    footers: the footers of the files by path, in the order of their rows.
    unused: the names of columns to skip.

  Raises:
    FileError: if a file is damaged, or if it lacks a column that most files
      have.
    ValueError: if there are no rows, or if the first rows of a column do not
      have the same shape.
  """
  paths = [*footers]
  counts = [footer.num_rows for footer in footers.values()]
  names = {path: footer.types for path, footer in footers.items()}
  wanted = [name for name in names[paths[0]] if name not in unused]
  lacking = [path for path in paths if not {*wanted} <= {*names[path]}]
  if lacking:
    missing = sorted({*wanted} - {*names[lacking[0]]})
    message = (
        f'{lacking[0]} has no column {", ".join(missing)}, which'
        f' {paths[0]} has.'
    )
    if 2 * len(lacking) >= len(paths):  # The first file may be the exception.
      raise ValueError(message)
    raise FileError(lacking[0], message)
  if not sum(counts):
    raise ValueError(f'There are no rows in {", ".join(paths[:3])}.')
  places = dict(zip(paths, np.cumsum([0, *counts]).tolist()))
  first = paths[int(np.flatnonzero(counts)[0])]
  opener = _Opener()
  batch = _first_rows(opener, first, wanted)
  columns = {}
  for name in wanted:
    try:
      sample = to_array(batch[name], None, name)
    except ValueError as e:
      raise ValueError(
          f'{first}: {e} If the column is not needed, skip it:'
          f' column_names={{{name!r}: None}}.'
      ) from e
    rows = _Rows(opener, places, name, sample[:0])
    shape = (sum(counts), *sample.shape[1:])
    columns[name] = columns_lib.LazyColumn(sample.dtype, shape, rows.read)
  yield columns


def _first_rows(
    opener: _Opener, path: str, names: Sequence[str]
) -> pa.RecordBatch:
  """Returns the rows at the start of the first undamaged row group."""
  errors = []
  with opener.open(path) as file:
    for group in range(file.num_row_groups):
      if not file.metadata.row_group(group).num_rows:
        continue
      try:
        with open_errors(path):
          return next(
              file.iter_batches(_BATCH_SIZE, row_groups=[group], columns=names)
          )
      except FileError as e:
        errors.append(e)
  raise errors[0]


class _Rows:
  """Reads the rows of a column of parquet files as a stream."""

  def __init__(
      self,
      opener: _Opener,
      places: Mapping[str, int],
      name: str,
      empty: np.ndarray,
  ):
    """Initializes the reader.

    Args:
      opener: opens the files.
      places: the first row of each file, by path.
      name: the name of the column.
      empty: an array `[0, ...]` with the dtype and shape of the rows.
    """
    self._opener = opener
    self._places = places
    self._name = name
    self._rows = self._empty = empty
    self._first = 0  # The first row in the buffer.
    self._stream: Iterator[tuple[int, np.ndarray]] = iter(())
    # Ranges of damaged rows, with their errors.
    self._damaged: list[tuple[range, FileError]] = []

  def read(self, begin: int, end: int) -> np.ndarray:
    """Returns the rows from `begin` to `end`."""
    for rows, error in self._damaged:
      if begin < rows.stop and end > rows.start:
        raise error
    end_of_rows = self._first + len(self._rows)
    is_ahead = any(
        self._first <= rows.start < begin for rows, _ in self._damaged
    )
    if is_ahead or not self._first <= begin <= end_of_rows + _MAX_SKIPPED:
      self._rows = self._empty
    if not len(self._rows):
      self._stream = self._batches(begin)
    arrays = [self._empty]
    while begin < end:
      self._advance_to(begin)
      rows = self._rows[begin - self._first : end - self._first]
      arrays.append(rows)
      begin += len(rows)
    return np.concatenate(arrays)

  def _advance_to(self, row: int) -> None:
    while not self._first <= row < self._first + len(self._rows):
      batch = next(self._stream, None)
      if batch is None:
        raise ValueError(f'{self._name} has no row {row}.')
      self._first, self._rows = batch

  def _batches(self, begin: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields rows and the index of the first, starting at a row group."""
    ends = [*self._places.values()][1:] + [math.inf]
    for (path, place), file_end in zip(self._places.items(), ends):
      if file_end <= begin:
        continue
      with self._opener.open(path) as file:
        # Row groups are read separately, so damage affects only one.
        for group in range(file.num_row_groups):
          end = place + file.metadata.row_group(group).num_rows
          if end <= begin:
            place = end
            continue
          try:
            with open_errors(path):
              for batch in file.iter_batches(
                  _BATCH_SIZE, row_groups=[group], columns=[self._name]
              ):
                rows = self._to_array(path, batch)
                yield place, rows
                place += len(rows)
          except FileError as e:
            # The remaining rows of the row group cannot be located.
            self._damaged.append((range(place, end), e))
            self._rows = self._empty
            raise

  def _to_array(self, path: str, batch: pa.RecordBatch) -> np.ndarray:
    place = f'{self._name}, in {path},'
    try:
      rows = to_array(batch[self._name], self._empty.shape[1:], place)
    except ValueError as e:
      raise FileError(path, str(e)) from e
    if rows.dtype != self._empty.dtype:
      raise FileError(
          path,
          f'The rows of {place} are {rows.dtype}, but the rows before them are'
          f' {self._empty.dtype}.',
      )
    return rows


def read_row(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
  """Returns the values of a row; lists are arrays."""
  return {
      name: to_array(column.slice(row, 1).flatten(), None, name)
      if is_list(column.type)
      else column[row].as_py()
      for name, column in zip(batch.schema.names, batch.columns)
  }


def to_array(column: Any, shape: Sequence[int] | None, name: str) -> np.ndarray:
  """Converts a column of numbers, text, bytes, or lists of numbers to NumPy.

  Args:
    column: an Arrow array or chunked array of `N` rows.
    shape: the shape of a row that is a list, which may be nested; None to use
      the length of the lists.
    name: the name of the column, for errors.

  Returns:
    An array `[N]` or `[N, *shape]`. Text, bytes and encoded HuggingFace images
    are `bytes` in an object array. Lists of dicts become JSON text.

  Raises:
    ValueError: if a row is null, or if lists differ in length.
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
    if column.type.get_field_index(_IMAGE_BYTES) < 0:
      keys = [field.name for field in column.type]
      raise ValueError(
          f'The rows of {name} are dicts of {keys}, but must be numbers,'
          ' text, images, or lists of numbers.'
      )
    column = column.field(column.type.get_field_index(_IMAGE_BYTES))
  _check_no_nulls(column, name)
  if is_text(column.type) or is_binary(column.type):
    return np.array(column.cast(pa.large_binary()).to_pylist(), object)
  if not is_list(column.type):
    return column.to_numpy(zero_copy_only=False)
  row_shape = ()
  while is_list(column.type):
    lengths = set(compute.list_value_length(column).unique().to_pylist())
    if len(lengths) > 1:
      raise ValueError(
          f'The rows of {name} must be lists of one length, but have'
          f' {sorted(lengths)}.'
      )
    column = column.flatten()
    row_shape = (*row_shape, *lengths)
  _check_no_nulls(column, name)
  shape = tuple(row_shape if shape is None else shape)
  if len(column) != num_rows * math.prod(shape):
    raise ValueError(
        f'The rows of {name} must be lists of the shape {shape}, but have the'
        f' shape {row_shape}.'
    )
  return column.to_numpy(zero_copy_only=False).reshape(num_rows, *shape)


def is_list(type_: pa.DataType) -> bool:
  """Returns whether rows are lists."""
  return isinstance(
      type_, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
  )


def is_text(type_: pa.DataType) -> bool:
  """Returns whether rows are text."""
  return pa.types.is_string(type_) or pa.types.is_large_string(type_)


def is_binary(type_: pa.DataType) -> bool:
  """Returns whether rows are bytes of any length."""
  return pa.types.is_binary(type_) or pa.types.is_large_binary(type_)


def _is_json(type_: pa.DataType) -> bool:
  """Returns whether rows are lists of dicts, at any depth."""
  return is_list(type_) and (
      pa.types.is_struct(type_.value_type)
      or pa.types.is_null(type_.value_type)
      or _is_json(type_.value_type)
  )


def _check_no_nulls(column: pa.Array, name: str) -> None:
  if column.null_count:
    raise ValueError(
        f'{name} must have a value in every row, but {column.null_count} of'
        f' {len(column)} are null.'
    )
