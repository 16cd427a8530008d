"""Reads the records of a checkpoint, and refuses one that is damaged.

A checkpoint is a directory that a Reverb server can start from. It holds three
files of records, `tables.tfrecord`, `items.tfrecord` and `chunks.tfrecord`, and
an empty file `DONE`, which says that the checkpoint is whole.

Each record and each file has a checksum. But a file that was cut at the end of
a record cannot be told from a shorter file. For this reason everything that
opens a checkpoint first calls `read_index`, which compares the items with the
numbers in the tables, and looks up every chunk that an item refers to. A server
that reads a checkpoint itself is compared with these numbers, too.
"""

import array
import collections
import contextlib
import os
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

from google.protobuf import message
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import tf_errors
from rlds2reverb.replay import protos

TABLES = 'tables.tfrecord'
ITEMS = 'items.tfrecord'
CHUNKS = 'chunks.tfrecord'
DONE = 'DONE'
_COMPRESSION = 'ZLIB'

# How many records are read at a time: chunks may be large, and items are small.
_RECORDS_PER_READ = {TABLES: 1, ITEMS: 1024, CHUNKS: 64}


class CheckpointError(RuntimeError):
  """An error that says that the files of a checkpoint are damaged."""


class CheckpointIndex(NamedTuple):
  """The content of a checkpoint, in the order of its records.

  Attributes:
    tables: the tables, by their names.
    chunks: the keys of the chunks, uint64 `[K]`.
    episodes: the key of the episode of each chunk, uint64 `[K]`.
    items: the keys of the items, uint64 `[N]`.
    item_tables: the index of the table of each item, by the order of their
      names, int64 `[N]`.
    columns: see `read_index`.
  """

  tables: Dict[str, protos.PriorityTableCheckpoint]
  chunks: np.ndarray
  episodes: np.ndarray
  items: np.ndarray
  item_tables: np.ndarray
  columns: Dict[int, Set[Tuple[int, int]]]


def read(directory: str, file: str) -> Iterator[List[bytes]]:
  """Yields the records of a file in batches.

  Raises:
    CheckpointError: if the file is missing or damaged.
  """
  path = os.path.join(directory, file)
  batches = (
      tf.data.TFRecordDataset(path, _COMPRESSION)
      .batch(_RECORDS_PER_READ[file])
      .prefetch(1)
      .as_numpy_iterator()
  )
  try:
    for batch in batches:
      yield batch.tolist()
  except tf.errors.OpError as error:
    raise CheckpointError(
        f'{path} is damaged, and with it the checkpoint:'
        f' {tf_errors.message_of(error)}'
    ) from error


def parse(directory: str, file: str, kind: Any) -> Iterator[List[Any]]:
  """Yields the records of a file in batches, as messages of a class.

  Raises:
    CheckpointError: if the file is missing or damaged.
  """
  for batch in read(directory, file):
    try:
      messages = list(map(kind.FromString, batch))
    except message.DecodeError as error:
      raise damaged(directory, f'{file} cannot be read: {error}') from error
    yield messages


class RecordFile:
  """A file of records that is being written, and is compressed as it is."""

  def __init__(self, path: str):
    """Opens a file; raises an OSError if it cannot be opened."""
    self._path = path
    # The fastest level is enough, since large columns are compressed already.
    options = tf.io.TFRecordOptions(_COMPRESSION, compression_level=1)
    with self._os_errors():
      self._writer = tf.io.TFRecordWriter(path, options)

  def __enter__(self):
    return self

  def __exit__(self, error_type, *unused_error):
    ignored = OSError if error_type else ()
    with contextlib.suppress(ignored), self._os_errors():
      self._writer.flush()  # The last block is empty then; see `joining`.
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
          f'{self._path} could not be written, so nothing of its folder is'
          f' left: {tf_errors.message_of(error)}'
      ) from error


@contextlib.contextmanager
def new_checkpoint(directory: str, *, replace: bool = False) -> Iterator[str]:
  """Yields a folder to write a checkpoint into, and moves it to `directory`.

  The folder is moved when the body of the `with` statement has ended without an
  error.

  Args:
    directory: where the checkpoint goes.
    replace: whether what is there is replaced.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty, and not to be replaced.
    OSError: if the checkpoint cannot be written.
  """
  with whole.new_folder(directory, [DONE], replace=replace) as path:
    yield path
    with open(os.path.join(path, DONE), 'wb'):
      pass


def is_checkpoint(directory: str) -> bool:
  """Returns whether a folder holds a checkpoint, or a part of one."""
  return any(
      files.exists(os.path.join(directory, name))
      for name in (DONE, TABLES, ITEMS, CHUNKS)
  )


