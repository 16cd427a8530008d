"""Reads the records of a checkpoint, and refuses one that is damaged.

A checkpoint is a directory that a Reverb server can start from. It holds three
files of records, `tables.tfrecord`, `items.tfrecord` and `chunks.tfrecord`, and
an empty file `DONE`, which says that the checkpoint is whole.

A file that was cut at the end of a record cannot be told from a shorter file.
For this reason the number of items is compared with the number that the tables
say, and the chunks that items refer to are looked up among the chunks.
"""

import functools
import os
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from google.protobuf import descriptor_pb2
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.replay import messages

TABLES = 'tables.tfrecord'
ITEMS = 'items.tfrecord'
CHUNKS = 'chunks.tfrecord'
DONE = 'DONE'
COMPRESSION = 'ZLIB'

# Chunks may be large; items are small.
_RECORDS_PER_READ = {TABLES: 1, ITEMS: 1024, CHUNKS: 64}


class CheckpointError(RuntimeError):
  """An error that says that the files of a checkpoint are damaged."""


class Keys(NamedTuple):
  """The keys of a checkpoint's records, in the order of the records.

  Attributes:
    chunks: the keys of the chunks, uint64 `[K]`.
    items: the keys of the items, uint64 `[N]`.
    tables: the index of the table of each item, int64 `[N]`; -1 for a table
      that the checkpoint does not have.
  """

  chunks: np.ndarray
  items: np.ndarray
  tables: np.ndarray


def read(directory: str, file: str) -> Iterator[List[bytes]]:
  """Yields the records of a file in batches.

  Raises:
    CheckpointError: if the file is missing or damaged.
  """
  for batch in read_parsed(directory, file, lambda records: records):
    yield batch.tolist()


def read_tables(
    directory: str,
) -> Dict[str, messages.PriorityTableCheckpoint]:
  """Returns the tables of a checkpoint, by name.

  Raises:
    FileNotFoundError: if `directory` is not a whole checkpoint.
    CheckpointError: if the file of the tables is missing, damaged or empty.
  """
  if not files.exists(os.path.join(directory, DONE)):
    raise FileNotFoundError(
        f'{directory} is not a whole Reverb checkpoint: it has no {DONE}.'
    )
  tables = [
      messages.PriorityTableCheckpoint.FromString(record)
      for (record,) in read(directory, TABLES)
  ]
  if not tables:
    raise CheckpointError(
        f'The checkpoint {directory} is damaged: {TABLES} holds no table.'
    )
  return {table.table_name: table for table in tables}


def num_items(table: messages.PriorityTableCheckpoint) -> int:
  """Returns how many items a table holds, by its own counts."""
  limiter = table.rate_limiter
  return limiter.insert_count - limiter.delete_count


def check_num_items(
    directory: str,
    table: messages.PriorityTableCheckpoint,
    found: int,
) -> None:
  """Raises a CheckpointError unless all items of a table were found.

  Args:
    directory: the checkpoint, for the message.
    table: the table, which says how many items it holds.
    found: how many items were found.
  """
  expected = num_items(table)
  if found != expected:
    raise CheckpointError(
        f'The checkpoint {directory} is damaged: table {table.table_name!r} has'
        f' {expected} items, but {found} of them, with their chunks, are in'
        f' {ITEMS} and {CHUNKS}.'
    )


def read_keys(
    directory: str, tables: Dict[str, messages.PriorityTableCheckpoint]
) -> Keys:
  """Reads the keys of a checkpoint.

  Args:
    directory: the checkpoint.
    tables: its tables, as `read_tables` returns them.

  Raises:
    CheckpointError: if a file is damaged, if there are not as many items as the
      tables say, or if a chunk is missing that an item refers to.
  """
  chunks = [np.zeros(0, np.uint64)]
  for batch in read_parsed(directory, CHUNKS, keys_of_chunks):
    chunks.append(batch)
  chunks = np.concatenate(chunks)
  in_order = np.sort(chunks)
  num_missing = 0
  indices = {name.encode(): index for index, name in enumerate(tables)}
  items, of_tables = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
  for keys, names, chunk_keys in read_parsed(directory, ITEMS, parse_items):
    items.append(keys)
    of_tables.append(np.array([indices.get(name, -1) for name in names]))
    ends = np.searchsorted(in_order, chunk_keys, 'right')
    num_missing += np.count_nonzero(
        ends == np.searchsorted(in_order, chunk_keys)
    )
  keys = Keys(chunks, np.concatenate(items), np.concatenate(of_tables))
  for index, table in enumerate(tables.values()):
    check_num_items(
        directory, table, int(np.count_nonzero(keys.tables == index))
    )
  if np.any(keys.tables < 0):
    raise CheckpointError(
        f'The checkpoint {directory} is damaged: {ITEMS} holds items of a table'
        f' that is not in {TABLES}.'
    )
  if num_missing:
    raise CheckpointError(
        f'The checkpoint {directory} is damaged: chunks that its items refer to'
        f' are not in {CHUNKS}.'
    )
  return keys


