"""Encodes chunks and items as Reverb's protocol buffers, many at a time.

Insert requests and checkpoints hold the same two messages of
`reverb.cc.schema_pb2`: `ChunkData`, which holds rows of columns, and
`PrioritizedItem`, which refers to slices of chunks. This module writes their
bytes without message objects. The items of a block differ only in numbers, so
they are encoded as the rows of one numpy array. In such an array every number
takes a fixed number of bytes: a varint may be longer than necessary, and
protocol buffers accept it.

This module knows the format and nothing else.
"""

import functools
import itertools
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
import pyarrow
import tensorflow as tf

from rlds2reverb.replay import wire

# The bytes of a varint: for a number of rows in a chunk, for which 28 bits are
# enough; and for seconds since the epoch, or nanoseconds, of 35 bits.
_ROW_BYTES = 4
_TIME_BYTES = 5

_SNAPPY = pyarrow.Codec('snappy')


def encode_chunk(
    key: int, episode_id: int, start: int, columns: Sequence[np.ndarray]
) -> bytes:
  """Encodes a chunk.

  Args:
    key: the chunk's key, 64 bits.
    episode_id: the key of the episode, by which a table counts episodes.
    start: the index in the episode of the first row.
    columns: the rows of every column, arrays `[N, ...]`. Strings are arrays of
      `bytes` objects.

  Returns:
    A `ChunkData`.
  """
  end = start + len(columns[0]) - 1
  sequence_range = (
      b'\x08'
      + wire.varint(episode_id)
      + b'\x10'
      + wire.varint(start)
      + b'\x18'
      + wire.varint(end)
  )
  tensors = [wire.field(b'\x0a', _tensor(column)) for column in columns]
  return b''.join(
      [
          b'\x08',
          wire.varint(key),
          wire.field(b'\x12', sequence_range),
          wire.field(b'\x2a', b''.join(tensors)),
          b'\x30',
          wire.varint(len(columns)),
          b'\x38',
          wire.varint(sum(map(_uncompressed_size, columns))),
      ]
  )


class ChunkSlices(NamedTuple):
  """The slices of chunks that make up `N` items, `S` slices each.

  Attributes:
    chunk_keys: the keys of the chunks, uint64 `[K]`.
    chunks: the chunk of each slice, an index into `chunk_keys`, `[N, S]`.
    offsets: the first row of each slice in its chunk, `[N, S]`.
    lengths: the number of rows of each slice, `[N, S]`.
  """

  chunk_keys: np.ndarray
  chunks: np.ndarray
  offsets: np.ndarray
  lengths: np.ndarray


def encode_items(
    table: str,
    keys: np.ndarray,
    priorities: np.ndarray,
    groups: Sequence[Tuple[int, ...]],
    slices: Sequence[ChunkSlices],
    inserted_at: np.ndarray,
) -> np.ndarray:
  """Encodes items of one table that all have the same number of slices.

  Args:
    table: the name of the table.
    keys: the keys of the items, uint64 `[N]`.
    priorities: the priorities of the items, float64 `[N]`.
    groups: the columns that share chunks. For each group, it holds the indices
      of its columns in an item, in the order of the columns in a chunk.
      Together the groups hold every column once.
    slices: the rows of the items, in the chunks of each group.
    inserted_at: nanoseconds since the epoch, increasing, int64 `[N]`. A server
      writes the items of a table in this order to its own checkpoints.

  Returns:
    A structured array `[N]`. Its field `'item'` holds the `PrioritizedItem`s;
    a whole row is an item with the bytes that precede it in an
    `InsertStreamRequest`.
  """
  groups = tuple(groups)
  num_slices = tuple(each.chunks.shape[1] for each in slices)
  framed = _item_template(table, groups, num_slices).repeat(len(keys))
  items = framed['item']
  items['key'] = wire.fixed_varints(keys, wire.KEY_BYTES)
  items['priority'] = priorities
  items['inserted_at'] = _timestamps(inserted_at)
  rows = [_slice_rows(each) for each in slices]
  columns = items['columns']
  for name, (group, _) in zip(columns.dtype.names, _runs(groups)):
    columns[name]['slices']['rows'] = rows[group][:, np.newaxis]
  return framed