def read_tables(directory: str) -> Dict[str, protos.PriorityTableCheckpoint]:
  """Returns the tables of a checkpoint, by name.

  Raises:
    FileNotFoundError: if `directory` is not a whole checkpoint.
    CheckpointError: if the file of the tables is missing, damaged or empty.
  """
  if not files.exists(os.path.join(directory, DONE)):
    is_there = files.is_folder(directory)
    problem = f'has no {DONE}' if is_there else 'does not exist'
    raise FileNotFoundError(
        f'{directory} is not a whole Reverb checkpoint: it {problem}.'
        f'{files.hint(directory)}'
    )
  tables = {}
  for (table,) in parse(directory, TABLES, protos.PriorityTableCheckpoint):
    if table.table_name in tables:
      raise damaged(directory, f'{TABLES} has {table.table_name!r} twice')
    tables[table.table_name] = table
  if not tables:
    raise damaged(directory, f'{TABLES} holds no table')
  return tables


def num_items(table: protos.PriorityTableCheckpoint) -> int:
  """Returns how many items a table holds, by its own counts."""
  limiter = table.rate_limiter
  return limiter.insert_count - limiter.delete_count


def check_num_items(
    directory: str, table: protos.PriorityTableCheckpoint, found: int
) -> None:
  """Raises a CheckpointError unless all items of a table were found.

  Args:
    directory: the checkpoint, for the message.
    table: the table, which says how many items it holds.
    found: how many different items were found.
  """
  if found != num_items(table):
    raise damaged(
        directory,
        f'table {table.table_name!r} has {num_items(table)} items, but {found}'
        f' different ones, with their chunks, are in {ITEMS} and {CHUNKS}',
    )


def read_index(
    directory: str, columns_of: Optional[str] = None
) -> CheckpointIndex:
  """Reads what a checkpoint consists of, and checks that it is whole.

  Every record is read, and with it its checksum. In memory are 16 bytes for
  each chunk and each item.

  Args:
    directory: the checkpoint.
    columns_of: the name of a table, for which `columns` is filled. It holds,
      for the key of each chunk that its items refer to, pairs of the index of a
      column of the table and the index of the tensor of the chunk that it is.

  Raises:
    FileNotFoundError: if `directory` is not a whole checkpoint.
    CheckpointError: if a file is missing or damaged, if there are not as many
      items as the tables say, if one is there twice, or if a chunk is missing
      that an item refers to.
    ValueError: if there is no table `columns_of`.
  """
  tables = read_tables(directory)
  numbers = {name: number for number, name in enumerate(sorted(tables))}
  chunks, episodes, items = array.array('Q'), array.array('Q'), array.array('Q')
  item_tables = array.array('q')
  columns = collections.defaultdict(set)
  for batch in parse(directory, CHUNKS, protos.ChunkData):
    chunks.extend(chunk.chunk_key for chunk in batch)
    episodes.extend(chunk.sequence_range.episode_id for chunk in batch)
  in_order = np.unique(np.asarray(chunks))
  if len(in_order) < len(chunks):
    raise damaged(directory, f'{CHUNKS} holds a chunk twice')
  for batch in parse(directory, ITEMS, protos.PrioritizedItem):
    if not all(item.table in numbers for item in batch):
      raise damaged(
          directory, f'{ITEMS} holds items of a table that is not in {TABLES}'
      )
    items.extend(item.key for item in batch)
    item_tables.extend(numbers[item.table] for item in batch)
    slices = {
        (item.table, each.chunk_key, number, each.index)
        for item in batch
        for number, column in enumerate(item.flat_trajectory.columns)
        for each in column.chunk_slices
    }
    used = np.array([key for _, key, _, _ in slices], np.uint64)
    if not np.isin(used, in_order).all():
      raise damaged(
          directory, f'chunks that its items refer to are not in {CHUNKS}'
      )
    for table, key, column, tensor in slices:
      if table == columns_of:
        columns[key].add((column, tensor))
  arrays = map(np.asarray, (chunks, episodes, items, item_tables))
  index = CheckpointIndex._make([tables, *arrays, dict(columns)])
  for name, number in numbers.items():
    keys = index.items[index.item_tables == number]
    if len(np.unique(keys)) < len(keys):
      raise damaged(directory, f'{ITEMS} holds an item twice')
    check_num_items(directory, tables[name], len(keys))
  # If the record of the table is lost, the checkpoint is damaged. Only a whole
  # checkpoint shows that there is no such table.
  if columns_of is not None and columns_of not in tables:
    raise ValueError(
        f'The checkpoint {directory} has no table {columns_of!r}, only'
        f' {sorted(tables)}.'
    )
  return index


def damaged(directory: str, what: str) -> CheckpointError:
  """Returns an error that says what is wrong with a checkpoint."""
  return CheckpointError(f'The checkpoint {directory} is damaged: {what}.')
