"""Encodes chunks and items as Reverb's protocol buffers.

Insert requests and checkpoints hold the same two messages: `ChunkData`, which
holds rows of columns, and `PrioritizedItem`, which refers to slices of chunks.
"""

import functools
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np
import pyarrow
import tensorflow as tf

from rlds2reverb.replay import protos

_SNAPPY = pyarrow.Codec('snappy')
# The numbers of a template, which take as many bytes as any number can: the
# sizes of varints of 64, 28, 35 and 31 bits.
_KEY_BYTES, _ROW_BYTES, _TIME_BYTES = 10, 4, 5
_KEY, _CHUNK_KEY = 2**64 - 1, 2**64 - 2
_OFFSET, _LENGTH = 2**28 - 1, 2**28 - 2
_SECONDS, _NANOS = 2**35 - 1, 2**31 - 1
_PRIORITY = 1.2345e67
_SLICE_BYTES = _KEY_BYTES + 1 + _ROW_BYTES + 1 + _ROW_BYTES


def encode_chunk(
    key: int, episode_key: int, start: int, columns: Sequence[np.ndarray]
) -> bytes:
  """Encodes a chunk.

  Args:
    key: the chunk's key, 64 bits.
    episode_key: the key of the episode, by which a table counts episodes.
    start: the index in the episode of the first row.
    columns: the rows of every column, arrays `[N, ...]`. Strings are arrays of
      `bytes` objects.

  Returns:
    A `ChunkData`.
  """
  chunk = protos.ChunkData(chunk_key=key, data_tensors_len=len(columns))
  chunk.sequence_range.episode_id = episode_key
  chunk.sequence_range.start = start
  chunk.sequence_range.end = start + len(columns[0]) - 1
  size = 0
  for column in columns:
    tensor = chunk.data.tensors.add()
    for dim in column.shape:
      tensor.tensor_shape.dim.add(size=dim)
    if column.dtype == object:
      tensor.dtype = tf.string.as_datatype_enum
      strings = column.ravel().tolist()
      sizes = np.fromiter(map(len, strings), np.uint64, len(strings))
      content = b''.join(strings)
      size += len(content)
      # TensorFlow reads sizes of 32 bits, varints of up to 5 bytes.
      tensor.tensor_content = _varints(sizes, 5).tobytes() + content
    else:
      tensor.dtype = tf.as_dtype(column.dtype).as_datatype_enum
      size += column.nbytes
      # Compressed as Reverb expects it.
      tensor.tensor_content = _SNAPPY.compress(
          np.ascontiguousarray(column).view(np.uint8), asbytes=True
      )
  chunk.data_uncompressed_size = size
  return chunk.SerializeToString()


class Slices(NamedTuple):
  """The slices of chunks that make up `N` items, `S` slices each.

  Attributes:
    chunk_keys: the key of the chunk of each slice, uint64 `[N, S]`.
    offsets: the first row of each slice in its chunk, `[N, S]`.
    lengths: the number of rows of each slice, `[N, S]`.
  """

  chunk_keys: np.ndarray
  offsets: np.ndarray
  lengths: np.ndarray


def encode_items(
    table: str,
    keys: np.ndarray,
    priorities: np.ndarray,
    slices: Slices,
    num_columns: int,
    inserted_at: np.ndarray,
) -> List[bytes]:
  """Encodes items of one table that all have the same number of slices.

  One is encoded as a message, and copied. Then the numbers are written into the
  copies, arrays at a time: a varint may be longer than necessary, and protocol
  buffers accept it. A message object for each item takes ten times as long.

  Args:
    table: the name of the table.
    keys: the keys of the items, uint64 `[N]`.
    priorities: the priorities of the items, float64 `[N]`.
    slices: the rows of the items. All columns have the same.
    num_columns: the number of columns, which are the tensors of every chunk.
    inserted_at: nanoseconds since the epoch, increasing, int64 `[N]`. A server
      writes the items of a table in this order to its own checkpoints.

  Returns:
    `PrioritizedItem`s `[N]`.
  """
  count, num_slices = slices.chunk_keys.shape
  template, places = _template(table, num_columns, num_slices)
  content = bytearray(template * count)
  items = np.frombuffer(content, places)
  seconds, nanos = np.divmod(inserted_at, 10**9)
  items['key'] = _varints(keys, _KEY_BYTES)
  items['priority'] = priorities
  items['seconds'] = _varints(seconds, _TIME_BYTES)
  items['nanos'] = _varints(nanos, _TIME_BYTES)
  rows = np.zeros(
      slices.chunk_keys.shape,
      [
          ('chunk_key', f'V{_KEY_BYTES}'),
          ('offset_tag', 'u1'),
          ('offset', f'V{_ROW_BYTES}'),
          ('length_tag', 'u1'),
          ('length', f'V{_ROW_BYTES}'),
      ],
  )
  rows['chunk_key'] = _varints(slices.chunk_keys, _KEY_BYTES)
  rows['offset_tag'], rows['length_tag'] = 0x10, 0x18
  rows['offset'] = _varints(slices.offsets, _ROW_BYTES)
  rows['length'] = _varints(slices.lengths, _ROW_BYTES)
  rows = rows.view(f'V{_SLICE_BYTES}')
  for column in range(num_columns):
    items[f'column_{column}']['slice'] = rows
  size = len(template)
  content = bytes(content)
  return [content[at : at + size] for at in range(0, len(content), size)]


