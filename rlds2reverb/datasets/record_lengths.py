"""Finds the sizes of records in TFRecord files, before they are read.

A file is a sequence of records. Each has a header of 12 bytes, whose first 8
bytes are its length, and a checksum of 4 bytes at its end. The lengths are
found by going from header to header, in about 0.3 microseconds a record.
"""

import array
import mmap
import os
import struct

import numpy as np

_LENGTH = struct.Struct('<Q')
_HEADER_BYTES = 12
# The bytes in the file for each record, besides its content.
FRAME_BYTES = _HEADER_BYTES + 4


def read_lengths(path: str, stop: int) -> np.ndarray:
  """Returns the lengths of the first records of a TFRecord file, in bytes.

  Args:
    path: the path of a local file.
    stop: the number of records to look at.

  Returns:
    int64 `[R]`: fewer than `stop` if the file has fewer whole ones, or if the
    header of one is damaged. Reading the records will raise the error.

  Raises:
    OSError: if the file cannot be read.
  """
  lengths = array.array('q')
  add, unpack, position = lengths.append, _LENGTH.unpack_from, 0
  with open(path, 'rb') as f:
    size = os.fstat(f.fileno()).st_size
    if not size:
      return np.array([], np.int64)
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
      last = size - FRAME_BYTES  # Where the last header begins at the latest.
      while position <= last and len(lengths) < stop:
        length = unpack(content, position)[0]
        position += length + FRAME_BYTES
        if position > size:
          break
        add(length)
  return np.array(lengths, np.int64)
