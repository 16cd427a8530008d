"""Columns of Arrow, as in parquet files and HuggingFace data sets, to NumPy."""

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

# How many rows of a file are read at a time, if each is a step.
_BATCH_SIZE = 256
# How much of the footers of files is held in memory, as it is in the files.
_MAX_FOOTER_BYTES = 4 << 20
# If more rows than these are skipped, a stream starts again at a row group.
_MAX_SKIPPED = 4096
_IMAGE_BYTES = 'bytes'
# The name of one of several files, as Hugging Face `datasets` writes them.
_SHARD = re.compile(r'(.+)-(\d+)-of-(\d+)\.parquet')
# The bytes of a value, by parquet's type; those of text are not known.
_WIDTHS = {'INT32': 4, 'FLOAT': 4, 'INT64': 8, 'DOUBLE': 8, 'INT96': 12}


class FileError(ValueError):
  """A file that cannot be read, or differs from the other files of its data.

  Attributes:
    path: the path of the file, which the message names, too.
  """

  def __init__(self, path: str, message: str):
    super().__init__(message)
    self.path = path


@contextlib.contextmanager
def open_errors(path: str) -> Iterator[None]:
  """Turns errors while a file is read into FileErrors that name it."""
  try:
    yield
  except FileNotFoundError:
    raise FileError(path, f'There is no file {path}.') from None
  except (pa.ArrowException, OSError) as e:
    if isinstance(e, OSError) and e.errno not in (None, errno.EINVAL):
      raise
    hint = files.pointer_hint(path)
    raise FileError(path, hint or f'{path} is not a whole file: {e}') from e


def open_parquet(path: str) -> parquet.ParquetFile:
  """Opens a parquet file, on the local disk.

  Raises:
    ValueError: if there is no such file, if it is damaged, or if a column of a
      row group expands beyond the limit.
  """
  with open_errors(path):
    file = parquet.ParquetFile(path)
  _check_sizes(path, file.metadata)
  return file


def _check_sizes(path: str, metadata: Any) -> int:
  """Returns the bytes of a parquet file in memory.

  Raises:
    FileError: if a column of a row group expands beyond the limit.
  """
  sizes = _expanded_sizes(metadata)
  file_bytes = os.path.getsize(path)
  total = sum(sizes.values())
  # All columns are checked only if the sum is too large.
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
  """Returns the bytes in memory of each column of each row group."""
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
  """Yields the rows of a parquet file, in batches of one row group each.

  `ParquetFile.iter_batches` keeps the row groups that it has read in memory.
  """
  for group in range(file.num_row_groups):
    yield from file.iter_batches(
        batch_size, row_groups=[group], columns=columns
    )


def read_table(path: str) -> pa.Table:
  """Reads a file of parquet, or of Arrow's own format.

  Raises:
    ValueError: if there is no such file, or if it is damaged.
  """
  with open_errors(path):
    if path.endswith('.parquet'):
      with parquet.ParquetFile(path) as file:
        size = _check_sizes(path, file.metadata)
        limits.check_expanded(path, size, os.path.getsize(path))
        return file.read()
    with pa.memory_map(path) as file:
      table = pa.ipc.open_file(file).read_all()
      # Arrow ends the process at offsets of lists beyond their values.
      table.validate(full=True)
      return table


