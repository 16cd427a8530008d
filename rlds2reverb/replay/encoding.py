"""The bytes of Reverb's inserts and checkpoints.

An insert request and a checkpoint hold the same two messages of
`reverb.cc.schema_pb2`: `ChunkData`, rows of every column, and
`PrioritizedItem`, which refers to slices of chunks. Their bytes are laid out
here without a message object: a block's items, which differ in numbers alone,
are the rows of one numpy array. A number that varies has a fixed width, as a
varint longer than it need be, which protocol buffers accept.

This module knows the format and nothing else.
"""

import functools
import itertools
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
import pyarrow
import tensorflow as tf

# A varint of 64 bits, of the 28 bits that are enough for a chunk's rows, and of
# the 35 bits that are for seconds since the epoch and for nanoseconds.
_KEY_BYTES = 10
_ROW_BYTES = 4
_TIME_BYTES = 5
# The tag and the longest key that a message begins with.
KEY_HEAD = 1 + _KEY_BYTES

_SNAPPY = pyarrow.Codec('snappy')


def encode_chunk(
    key: int, episode_id: int, start: int, columns: Sequence[np.ndarray]
) -> bytes:
  """Returns a `ChunkData` that holds rows of every column.

  Args:
    key: the chunk's key, 64 bits.
    episode_id: the key of the episode, by which a table counts episodes.
    start: the index in the episode of the first row.
    columns: arrays `[N, ...]`, one a column; strings as objects of bytes.
  """
  end = start + len(columns[0]) - 1
  sequence_range = (
      b'\x08' + _varint(episode_id)
      + b'\x10' + _varint(start)
      + b'\x18' + _varint(end)
  )
  tensors = [_field(b'\x0a', _tensor(column)) for column in columns]
  return b''.join([
      b'\x08', _varint(key),
      _field(b'\x12', sequence_range),
      _field(b'\x2a', b''.join(tensors)),
      b'\x30', _varint(len(columns)),
      b'\x38', _varint(sum(map(_uncompressed_size, columns))),
  ])