def redate_items(
    items: Sequence[bytes], inserted_at: np.ndarray
) -> Iterator[bytes]:
  """Yields items with another `inserted_at`.

  Args:
    items: `PrioritizedItem`s, in any encoding.
    inserted_at: nanoseconds since the epoch, increasing, int64 `[N]`.
  """
  # Where a field occurs twice, protocol buffers take the last.
  for item, timestamp in zip(items, _timestamps(inserted_at)):
    yield item + timestamp.tobytes()


def encode_insert_request(
    chunks: Sequence[bytes],
    items: Sequence[np.ndarray],
    keep_chunk_keys: Sequence[int],
) -> bytes:
  """Encodes a request of Reverb's insert stream.

  Args:
    chunks: `ChunkData`s that the server has not been sent yet.
    items: the items in the order of their insertion, arrays as `encode_items`
      returns them.
    keep_chunk_keys: the keys of the chunks, sent with this request or earlier,
      that later requests refer to. The server forgets all other chunks, and
      ends the stream with an error if it does not have one of these.

  Returns:
    An `InsertStreamRequest`.
  """
  parts: List[Any] = []
  for chunk in chunks:
    parts += [b'\x0a', wire.varint(len(chunk)), chunk]
  keys = np.array(keep_chunk_keys, np.uint64)
  kept = wire.field(b'\x1a', wire.fixed_varints(keys, wire.KEY_BYTES).tobytes())
  return b''.join([*parts, *items, kept])


def encode_priority_updates(
    table: str, keys: np.ndarray, priorities: np.ndarray
) -> bytes:
  """Encodes a request that gives items of a table new priorities.

  Args:
    table: the name of the table.
    keys: the keys of the items, uint64 `[N]`.
    priorities: their priorities, float64 `[N]`.

  Returns:
    A `MutatePrioritiesRequest`.
  """
  updates = _PRIORITY_UPDATE.repeat(len(keys))
  updates['key'] = wire.fixed_varints(keys, wire.KEY_BYTES)
  updates['priority'] = priorities
  return wire.field(b'\x0a', table.encode()) + updates.tobytes()


def _tensor(column: np.ndarray) -> bytes:
  """Encodes a column as a `TensorProto`, compressed as Reverb expects it."""
  if column.dtype == object:
    strings = column.ravel().tolist()
    sizes = np.fromiter(map(len, strings), np.uint64, len(strings))
    # TensorFlow reads a size of 32 bits, a varint of up to 5 bytes.
    content = wire.fixed_varints(sizes, 5).tobytes() + b''.join(strings)
    dtype = tf.string
  else:
    content = _SNAPPY.compress(
        np.ascontiguousarray(column).view(np.uint8), asbytes=True
    )
    dtype = column.dtype
  return _tensor_header(dtype, column.shape) + wire.field(b'\x22', content)


def _uncompressed_size(column: np.ndarray) -> int:
  if column.dtype == object:
    return sum(map(len, column.ravel().tolist()))
  return column.nbytes


@functools.lru_cache(maxsize=1024)
def _tensor_header(dtype, shape) -> bytes:
  dims = [wire.field(b'\x12', b'\x08' + wire.varint(size)) for size in shape]
  return (
      b'\x08'
      + wire.varint(tf.as_dtype(dtype).as_datatype_enum)
      + wire.field(b'\x12', b''.join(dims))
  )


# The field of an item that says when it was inserted.
_TIMESTAMP = wire.record(
    head=b'\x3a' + wire.varint(2 + 2 * _TIME_BYTES),
    seconds_tag=b'\x08',
    seconds=np.zeros(_TIME_BYTES, np.uint8),
    nanoseconds_tag=b'\x10',
    nanoseconds=np.zeros(_TIME_BYTES, np.uint8),
)
_TIMESTAMP_BYTES = f'V{_TIMESTAMP.itemsize}'


def _timestamps(nanoseconds: np.ndarray) -> np.ndarray:
  """Returns the fields of items that say when they were inserted, `[N]`."""
  timestamps = _TIMESTAMP.repeat(len(nanoseconds))
  seconds, rest = np.divmod(nanoseconds, 10**9)
  if len(seconds) and seconds[0] == seconds[-1]:
    # Mostly all items have the same second, which is then encoded once.
    seconds = seconds[:1]
  timestamps['seconds'] = wire.fixed_varints(seconds, _TIME_BYTES)
  timestamps['nanoseconds'] = wire.fixed_varints(rest, _TIME_BYTES)
  return timestamps.view(_TIMESTAMP_BYTES)


