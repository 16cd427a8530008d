"""Frames as rows of bytes of a fixed size, for random access.

The small columns of a frame stand together in one row, so that a frame is read
from one place. A large column, such as an image, has rows of its own. Strings
have no fixed size: a row holds where they begin in a file of all strings.

    the small columns   | step_type | reward | discount | ... | begin, length |
    a large column      | image                                        |    |
                                                                       v    v
    strings             | ... jpeg jpeg jpeg ...
"""

import collections
import functools
import math
import sys
from typing import (
    Any,
    Callable,
    Deque,
    List,
    NamedTuple,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import steps as steps_lib

# Gathering a row of this size takes much longer than finding it.
_LARGE_COLUMN_BYTES = 1 << 10
# TensorFlow does not copy an array that begins at a multiple of this many
# bytes.
_ALIGNMENT = 64
_LARGE_ARRAY_BYTES = 1 << 18
# This many bytes of rows stay in a processor's cache while their columns are
# copied out.
_CACHED_BYTES = 1 << 18
# The largest number of pieces of memory of one size that are kept.
_PIECES = 4


class _Column(NamedTuple):
  """A leaf of a frame.

  Attributes:
    spec: the spec of the leaf of one frame.
    stored: the numpy dtype of the numbers that are stored.
    shape: how many of them, as the shape of an array.
    group: the index of the rows that they are in.
    begin: the byte of the row at which they begin.
    is_string: whether they say where strings are.
  """

  spec: tf.TensorSpec
  stored: np.dtype
  shape: List[int]
  group: int = 0
  begin: int = 0
  is_string: bool = False

  @property
  def num_bytes(self) -> int:
    return self.stored.itemsize * math.prod(self.shape)


class RowFormat:
  """Turns frames into rows, and rows into frames.

  Attributes:
    spec: the spec of one frame.
    row_bytes: the number of bytes of a row, for each group of columns. The
      first group has the small columns.
    has_strings: whether there are strings beside the rows.
  """

  def __init__(self, spec: Any):
    """Creates the format.

    Args:
      spec: the spec of one frame, a nest.

    Raises:
      ValueError: if the shape of a leaf is not fully known.
    """
    self.spec = spec
    columns = [
        _column(steps_lib.field_path(path), leaf)
        for path, leaf in tree.flatten_with_path(spec)
    ]
    self.row_bytes = [0]
    # Wide numbers stand first, so that each begins at a multiple of its size.
    for k in sorted(
        range(len(columns)), key=lambda k: -columns[k].stored.itemsize
    ):
      size = columns[k].num_bytes
      if size < _LARGE_COLUMN_BYTES:
        columns[k] = columns[k]._replace(begin=self.row_bytes[0])
        self.row_bytes[0] += size
      else:
        columns[k] = columns[k]._replace(group=len(self.row_bytes))
        self.row_bytes.append(size)
    widest = max([column.stored.itemsize for column in columns], default=1)
    self.row_bytes[0] += -self.row_bytes[0] % widest
    self._columns = columns
    # Batches of a data set are of one size.
    self._layout = functools.lru_cache(8)(
        lambda num_runs, length: ArrayLayout(
            [
                ([num_runs, length, *column.shape], column.stored)
                for column in columns
            ]
        )
    )
    self.has_strings = any(column.is_string for column in columns)

  @property
  def frame_bytes(self) -> int:
    """The number of bytes of a frame, without those of its strings."""
    return sum(self.row_bytes)

  def encode(
      self, frames: Any, add_strings: Callable[[Sequence[bytes]], np.ndarray]
  ) -> List[np.ndarray]:
    """Returns the rows of frames.

    Args:
      frames: a nest of arrays `[B, ...]`.
      add_strings: stores strings, and returns where each begins, int64 `[N]`.

    Returns:
      The rows of each group, uint8 `[B, row_bytes]`.
    """
    leaves = tf.nest.flatten(frames)
    length = len(leaves[0])
    rows = [np.zeros([length, size], np.uint8) for size in self.row_bytes]
    for column, leaf in zip(self._columns, leaves):
      if column.is_string:
        strings = [_to_bytes(each) for each in np.ravel(leaf)]
        begins = add_strings(strings)
        leaf = np.stack([begins, list(map(len, strings))], -1)
      leaf = np.ascontiguousarray(leaf, column.stored)
      end = column.begin + column.num_bytes
      rows[column.group][:, column.begin : end] = leaf.reshape(
          [length, -1]
      ).view(np.uint8)
    return rows

  def read(
      self,
      groups: Sequence[np.ndarray],
      strings: np.ndarray,
      starts: np.ndarray,
      length: int,
  ) -> List[np.ndarray]:
    """Reads runs of frames.

    Args:
      groups: all rows of each group, uint8 `[N, row_bytes]`.
      strings: all strings, one after the other, uint8 `[M]`.
      starts: the row at which each run starts, int64 `[R]`.
      length: the number of frames `L` of each run.

    Returns:
      The leaves of the frames, unshared arrays `[R, L, ...]`.
    """
    leaves = self._layout(len(starts), length).new_arrays()
    rows = None
    small = []
    for column, out in zip(self._columns, leaves):
      if not out.size:
        continue
      if column.group:
        if rows is None:
          rows = (starts[:, np.newaxis] + np.arange(length)).ravel()
        groups[column.group].take(
            rows,
            axis=0,
            out=out.reshape([len(rows), -1]).view(np.uint8),
            mode='clip',  # mode="raise" would copy twice.
        )
      else:
        # NumPy copies an element of bytes faster than a row of numbers.
        element = f'V{column.num_bytes}' if column.shape else column.stored
        flat = np.ndarray([len(starts), length], element, out)
        small.append((column.begin, flat))
    if small:
      self._read_small(groups[0], starts, small)
    return [
        _read_strings(strings, leaf) if column.is_string else leaf
        for column, leaf in zip(self._columns, leaves)
    ]

  def _read_small(self, rows, starts, columns) -> None:
    """Reads columns of the first group, some runs at a time.

    Args:
      rows: the rows of the group.
      starts: the row at which each run starts.
      columns: pairs of a column's first byte and the array `[R, L]` to fill.
    """
    size = self.row_bytes[0]
    length = columns[0][1].shape[1]
    windows = _windows(rows, length)
    count = max(_CACHED_BYTES // (size * length), 1)
    for first in range(0, len(starts), count):
      some = windows[starts[first : first + count]]
      for begin, flat in columns:
        out = flat[first : first + count]
        out[...] = np.ndarray(
            out.shape, out.dtype, some, begin, [size * length, size]
        )


class ArrayLayout:
  """Arrays that TensorFlow can take without copying them.

  Small arrays share memory, because every piece of memory costs time.
  """

  def __init__(self, specs: Sequence[Tuple[Sequence[int], np.dtype]]):
    """Creates the layout.

    Args:
      specs: the shape and the dtype of each array.
    """
    self._places = []
    shared_size = 0
    for shape, dtype in specs:
      size = math.prod(shape) * dtype.itemsize
      if size >= _LARGE_ARRAY_BYTES:
        self._places.append((shape, dtype, _Memory(size), 0))
      else:
        self._places.append((shape, dtype, None, shared_size))
        shared_size += size + -size % _ALIGNMENT
    self._shared = _Memory(shared_size)

  def new_arrays(self) -> List[np.ndarray]:
    """Returns arrays that nothing else refers to, with undefined content."""
    shared, first = self._shared.take()
    return [
        np.ndarray(shape, dtype, *memory.take())
        if memory
        else np.ndarray(shape, dtype, shared, first + begin)
        for shape, dtype, memory, begin in self._places
    ]


class _Memory:
  """Pieces of memory of one size, each used again when nothing refers to it.

  The system takes longer to give out new pages than it takes to fill them.
  """

  def __init__(self, size: int):
    self._size = size
    self._pieces: Deque[np.ndarray] = collections.deque(maxlen=_PIECES)

  def take(self) -> Tuple[np.ndarray, int]:
    """Returns a piece of memory, and the index of its first aligned byte."""
    for piece in tuple(self._pieces):
      # A piece is free if nothing else refers to it: no array, no view of one,
      # and no other thread that is looking at it.
      if sys.getrefcount(piece) == _REFERENCES:
        break
    else:
      piece = np.empty(self._size + _ALIGNMENT, np.uint8)
      if self._size >= _LARGE_ARRAY_BYTES:
        self._pieces.append(piece)
    return piece, -piece.__array_interface__['data'][0] % _ALIGNMENT


# The reference count of a free piece, as `_Memory.take` sees it.
_PROBE = collections.deque([np.empty(1)])
_REFERENCES = [sys.getrefcount(piece) for piece in tuple(_PROBE)][0]


def _column(path: str, leaf: tf.TensorSpec) -> _Column:
  if not leaf.shape.is_fully_defined():
    raise ValueError(
        f'Field {path} has the shape {leaf.shape}, but a replay buffer'
        ' without a server needs a fixed one. Pad it, or resize images'
        ' (decode_images). Encoded images may stay as they are.'
    )
  shape = leaf.shape.as_list()
  if leaf.dtype == tf.string:
    # The start and the length of each string.
    return _Column(leaf, np.dtype(np.int64), [*shape, 2], is_string=True)
  return _Column(leaf, np.dtype(leaf.dtype.as_numpy_dtype), shape)


def _to_bytes(value: Any) -> bytes:
  return value if isinstance(value, bytes) else str(value).encode()


def _windows(rows: np.ndarray, length: int) -> np.ndarray:
  """Returns every run of `length` rows as one element, without copying."""
  num_rows, size = rows.shape
  if not size:
    return np.empty([max(num_rows, 1)], 'V0')
  return np.ndarray(
      [num_rows - length + 1],
      f'V{size * length}',
      buffer=rows.data,
      strides=[size],
  )


def _read_strings(strings: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Returns the strings at `places`, int64 `[..., 2]`, as an object array."""
  memory = strings.data
  found = np.empty(places.shape[:-1], object)
  found.ravel()[:] = [
      bytes(memory[begin : begin + length])
      for begin, length in places.reshape([-1, 2]).tolist()
  ]
  return found