def read_parsed(
    directory: str, file: str, parse: Callable[[tf.Tensor], Any]
) -> Iterator[Any]:
  """Yields batches of records, each parsed in graph mode.

  Args:
    directory: the checkpoint.
    file: the name of the file.
    parse: a function of strings `[N]`, which returns a nest of tensors.

  Yields:
    What `parse` returns, in numpy.

  Raises:
    CheckpointError: if the file is missing or damaged.
  """
  path = os.path.join(directory, file)
  batches = (
      tf.data.TFRecordDataset(path, COMPRESSION)
      .batch(_RECORDS_PER_READ[file])
      .map(parse)
      .prefetch(1)
      .as_numpy_iterator()
  )
  while True:
    try:
      batch = next(batches)
    except StopIteration:
      return
    except tf.errors.OpError as error:
      raise CheckpointError(
          f'{path} is damaged, and with it the checkpoint: {error.message}'
      ) from error
    yield batch


def keys_of_chunks(records: tf.Tensor) -> tf.Tensor:
  (keys,), _ = decode(records, messages.ChunkData, chunk_key=tf.uint64)
  return keys[:, 0]


def parse_items(
    records: tf.Tensor,
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Parses `PrioritizedItem`s.

  Returns:
    The keys of the items and the names of their tables, `[N]`, and the keys of
    the chunks that they refer to, `[K]`.
  """
  (keys, tables, trajectories), _ = decode(
      records,
      messages.PrioritizedItem,
      key=tf.uint64,
      table=tf.string,
      flat_trajectory=tf.string,
  )
  (columns,), counts = decode(
      trajectories[:, 0], messages.FlatTrajectory, columns=tf.string
  )
  columns = tf.boolean_mask(columns, tf.sequence_mask(counts[:, 0]))
  (slices,), counts = decode(columns, messages.Column, chunk_slices=tf.string)
  slices = tf.boolean_mask(slices, tf.sequence_mask(counts[:, 0]))
  (chunk_keys,), _ = decode(slices, messages.ChunkSlice, chunk_key=tf.uint64)
  return keys[:, 0], tables[:, 0], tf.unique(chunk_keys[:, 0])[0]


def decode(
    records: tf.Tensor, message: Any, **fields: tf.DType
) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """Returns the fields of messages, and how often each field occurs.

  Args:
    records: the messages, strings `[N]`.
    message: the class of the messages.
    **fields: the dtypes of the `F` fields to decode, by their names.

  Returns:
    The values of each field, `[N, C]`, and the counts, `[N, F]`.
  """
  # TensorFlow does not decode nothing at all, so an empty message comes last.
  counts, values = tf.io.decode_proto(
      tf.concat([records, ['']], 0),
      message.DESCRIPTOR.full_name,
      list(fields),
      list(fields.values()),
      _descriptors(),
  )
  return [value[:-1] for value in values], counts[:-1]


@functools.lru_cache(maxsize=None)
def _descriptors() -> bytes:
  """Returns the descriptors of Reverb's messages for `tf.io.decode_proto`."""
  descriptors = {}

  def add(file):
    for dependency in file.dependencies:
      add(dependency)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    descriptors[file.name] = proto

  add(messages.ChunkData.DESCRIPTOR.file)
  content = descriptor_pb2.FileDescriptorSet(file=descriptors.values())
  return b'bytes://' + content.SerializeToString()
