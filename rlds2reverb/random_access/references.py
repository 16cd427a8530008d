"""References: where the bytes of a string are, instead of the bytes.

While an index is made, an encoded image goes through `tf.data` as the string of
its reference: 16 bytes that no data can have by chance, and a cell. In the
index a cell stands in the row of its step.
"""

import os
import zlib

import numpy as np

# A string that is in the index itself has this in the place of its file.
OWN_FILE = -1

# What an index has for each string: the number of its file, its length, where
# it begins, and the CRC-32 of its bytes.
CELL = np.dtype(
    [
        ('file', '<i4'),
        ('length', '<u4'),
        ('offset', '<i8'),
        ('checksum', '<u4'),
    ]
)
MARK_BYTES = 16
_NUM_BYTES = MARK_BYTES + CELL.itemsize


def new_mark() -> bytes:
  """Returns what the references of one index begin with."""
  return os.urandom(MARK_BYTES)


def reference(mark: bytes, file: int, offset: int, value: bytes) -> bytes:
  """Returns the reference to a string.

  Args:
    mark: what references begin with.
    file: the number of the file that has the string.
    offset: where in the file it begins.
    value: the string, any object with bytes.
  """
  cell = np.array((file, len(value), offset, zlib.crc32(value)), CELL)
  return mark + cell.tobytes()


def cells_of(strings: np.ndarray, mark: bytes, add_string) -> np.ndarray:
  """Returns the cells of strings.

  Args:
    strings: objects, bytes, of any shape.
    mark: what references begin with.
    add_string: stores a string that is no reference, and returns where in the
      index it begins.

  Returns:
    `CELL`, of the same shape.
  """
  flat = [
      value if isinstance(value, bytes) else str(value).encode()
      for value in strings.ravel()
  ]
  if not flat:
    return np.zeros(strings.shape, CELL)
  joined = b''.join(flat)
  if len(joined) == _NUM_BYTES * len(flat):
    parts = np.frombuffer(joined, np.uint8).reshape([len(flat), _NUM_BYTES])
    if (parts[:, :MARK_BYTES] == np.frombuffer(mark, np.uint8)).all():
      cells = np.ascontiguousarray(parts[:, MARK_BYTES:]).view(CELL)
      return cells.reshape(strings.shape)
  cells = np.zeros(len(flat), CELL)
  for number, value in enumerate(flat):
    if len(value) == _NUM_BYTES and value.startswith(mark):
      cells[number] = np.frombuffer(value, CELL, offset=MARK_BYTES)[0]
    else:
      cells[number] = (
          OWN_FILE,
          len(value),
          add_string(value),
          zlib.crc32(value),
      )
  return cells.reshape(strings.shape)
