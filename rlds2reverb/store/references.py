"""References: strings that say where the bytes of an image are.

While an index is made, a reference goes through `tf.data` in the place of each
encoded image: 16 bytes that no data has by chance, and a cell. In the index,
the cell is in the row of its step.
"""

import hashlib
import struct
from typing import Optional
import zlib

import numpy as np

# This stands for the file of a string that is in the index itself.
OWN_FILE = -1

# The entry of a string in an index: the number of its file, its length, where
# it begins, and the CRC-32 of its bytes.
CELL = np.dtype(
    [
        ('file', '<i4'),
        ('length', '<u4'),
        ('offset', '<i8'),
        ('checksum', '<u4'),
    ]
)
_PACKED = struct.Struct('<iIqI')  # A `CELL`.
MARK_BYTES = 16
_NUM_BYTES = MARK_BYTES + CELL.itemsize


def new_mark(identity: str) -> bytes:
  """Returns the first bytes of the references of one index.

  Args:
    identity: a string that differs for any other data.
  """
  return hashlib.sha256(identity.encode()).digest()[:MARK_BYTES]


def reference(
    mark: bytes, file: int, begin: int, place: int, value: memoryview
) -> bytes:
  """Returns the reference to a string of a record.

  Args:
    mark: what references begin with.
    file: the number of the file that has the string.
    begin: where in the file the record begins.
    place: where in the record the string begins.
    value: the string.
  """
  return mark + _PACKED.pack(file, len(value), begin + place, zlib.crc32(value))


def cells_of(
    strings: np.ndarray, mark: Optional[bytes], add_string
) -> np.ndarray:
  """Returns the cells of strings.

  Args:
    strings: objects, bytes, of any shape.
    mark: what references begin with; None if there are none.
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
  if mark and len(joined) == _NUM_BYTES * len(flat):
    parts = np.frombuffer(joined, np.uint8).reshape([len(flat), _NUM_BYTES])
    if (parts[:, :MARK_BYTES] == np.frombuffer(mark, np.uint8)).all():
      cells = np.ascontiguousarray(parts[:, MARK_BYTES:]).view(CELL)
      return cells.reshape(strings.shape)
  cells = np.zeros(len(flat), CELL)
  for number, value in enumerate(flat):
    if mark and len(value) == _NUM_BYTES and value.startswith(mark):
      cells[number] = np.frombuffer(value, CELL, offset=MARK_BYTES)[0]
    else:
      cells[number] = OWN_FILE, len(value), add_string(value), 0
  return cells.reshape(strings.shape)
