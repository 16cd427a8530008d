"""Reads and writes the records of Reverb checkpoints.

A checkpoint is a directory that a Reverb server can start from. It holds three
files of records, `tables.tfrecord`, `items.tfrecord` and `chunks.tfrecord`, and
an empty file `DONE`, which is written last and marks a complete checkpoint.

Each file has a checksum, but a file that was rewritten with fewer records is
valid, too. For this reason everything that opens a checkpoint first calls
`read_index`, which compares the items with the counts of the tables, and looks
up every chunk that an item refers to. After a server has read a checkpoint, its
tables are compared with these counts, too.
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import os
from typing import Any, NamedTuple

from google.protobuf import message
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import errors
from rlds2reverb.replay import protos
from rlds2reverb.replay.checkpoint import validation

TABLES = 'tables.tfrecord'
ITEMS = 'items.tfrecord'
CHUNKS = 'chunks.tfrecord'
DONE = 'DONE'


class CheckpointError(RuntimeError):
  """Raised if the files of a checkpoint are damaged."""


class CheckpointIndex(NamedTuple):
  """The content of a checkpoint, in the order of its records.

  Attributes:
    tables: the records of the tables, by name.
    chunks: the keys of the chunks, uint64 `[K]`.
    episodes: the key of the episode of each chunk, uint64 `[K]`.
    items: the keys of the items, uint64 `[N]`.
    item_tables: the index of the table of each item in the sorted names, int64
      `[N]`.
    columns: the tensors of one table, see `read_index`.
  """

  tables: dict[str, protos.PriorityTableCheckpoint]
  chunks: np.ndarray
  episodes: np.ndarray
  items: np.ndarray
  item_tables: np.ndarray
  columns: dict[int, set[tuple[int, int]]]


def damage_error(directory: str, problem: str) -> CheckpointError:
  """Returns the error of a damaged checkpoint."""
  return CheckpointError(f'The checkpoint {directory} is damaged: {problem}.')


@contextlib.contextmanager
def _damage_errors(directory: str, file: str) -> Iterator[None]:
  """Raises errors of a file as errors of a damaged checkpoint."""
  try:
    yield
  except (FileNotFoundError, ValueError) as e:
    raise damage_error(directory, f'{file}: {e}') from e


def read_records(directory: str, file: str) -> Iterator[list[bytes]]:
  """Yields the records of a file in batches of a few megabytes.

  Raises:
    CheckpointError: if the file is missing or damaged.
  """
  with _damage_errors(directory, file):
    for batch in validation.read_records(os.path.join(directory, file)):
      yield list(batch.records())


def read_messages(
    directory: str, file: str, message_class: Any
) -> Iterator[list[Any]]:
  """Yields the records of a file in batches, as messages of a class.

  Raises:
    CheckpointError: if the file is missing or damaged.
  """
  for batch in read_records(directory, file):
    try:
      messages = list(map(message_class.FromString, batch))
    except message.DecodeError as error:
      raise damage_error(
          directory, f'{file} cannot be read: {error}'
      ) from error
    yield messages


class RecordFile:
  """Writes a compressed file of records."""

  def __init__(self, path: str):
    """Opens a file; raises an OSError if it cannot be opened."""
    self._path = path
    # The fastest level suffices, since large columns are already compressed.
    options = tf.io.TFRecordOptions('ZLIB', compression_level=1)
    with self._os_errors():
      self._writer = tf.io.TFRecordWriter(path, options)

  def __enter__(self):
    return self

  def __exit__(self, error_type, *unused_error):
    ignored = OSError if error_type else ()
    with contextlib.suppress(ignored), self._os_errors():
      self._writer.flush()  # So the last block is empty, see `merge`.
      self._writer.close()

  def write(self, records: Iterable[bytes]) -> None:
    """Appends records; raises an OSError if that fails."""
    with self._os_errors():
      for record in records:
        self._writer.write(record)

  @contextlib.contextmanager
  def _os_errors(self):
    try:
      yield
    except tf.errors.OpError as error:
      raise OSError(
          f'{self._path} could not be written, so its folder was removed:'
          f' {errors.message_of(error, self._path)}'
      ) from error


@contextlib.contextmanager
def new_checkpoint(directory: str, *, replace: bool = False) -> Iterator[str]:
  """Yields a folder to write a checkpoint into, and moves it to `directory`.

  The folder is moved atomically if the body of the `with` statement raises no
  error.

  Args:
    directory: where the checkpoint goes.
    replace: whether to replace an existing checkpoint.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty, and `replace` is False.
    OSError: if the checkpoint cannot be written.
  """
  with files.new_folder(directory, [DONE], replace=replace) as path:
    yield path
    with open(os.path.join(path, DONE), 'wb'):
      pass


def is_checkpoint(directory: str) -> bool:
  """Returns whether a folder holds a checkpoint, even an incomplete one."""
  return any(
      files.exists(os.path.join(directory, name))
      for name in (DONE, TABLES, ITEMS, CHUNKS)
  )


def read_tables(directory: str) -> dict[str, protos.PriorityTableCheckpoint]:
  """Returns the tables of a checkpoint, by name.

  Raises:
    FileNotFoundError: if `directory` is not a complete checkpoint.
    CheckpointError: if the file of the tables is missing, damaged or empty.
  """
  if not files.exists(os.path.join(directory, DONE)):
    exists = files.is_folder(directory)
    problem = f'has no {DONE}' if exists else 'does not exist'
    raise FileNotFoundError(
        f'{directory} is not a complete Reverb checkpoint: it {problem}.'
        f'{files.hint(directory)}'
    )
  tables = {}
  for batch in read_messages(directory, TABLES, protos.PriorityTableCheckpoint):
    for table in batch:
      if table.table_name in tables:
        raise damage_error(
            directory, f'{TABLES} has {table.table_name!r} twice'
        )
      tables[table.table_name] = table
  if not tables:
    raise damage_error(directory, f'{TABLES} holds no table')
  return tables


def num_items(table: protos.PriorityTableCheckpoint) -> int:
  """Returns the number of items of a table, by its own counts."""
  limiter = table.rate_limiter
  return limiter.insert_count - limiter.delete_count


def check_num_items(
    directory: str, table: protos.PriorityTableCheckpoint, count: int
) -> None:
  """Raises a CheckpointError unless a table has as many items as it counted.

  Args:
    directory: the checkpoint, for the message.
    table: the record of the table.
    count: the number of different items in the files.
  """
  if count != num_items(table):
    raise damage_error(
        directory,
        f'table {table.table_name!r} has {num_items(table)} items, but {count}'
        f' different ones, with their chunks, are in {ITEMS} and {CHUNKS}',
    )


def validate(
    directory: str, tables: dict[str, protos.PriorityTableCheckpoint]
) -> None:
  """Validates the chunks and items of a checkpoint; see `validation`.

  Raises:
    CheckpointError: if a chunk or an item is not valid.
  """
  for _ in _validate_items(directory, _validate_chunks(directory, tables)):
    pass


def _validate_chunks(directory: str, tables: Any) -> validation.Validator:
  """Returns a validator that has read the chunks of a checkpoint."""
  with _damage_errors(directory, TABLES):
    validator = validation.Validator(tables)
  with _damage_errors(directory, CHUNKS):
    path = os.path.join(directory, CHUNKS)
    validator.add_chunks(validation.read_records(path))
  return validator


def _validate_items(
    directory: str, validator: validation.Validator
) -> Iterator[validation.ItemSlices]:
  """Yields the validated items of a checkpoint."""
  with _damage_errors(directory, ITEMS):
    path = os.path.join(directory, ITEMS)
    yield from validator.items(validation.read_records(path))


def read_index(
    directory: str, columns_of: str | None = None
) -> CheckpointIndex:
  """Reads the keys of a checkpoint, and checks that it is complete and valid.

  Every record is read and validated. The index takes 16 bytes for each chunk
  and each item, and 16 for each tensor of a chunk.

  Args:
    directory: the checkpoint.
    columns_of: the name of a table, for which `columns` is filled: for the key
      of each chunk that its items refer to, pairs of the index of a column of
      the table and the index of the chunk's tensor for this column.

  Raises:
    FileNotFoundError: if `directory` is not a complete checkpoint.
    CheckpointError: if a file is missing or damaged, if the number of items
      differs from the counts of the tables, if an item or a chunk is repeated,
      or if a chunk is missing that an item refers to.
    ValueError: if there is no table `columns_of`.
  """
  tables = read_tables(directory)
  table_indices = {name: index for index, name in enumerate(sorted(tables))}
  columns = collections.defaultdict(set)
  validator = _validate_chunks(directory, tables)
  if validator.has_repeated_chunks:
    raise damage_error(directory, f'{CHUNKS}: it holds a chunk twice')
  batches = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
  for batch in _validate_items(directory, validator):
    batches.append((batch.keys, batch.tables))
    if columns_of in table_indices:
      is_of_table = batch.slice_tables == table_indices[columns_of]
      slices = np.stack([batch.chunks, batch.columns, batch.tensors])
      slices = np.unique(slices[:, is_of_table], axis=1)
      keys = validator.keys[slices[0]].tolist()
      for key, column, tensor in zip(keys, *slices[1:].tolist()):
        columns[key].add((column, tensor))
  items, item_tables = map(np.concatenate, zip(*batches))
  for name, index in table_indices.items():
    keys = items[item_tables == index]
    if len(np.unique(keys)) < len(keys):
      raise damage_error(directory, f'{ITEMS} holds an item twice')
    check_num_items(directory, tables[name], len(keys))
  # Only a complete checkpoint proves that there is no such table. Otherwise its
  # record may be lost.
  if columns_of is not None and columns_of not in tables:
    raise ValueError(
        f'The checkpoint {directory} has no table {columns_of!r}, only'
        f' {sorted(tables)}.'
    )
  return CheckpointIndex(
      tables,
      validator.keys,
      validator.episodes,
      items,
      item_tables,
      dict(columns),
  )