@functools.lru_cache(maxsize=64)
def _template(
    table: str, num_columns: int, num_slices: int
) -> Tuple[bytes, np.dtype]:
  """Returns an item, and the places of its numbers as a structured dtype."""
  item = protos.PrioritizedItem(key=_KEY, table=table, priority=_PRIORITY)
  item.inserted_at.seconds = _SECONDS
  item.inserted_at.nanos = _NANOS
  for column in range(num_columns):
    slices = item.flat_trajectory.columns.add().chunk_slices
    for _ in range(num_slices):
      slices.add(
          chunk_key=_CHUNK_KEY, offset=_OFFSET, length=_LENGTH, index=column
      )
  content = item.SerializeToString()
  places = {}

  def find(name, form, value, begin=0):
    places[name] = form, content.index(value, begin)

  find('key', f'V{_KEY_BYTES}', _varint(_KEY, _KEY_BYTES))
  find('priority', '<f8', np.float64(_PRIORITY).tobytes())
  find('seconds', f'V{_TIME_BYTES}', _varint(_SECONDS, _TIME_BYTES))
  find('nanos', f'V{_TIME_BYTES}', _varint(_NANOS, _TIME_BYTES))
  chunk_key = _varint(_CHUNK_KEY, _KEY_BYTES)
  at = content.find(chunk_key)
  for column in range(num_columns):
    following = content.find(chunk_key, at + 1)
    # From the head of one slice to that of the next.
    stride = following - at if num_slices > 1 else 3 + _SLICE_BYTES
    one = np.dtype(
        {
            'names': ['slice'],
            'formats': [f'V{_SLICE_BYTES}'],
            'offsets': [3],
            'itemsize': stride,
        }
    )
    places[f'column_{column}'] = (one, (num_slices,)), at - 3
    at = content.find(chunk_key, at + stride * (num_slices - 1) + 1)
  formats, offsets = zip(*places.values())
  return content, np.dtype(
      {
          'names': list(places),
          'formats': formats,
          'offsets': offsets,
          'itemsize': len(content),
      }
  )


def insert_request(
    chunks: Sequence[bytes],
    items: Sequence[bytes],
    keep_chunk_keys: Sequence[int],
) -> bytes:
  """Encodes a request of Reverb's insert stream.

  Args:
    chunks: `ChunkData`s that the server has not been sent yet.
    items: `PrioritizedItem`s, in the order of their insertion.
    keep_chunk_keys: the keys of the chunks, sent with this request or earlier,
      that later requests refer to. The server forgets all other chunks, and
      ends the stream with an error if it does not have one of these.

  Returns:
    An `InsertStreamRequest`.
  """
  return protos.InsertStreamRequest(
      chunks=chunks, items=items, keep_chunk_keys=keep_chunk_keys
  ).SerializeToString()


def priority_request(
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
  return protos.MutatePrioritiesRequest(
      table=[table],
      updates=[
          protos.KeyWithPriority(key=key, priority=priority).SerializeToString()
          for key, priority in zip(keys.tolist(), priorities.tolist())
      ],
  ).SerializeToString()


def _varints(values: np.ndarray, size: int) -> np.ndarray:
  """Returns varints of `size` bytes each, in the shape of `values`."""
  shifts = np.arange(0, 7 * size, 7, dtype=np.uint64)
  digits = (values.astype(np.uint64)[..., None] >> shifts).astype(np.uint8)
  digits[..., :-1] |= 128
  digits[..., -1] &= 127
  return digits.view(f'V{size}')[..., 0]


def _varint(value: int, size: int) -> bytes:
  return _varints(np.array([value], np.uint64), size).tobytes()