# An item of a `MutatePrioritiesRequest`.
_PRIORITY_UPDATE = wire.record(
    head=b'\x12' + wire.varint(1 + wire.KEY_BYTES + 1 + 8),
    key_tag=b'\x08',
    key=np.zeros(wire.KEY_BYTES, np.uint8),
    priority_tag=b'\x11',
    priority=np.zeros((), '<f8'),
)


# A slice of a chunk in an item, without the index of a column.
_SLICE = wire.record(
    chunk_key_tag=b'\x08',
    chunk_key=np.zeros(wire.KEY_BYTES, np.uint8),
    offset_tag=b'\x10',
    offset=np.zeros(_ROW_BYTES, np.uint8),
    length_tag=b'\x18',
    length=np.zeros(_ROW_BYTES, np.uint8),
)
_ROWS = f'V{_SLICE.itemsize}'


def _slice_rows(slices: ChunkSlices) -> np.ndarray:
  """Returns encoded slices, which are equal for all columns, `[N, S]`."""
  rows = _SLICE.repeat(slices.chunks.size).reshape(slices.chunks.shape)
  rows['chunk_key'] = wire.fixed_varints(slices.chunk_keys, wire.KEY_BYTES)[
      slices.chunks
  ]
  rows['offset'] = wire.fixed_varints(slices.offsets, _ROW_BYTES)
  rows['length'] = wire.fixed_varints(slices.lengths, _ROW_BYTES)
  return rows.view(_ROWS)


@functools.lru_cache(maxsize=64)
def _runs(groups: Tuple[Tuple[int, ...], ...]) -> List[Tuple[int, List[int]]]:
  """Divides the columns of an item into runs that belong to one group.

  Args:
    groups: see `encode_items`.

  Returns:
    For each run, the index of the group, and the indices of the run's columns
    in the chunks of the group.
  """
  places = {}
  for group, columns in enumerate(groups):
    for index, column in enumerate(columns):
      places[column] = group, index
  in_order = [place for _, place in sorted(places.items())]
  return [
      (group, [index for _, index in run])
      for group, run in itertools.groupby(in_order, lambda place: place[0])
  ]


@functools.lru_cache(maxsize=64)
def _item_template(
    table: str,
    groups: Tuple[Tuple[int, ...], ...],
    num_slices: Tuple[int, ...],
) -> np.ndarray:
  """Returns an item in its frame, with zeros in the places that vary."""
  columns = wire.record(
      **{
          f'run_{number}': _run_template(indices, num_slices[group])
          for number, (group, indices) in enumerate(_runs(groups))
      }
  )
  item = wire.record(
      key_tag=b'\x08',
      key=np.zeros(wire.KEY_BYTES, np.uint8),
      table=wire.field(b'\x12', table.encode()),
      priority_tag=b'\x29',
      priority=np.zeros((), '<f8'),
      inserted_at=np.zeros((), _TIMESTAMP_BYTES),
      trajectory_head=b'\x42' + wire.varint(columns.nbytes),
      columns=columns,
  )
  return wire.record(frame=b'\x12' + wire.varint(item.nbytes), item=item)


def _run_template(indices: Sequence[int], num_slices: int) -> np.ndarray:
  """Returns the columns of a run, which refer to the same slices.

  Args:
    indices: the indices of the columns in their chunks.
    num_slices: the number of slices of each column.
  """
  index_bytes = len(wire.varint(max(indices)))
  head = b'\x0a' + wire.varint(_SLICE.itemsize + 1 + index_bytes)
  one_slice = wire.record(
      head=head,
      rows=np.zeros((), _ROWS),
      index_tag=b'\x20',
      index=np.zeros(index_bytes, np.uint8),
  )
  slices = one_slice.repeat(num_slices)
  column = wire.record(head=b'\x0a' + wire.varint(slices.nbytes), slices=slices)
  columns = column.repeat(len(indices))
  columns['slices']['index'] = wire.fixed_varints(
      np.array(indices), index_bytes
  )[:, np.newaxis]
  return columns
