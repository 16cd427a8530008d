"""Frames as rows of bytes of a fixed size, of which any can be read at once.

The small columns of a frame stand together in one row, so that a frame is read
from one place. A large column, such as an image, has rows of its own. Strings
have no fixed size: a row holds where they begin in a file of all strings.

    the small columns   | step_type | reward | discount | ... | begin, length |
    a large column      | image                                        |    |
                                                                       v    v
    strings             | ... jpeg jpeg jpeg ...
"""

import math
from typing import Any, Callable, List, NamedTuple, Sequence

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import steps as steps_lib

# Gathering a row of this size takes much longer than finding it.
_LARGE_COLUMN_BYTES = 1 << 10


class _Column(NamedTuple):
  """A leaf of a frame.

  Attributes:
    path: its path, for errors.
    spec: the spec of the leaf of one frame.
    stored: the numpy dtype of the numbers that are stored.
    shape: how many of them, as the shape of an array.
    group: the index of the rows that they are in.
    begin: the byte of the row at which they begin.
  """

  path: str
  spec: tf.TensorSpec
  stored: np.dtype
  shape: List[int]
  group: int
  begin: int

  @property
  def num_bytes(self) -> int:
    return self.stored.itemsize * math.prod(self.shape)


class RowFormat:
  """Turns frames into rows, and rows into frames.

  Attributes:
    spec: the spec of one frame.
    row_bytes: the number of bytes of a row, for each group of columns.
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
    self.row_bytes = [0]
    self._columns = []
    for path, leaf in tree.flatten_with_path(spec):
      name = steps_lib.field_path(path)
      if not leaf.shape.is_fully_defined():
        raise ValueError(
            f'Field {name} has the shape {leaf.shape}, but a replay buffer'
            ' without a server needs a fixed one. Pad it, or resize images'
            ' (decode_images). Encoded images may stay as they are.'
        )
      shape = leaf.shape.as_list()
      if leaf.dtype == tf.string:
        # The begin and the length of each string.
        stored, shape = np.dtype(np.int64), [*shape, 2]
      else:
        stored = np.dtype(leaf.dtype.as_numpy_dtype)
      column = _Column(name, leaf, stored, shape, 0, self.row_bytes[0])
      if column.num_bytes < _LARGE_COLUMN_BYTES:
        self.row_bytes[0] += column.num_bytes
      else:
        column = column._replace(group=len(self.row_bytes), begin=0)
        self.row_bytes.append(column.num_bytes)
      self._columns.append(column)
    self.has_strings = any(
        column.spec.dtype == tf.string for column in self._columns
    )

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
    rows = [np.empty([length, size], np.uint8) for size in self.row_bytes]
    for column, leaf in zip(self._columns, leaves):
      if column.spec.dtype == tf.string:
        strings = [_to_bytes(each) for each in np.ravel(leaf)]
        begins = add_strings(strings)
        leaf = np.stack([begins, list(map(len, strings))], -1)
      leaf = np.ascontiguousarray(leaf, column.stored)
      end = column.begin + column.num_bytes
      rows[column.group][:, column.begin : end] = leaf.reshape(
          [length, -1]
      ).view(np.uint8)
    return rows

  def decode(self, rows: Sequence[tf.Tensor], strings: tf.Tensor) -> Any:
    """Returns the frames of rows.

    Args:
      rows: the rows of each group, uint8 `[..., row_bytes]`.
      strings: all strings, one after the other, uint8 `[N]`.

    Returns:
      A nest of tensors `[..., ...]`.
    """
    lead = rows[0].shape[:-1]
    leaves = []
    for column in self._columns:
      leaf = rows[column.group]
      if leaf.shape[-1] != column.num_bytes:
        leaf = leaf[..., column.begin : column.begin + column.num_bytes]
      leaf = _from_bytes(leaf, column)
      if column.spec.dtype == tf.string:
        leaf = _read_strings(strings, leaf)
      leaf.set_shape(lead + column.spec.shape)
      leaves.append(leaf)
    return tf.nest.pack_sequence_as(self.spec, leaves)


def _to_bytes(value: Any) -> bytes:
  return value if isinstance(value, bytes) else str(value).encode()


def _from_bytes(rows, column):
  """Returns the numbers of a column, `[..., *shape]`."""
  size = column.stored.itemsize
  shape = [*column.shape, size] if size > 1 else column.shape
  lead = rows.shape[:-1]
  if lead.is_fully_defined():
    shape = lead.as_list() + shape
  else:
    shape = tf.concat([tf.shape(rows)[:-1], tf.constant(shape, tf.int32)], 0)
  rows = tf.reshape(rows, shape)
  if column.stored == np.bool_:
    return tf.cast(rows, tf.bool)
  return tf.bitcast(rows, tf.as_dtype(column.stored))


def _read_strings(strings, places):
  """Returns the strings at `places`, int64 `[..., 2]`."""

  def read(place):
    begin, length = place[0], place[1]
    # A serialized tensor ends with its bytes; it is the only operation that
    # makes a string of numbers.
    proto = tf.io.serialize_tensor(strings[begin : begin + length])
    return tf.strings.substr(proto, -length, length)

  flat = tf.map_fn(
      lambda place: tf.cond(
          place[1] > 0, lambda: read(place), lambda: tf.constant('')
      ),
      tf.reshape(places, [-1, 2]),
      fn_output_signature=tf.string,
  )
  return tf.reshape(flat, tf.shape(places)[:-1])
