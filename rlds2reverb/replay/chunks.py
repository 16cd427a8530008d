"""Chunks of rows, the slices of chunks that items consist of, their messages.

Insert requests and checkpoints hold the same two protocol buffers of Reverb:
`ChunkData`, which holds rows of columns, and `PrioritizedItem`, which refers to
slices of chunks.
"""

from collections.abc import Sequence
import functools
import re
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames
from rlds2reverb.replay import protos

_SNAPPY = pyarrow.Codec('snappy')
# The sizes of varints in bytes: of 64-bit keys, of row numbers below 2**28, and
# of seconds and nanoseconds.
_KEY_BYTES, _ROW_BYTES, _TIME_BYTES = 10, 4, 5
# Placeholders in the template of an item, of exactly these sizes.
_KEY, _CHUNK_KEY = 2**64 - 1, 2**64 - 2
_OFFSET, _LENGTH = 2**28 - 1, 2**28 - 2
_SECONDS, _NANOS = 2**35 - 1, 2**31 - 1
_PRIORITY = 1.2345e67
# A slice: varints of its chunk key, offset and length, with the tags of the
# latter two.
_SLICE = np.dtype(f'V{_KEY_BYTES}, u1, V{_ROW_BYTES}, u1, V{_ROW_BYTES}')


class ChunkBounds(NamedTuple):
  """The bounds of the chunks of a segment.

  Attributes:
    starts: the position of the first row of each chunk, and of the end, int64
      `[K + 1]`.
    first_episode: the first episode with rows in each chunk, int64 `[K]`.
    stop_episode: the episode after the last one, int64 `[K]`.
  """

  starts: np.ndarray
  first_episode: np.ndarray
  stop_episode: np.ndarray