def find_parquet(path: str) -> list[str]:
  """Returns the parquet files at a path, a file or a folder, sorted by name.

  Raises:
    ValueError: if a shard is missing, as the names of the others tell:
      `train-00000-of-00002.parquet`.
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
            f'There is no file {os.path.join(folder, other)}, but {name}, which'
            f' is one of {int(shard[3])} files. Copy it again.'
        )
  return paths


class Footer(NamedTuple):
  """What the footer of a parquet file says of its rows."""

  num_rows: int
  types: Mapping[str, pa.DataType]


def read_footers(
    paths: Sequence[str],
) -> tuple[dict[str, Footer], dict[str, FileError]]:
  """Returns the footers of parquet files, and the errors of damaged files.

  Raises:
    FileError: if all are damaged.
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
  """Opens parquet files; the footers of the last ones are not read again.

  All columns of some rows are read before those of later rows, one column after
  the other. So the footer of each file is read and checked once.
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
    column: the column whose value is the same in all rows of an episode, and
      differs in the rows of the next.

  Yields:
    This value, and the rows of the episode, which may begin in one file and end
    in the next.
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
                f'The rows of one episode are apart: {column} is'
                f' {values[begin]} again in {path}, after the rows of other'
                ' episodes. Write the rows of an episode next to each other.'
            )
          waiting.append(batch.slice(begin, end - begin))
  if waiting:
    yield waiting[0][column][0].as_py(), pa.Table.from_batches(waiting)


@contextlib.contextmanager
def open_columns(
    footers: Mapping[str, Footer], unused: Collection[str] = ()
) -> Iterator[dict[str, columns_lib.Column]]:
  """Yields the columns of parquet files, by their names.

  Reading a column forward is fast. Reading earlier rows starts again at the
  first row of their row group.

  Args:
    footers: the footers of the files, by their paths, whose rows follow one
      another.
    unused: the names of columns that are left out.

  Raises:
    FileError: if a file is damaged, or lacks a column of the first, as most do
      not.
    ValueError: if there are no rows, or if the first rows of a column are not
      arrays of one shape.
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
    if 2 * len(lacking) >= len(paths):  # The first one may be the odd one.
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
          f'{first}: {e} If the column is not needed, leave it out:'
          f' column_names={{{name!r}: None}}.'
      ) from e
    rows = _Rows(opener, places, name, sample[:0])
    shape = (sum(counts), *sample.shape[1:])
    columns[name] = columns_lib.Column(sample.dtype, shape, rows.read)
  yield columns


def _first_rows(
    opener: _Opener, path: str, names: Sequence[str]
) -> pa.RecordBatch:
  """Returns the first rows of a parquet file that can be read."""
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
  """Reads the rows of a column of parquet files, forward as a stream."""

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
      places: the number of the first row of each file, by its path.
      name: the name of the column.
      empty: no rows, of the right dtype and shape.
    """
    self._opener = opener
    self._places = places
    self._name = name
    self._held = self._nothing = empty
    self._first = 0  # The number of the first row that is held.
    self._stream: Iterator[tuple[int, np.ndarray]] = iter(())
    # Rows that cannot be read, and why.
    self._damaged: list[tuple[range, FileError]] = []

  def read(self, begin: int, end: int) -> np.ndarray:
    """Returns the rows from `begin` to `end`."""
    for rows, error in self._damaged:
      if begin < rows.stop and end > rows.start:
        raise error
    held_end = self._first + len(self._held)
    is_ahead = any(
        self._first <= rows.start < begin for rows, _ in self._damaged
    )
    if is_ahead or not self._first <= begin <= held_end + _MAX_SKIPPED:
      self._held = self._nothing
    if not len(self._held):
      self._stream = self._batches(begin)
    arrays = [self._nothing]
    while begin < end:
      self._advance_to(begin)
      rows = self._held[begin - self._first : end - self._first]
      arrays.append(rows)
      begin += len(rows)
    return np.concatenate(arrays)

  def _advance_to(self, row: int) -> None:
    while not self._first <= row < self._first + len(self._held):
      batch = next(self._stream, None)
      if batch is None:
        raise ValueError(f'{self._name} has no row {row}.')
      self._first, self._held = batch

  def _batches(self, begin: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields rows, and the number of the first, from a row group on."""
    ends = [*self._places.values()][1:] + [math.inf]
    for (path, place), file_end in zip(self._places.items(), ends):
      if file_end <= begin:
        continue
      with self._opener.open(path) as file:
        # A batch of one row group, so that damage in another does no harm.
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
            # What follows in the row group cannot be found.
            self._damaged.append((range(place, end), e))
            self._held = self._nothing
            raise

  def _to_array(self, path: str, batch: pa.RecordBatch) -> np.ndarray:
    place = f'{self._name}, in {path},'
    try:
      rows = to_array(batch[self._name], self._nothing.shape[1:], place)
    except ValueError as e:
      raise FileError(path, str(e)) from e
    if rows.dtype != self._nothing.dtype:
      raise FileError(
          path,
          f'The rows of {place} are {rows.dtype}, but those before are'
          f' {self._nothing.dtype}.',
      )
    return rows


def read_row(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
  """Returns the values of a row: the array of a list, or a single value."""
  return {
      name: to_array(column.slice(row, 1).flatten(), None, name)
      if is_list(column.type)
      else column[row].as_py()
      for name, column in zip(batch.schema.names, batch.columns)
  }


def to_array(column: Any, shape: Sequence[int] | None, name: str) -> np.ndarray:
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