class Slices(NamedTuple):
  """Slices of chunks, of each of `N` items `S`.

  Attributes:
    chunk_keys: the keys of chunks, uint64 `[K]`.
    chunks: indices to `chunk_keys`, `[N, S]`.
    offsets: the first row of each slice, `[N, S]`.
    lengths: the number of its rows, `[N, S]`.
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
    slices: Sequence[Slices],
    inserted_at: np.ndarray,
) -> np.ndarray:
  """Returns `PrioritizedItem`s.

  Args:
    table: the name of the table.
    keys: the items' keys, uint64 `[N]`.
    priorities: float64 `[N]`.
    groups: the columns of each group: the indices that those of its chunks have
      in an item. Together they are all columns of the item.
    slices: the items' rows in the chunks of each group.
    inserted_at: nanoseconds since the epoch, increasing, int64 `[N]`. A
      server's own checkpoints have the items of a table in this order.

  Returns:
    Structured `[N]`: each item, under `'item'`, with what goes before it in an
    `InsertStreamRequest`.
  """
  groups = tuple(groups)
  num_slices = tuple(each.chunks.shape[1] for each in slices)
  framed = _item_template(table, groups, num_slices).repeat(len(keys))
  items = framed['item']
  items['key'] = _fixed_varints(keys, _KEY_BYTES)
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
  """Yields `PrioritizedItem`s with another `inserted_at`.

  Args:
    items: `PrioritizedItem`s, however they are encoded.
    inserted_at: nanoseconds since the epoch, increasing, int64 `[N]`.
  """
  # Of a field that is there twice protocol buffers take the last.
  for item, timestamp in zip(items, _timestamps(inserted_at)):
    yield item + timestamp.tobytes()


def encode_insert_request(
    chunks: Sequence[bytes],
    items: Sequence[np.ndarray],
    keep_chunk_keys: Sequence[int],
) -> bytes:
  """Returns an `InsertStreamRequest`.

  Args:
    chunks: `ChunkData`s that the server has not had yet.
    items: arrays as of `encode_items`, in the order of their insertion.
    keep_chunk_keys: the chunks, of these and of earlier requests, that later
      requests refer to. The server forgets all others, and fails the stream
      where it does not have one of these.
  """
  parts: List[Any] = []
  for chunk in chunks:
    parts += [b'\x0a', _varint(len(chunk)), chunk]
  keys = np.array(keep_chunk_keys, np.uint64)
  kept = _field(b'\x1a', _fixed_varints(keys, _KEY_BYTES).tobytes())
  return b''.join([*parts, *items, kept])


def count_keys(response: bytes) -> int:
  """Returns how many keys an `InsertStreamResponse` confirms."""
  # One field of packed varints; a varint ends with a byte below 128.
  content = np.frombuffer(response, np.uint8)
  if not content.size:
    return 0
  header = 2 + int(np.argmax(content[1:] < 128))
  return int(np.count_nonzero(content[header:] < 128))


def keys_of(heads: np.ndarray) -> np.ndarray:
  """Returns the keys that begin `ChunkData`s or `PrioritizedItem`s.

  Args:
    heads: the first `KEY_HEAD` bytes of each, or more, uint8 `[N, bytes]`.

  Returns:
    uint64 `[N]`.
  """
  digits = heads[:, 1:KEY_HEAD].astype(np.uint64)
  # What follows the last byte of a varint is not of it.
  last = np.argmax(heads[:, 1:KEY_HEAD] < 128, axis=1)
  used = np.arange(_KEY_BYTES) <= last[:, None]
  digits = np.where(used, digits & np.uint64(127), np.uint64(0))
  shifts = np.arange(0, 7 * _KEY_BYTES, 7, dtype=np.uint64)
  return np.bitwise_or.reduce(digits << shifts, axis=1)


def _tensor(column: np.ndarray) -> bytes:
  """Returns a `TensorProto`, compressed as Reverb expects it."""
  if column.dtype == object:
    strings = column.ravel().tolist()
    sizes = np.fromiter(map(len, strings), np.uint64, len(strings))
    # No more than 5 bytes, in which TensorFlow reads a size of 32 bits.
    content = _fixed_varints(sizes, 5).tobytes() + b''.join(strings)
    dtype = tf.string
  else:
    content = _SNAPPY.compress(
        np.ascontiguousarray(column).view(np.uint8), asbytes=True
    )
    dtype = column.dtype
  return _tensor_header(dtype, column.shape) + _field(b'\x22', content)


def _uncompressed_size(column: np.ndarray) -> int:
  if column.dtype == object:
    return sum(map(len, column.ravel().tolist()))
  return column.nbytes


@functools.lru_cache(maxsize=1024)
def _tensor_header(dtype, shape) -> bytes:
  dims = [_field(b'\x12', b'\x08' + _varint(size)) for size in shape]
  return (
      b'\x08'
      + _varint(tf.as_dtype(dtype).as_datatype_enum)
      + _field(b'\x12', b''.join(dims))
  )


def _field(tag: bytes, content: bytes) -> bytes:
  return tag + _varint(len(content)) + content


@functools.lru_cache(maxsize=4096)
def _varint(value: int) -> bytes:
  digits = bytearray()
  while value >= 128:
    digits.append(value & 127 | 128)
    value >>= 7
  digits.append(value)
  return bytes(digits)


def _fixed_varints(values: np.ndarray, size: int) -> np.ndarray:
  """Returns varints of `size` bytes: uint8 `values.shape + [size]`."""
  shifts = np.arange(0, 7 * size, 7, dtype=np.uint64)
  digits = (values.astype(np.uint64)[..., None] >> shifts).astype(np.uint8)
  digits[..., :-1] |= 128
  digits[..., -1] &= 127
  return digits


def _record(**parts: Any) -> np.ndarray:
  """Returns a structured scalar of named parts: bytes, or other arrays."""
  parts = {
      name: np.array(part, f'V{len(part)}') if isinstance(part, bytes) else part
      for name, part in parts.items()
  }
  record = np.zeros(
      (), [(name, part.dtype, part.shape) for name, part in parts.items()]
  )
  for name, part in parts.items():
    record[name] = part
  return record


# When an item was inserted, with the field's tag.
_TIMESTAMP = _record(
    head=b'\x3a' + _varint(2 + 2 * _TIME_BYTES),
    seconds_tag=b'\x08',
    seconds=np.zeros(_TIME_BYTES, np.uint8),
    nanoseconds_tag=b'\x10',
    nanoseconds=np.zeros(_TIME_BYTES, np.uint8),
)
_TIMESTAMP_BYTES = f'V{_TIMESTAMP.itemsize}'


def _timestamps(nanoseconds: np.ndarray) -> np.ndarray:
  """Returns what items say of when they were inserted: opaque `[N]`."""
  timestamps = _TIMESTAMP.repeat(len(nanoseconds))
  seconds, rest = np.divmod(nanoseconds, 10**9)
  if len(seconds) and seconds[0] == seconds[-1]:
    seconds = seconds[:1]  # One for all, as it mostly is.
  timestamps['seconds'] = _fixed_varints(seconds, _TIME_BYTES)
  timestamps['nanoseconds'] = _fixed_varints(rest, _TIME_BYTES)
  return timestamps.view(_TIMESTAMP_BYTES)


# What an item says of a chunk, in every column.
_SLICE = _record(
    chunk_key_tag=b'\x08',
    chunk_key=np.zeros(_KEY_BYTES, np.uint8),
    offset_tag=b'\x10',
    offset=np.zeros(_ROW_BYTES, np.uint8),
    length_tag=b'\x18',
    length=np.zeros(_ROW_BYTES, np.uint8),
)
_ROWS = f'V{_SLICE.itemsize}'


def _slice_rows(slices: Slices) -> np.ndarray:
  """Returns what items say of slices in every column: opaque `[N, S]`."""
  rows = _SLICE.repeat(slices.chunks.size).reshape(slices.chunks.shape)
  rows['chunk_key'] = _fixed_varints(slices.chunk_keys, _KEY_BYTES)[
      slices.chunks
  ]
  rows['offset'] = _fixed_varints(slices.offsets, _ROW_BYTES)
  rows['length'] = _fixed_varints(slices.lengths, _ROW_BYTES)
  return rows.view(_ROWS)


@functools.lru_cache(maxsize=64)
def _runs(groups: Tuple[Tuple[int, ...], ...]) -> List[Tuple[int, List[int]]]:
  """Returns an item's columns in runs of one group.

  Args:
    groups: see `encode_items`.

  Returns:
    Pairs of a group, and the indices in its chunks of the run's columns.
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
  """Returns an item in its frame, with zeros where items differ."""
  columns = _record(**{
      f'run_{number}': _run_template(indices, num_slices[group])
      for number, (group, indices) in enumerate(_runs(groups))
  })
  item = _record(
      key_tag=b'\x08',
      key=np.zeros(_KEY_BYTES, np.uint8),
      table=_field(b'\x12', table.encode()),
      priority_tag=b'\x29',
      priority=np.zeros((), '<f8'),
      inserted_at=np.zeros((), _TIMESTAMP_BYTES),
      trajectory_head=b'\x42' + _varint(columns.nbytes),
      columns=columns,
  )
  return _record(frame=b'\x12' + _varint(item.nbytes), item=item)


def _run_template(indices: Sequence[int], num_slices: int) -> np.ndarray:
  """Returns columns that have the same slices, of chunks of one group."""
  index_bytes = len(_varint(max(indices)))
  head = b'\x0a' + _varint(_SLICE.itemsize + 1 + index_bytes)
  one_slice = _record(
      head=head,
      rows=np.zeros((), _ROWS),
      index_tag=b'\x20',
      index=np.zeros(index_bytes, np.uint8),
  )
  slices = one_slice.repeat(num_slices)
  column = _record(head=b'\x0a' + _varint(slices.nbytes), slices=slices)
  columns = column.repeat(len(indices))
  columns['slices']['index'] = _fixed_varints(np.array(indices), index_bytes)[
      :, np.newaxis
  ]
  return columns