def cut_chunks(
    episode_starts: np.ndarray, chunk_length: int, one_episode_chunks: bool
) -> ChunkBounds:
  """Cuts the rows of episodes into chunks.

  Args:
    episode_starts: the position of the first row of each episode, and of the
      end, int64 `[E + 1]`.
    chunk_length: the maximum number of rows of a chunk.
    one_episode_chunks: whether every chunk has rows of one episode only.
  """
  num_rows = np.diff(episode_starts)
  # With a limit of 0, each episode is a group.
  first = frames.group_starts(
      num_rows, 0 if one_episode_chunks else chunk_length
  )
  stop = np.append(first[1:], len(num_rows))
  begins = episode_starts[first]
  counts = -(-(episode_starts[stop] - begins) // chunk_length)
  group, starts = windows_lib.expand_ranges(begins, counts, chunk_length)
  return ChunkBounds(
      np.append(starts, episode_starts[-1]), first[group], stop[group]
  )


class ChunkSlices(NamedTuple):
  """The slices of chunks of `N` items, concatenated.

  Attributes:
    row_splits: item `i` has the slices from `row_splits[i]` to `row_splits[i +
      1]`, int64 `[N + 1]`.
    chunk_keys: the key of the chunk of each slice, uint64 `[S]`.
    offsets: the first row of each slice in its chunk, `[S]`.
    lengths: the number of rows of each slice, `[S]`.
  """

  row_splits: np.ndarray
  chunk_keys: np.ndarray
  offsets: np.ndarray
  lengths: np.ndarray


class ChunkTable(NamedTuple):
  """Consecutive chunks that items refer to.

  Attributes:
    starts: the positions of their first rows, and of the end, int64 `[K + 1]`.
    keys: their keys, uint64 `[K]`.
  """

  starts: np.ndarray = np.zeros(1, np.int64)
  keys: np.ndarray = np.zeros(0, np.uint64)

  def chunk_of(self, position: Any) -> Any:
    """Returns the index of the chunk that holds a position; `K` at the end."""
    return np.searchsorted(self.starts, position, 'right') - 1

  def stops_of(self, ends: np.ndarray) -> np.ndarray:
    """Returns the index after the last chunk of items that end at `ends`."""
    return np.searchsorted(self.starts, ends)

  def slices_of(self, starts: np.ndarray, ends: np.ndarray) -> ChunkSlices:
    """Returns the slices of chunks of the items `[starts, ends)`."""
    first = self.chunk_of(starts)
    counts = self.stops_of(ends) - first
    item, chunk = windows_lib.expand_ranges(first, counts, 1)
    begins = np.maximum(starts[item], self.starts[chunk])
    return ChunkSlices(
        np.cumsum(np.append(0, counts)),
        self.keys[chunk],
        begins - self.starts[chunk],
        np.minimum(ends[item], self.starts[chunk + 1]) - begins,
    )


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
      tensor.string_val.extend(strings)
      size += sum(map(len, strings))
    else:
      tensor.dtype = tf.as_dtype(column.dtype).as_datatype_enum
      size += column.nbytes
      # Reverb expects this compression.
      tensor.tensor_content = _SNAPPY.compress(
          np.ascontiguousarray(column).view(np.uint8), asbytes=True
      )
  chunk.data_uncompressed_size = size
  return chunk.SerializeToString()


def encode_items(
    table: str,
    keys: np.ndarray,
    priorities: np.ndarray,
    slices: ChunkSlices,
    num_columns: int,
    inserted_at: np.ndarray,
) -> list[bytes]:
  """Encodes items of one table.

  For each number of slices, one item is encoded as a message and copied. Then
  the variable fields are overwritten in all copies, one field at a time. Their
  varints may be longer than necessary, which protocol buffers accept.
  `benchmarks/insert.py` compares the speed with encoding each message.

  Args:
    table: the name of the table.
    keys: the keys of the items, uint64 `[N]`.
    priorities: the priorities of the items, float64 `[N]`.
    slices: the rows of the items, the same for all columns.
    num_columns: the number of columns, which are the tensors of every chunk.
    inserted_at: nanoseconds since the epoch, increasing, int64 `[N]`. A server
      writes the items of a table in this order to its own checkpoints.

  Returns:
    `PrioritizedItem`s `[N]`.
  """
  seconds, nanos = np.divmod(inserted_at, 10**9)
  head_fields = (
      _varints(keys, _KEY_BYTES),
      np.asarray(priorities, '<f8'),
      _varints(seconds, _TIME_BYTES),
      _varints(nanos, _TIME_BYTES),
  )
  rows = np.zeros(len(slices.offsets), _SLICE)
  rows['f0'] = _varints(slices.chunk_keys, _KEY_BYTES)
  rows['f1'], rows['f2'] = 0x10, _varints(slices.offsets, _ROW_BYTES)
  rows['f3'], rows['f4'] = 0x18, _varints(slices.lengths, _ROW_BYTES)
  rows = rows.view(f'V{_SLICE.itemsize}')
  encoded: list[bytes] = [b''] * len(keys)
  counts = np.diff(slices.row_splits)
  for count in np.unique(counts).tolist():
    chosen = np.flatnonzero(counts == count)
    template, offsets = _template(table, num_columns, count)
    size = len(template)
    items = bytearray(template * len(chosen))
    begins = slices.row_splits[chosen]
    columns = [field[chosen] for field in head_fields]
    columns += [rows[begins + number] for number in range(count)] * num_columns
    for offset, column in zip(offsets, columns):
      np.ndarray(len(chosen), column.dtype, items, offset, size)[:] = column
    content = bytes(items)
    for number, index in enumerate(chosen.tolist()):
      encoded[index] = content[number * size : (number + 1) * size]
  return encoded


@functools.lru_cache(maxsize=64)
def _template(
    table: str, num_columns: int, num_slices: int
) -> tuple[bytes, list[int]]:
  """Returns an encoded item, and the offsets of its variable fields.

  These are its key, priority, seconds and nanoseconds, and its slices, column
  by column.
  """
  item = protos.PrioritizedItem(key=_KEY, table=table, priority=_PRIORITY)
  item.inserted_at.seconds, item.inserted_at.nanos = _SECONDS, _NANOS
  for column in range(num_columns):
    slices = item.flat_trajectory.columns.add().chunk_slices
    for _ in range(num_slices):
      slices.add(
          chunk_key=_CHUNK_KEY, offset=_OFFSET, length=_LENGTH, index=column
      )
  content = item.SerializeToString()
  offsets = [
      content.index(_varint(_KEY, _KEY_BYTES)),
      content.index(np.float64(_PRIORITY).tobytes()),
      content.index(_varint(_SECONDS, _TIME_BYTES)),
      content.index(_varint(_NANOS, _TIME_BYTES)),
  ]
  pattern = re.escape(_varint(_CHUNK_KEY, _KEY_BYTES))
  slice_offsets = [match.start() for match in re.finditer(pattern, content)]
  return content, offsets + slice_offsets


def _varints(values: np.ndarray, size: int) -> np.ndarray:
  """Returns varints of `size` bytes each, `[N]`."""
  shifts = np.arange(0, 7 * size, 7, dtype=np.uint64)
  digits = (values.astype(np.uint64)[:, np.newaxis] >> shifts).astype(np.uint8)
  digits[:, :-1] |= 128
  digits[:, -1] &= 127
  return digits.view(f'V{size}')[:, 0]


def _varint(value: int, size: int) -> bytes:
  return _varints(np.array([value], np.uint64), size).tobytes()
