"""Finds the sizes of records in TFRecord files, before they are read.

A file is a sequence of records. Each has a header of 12 bytes, whose first 8
bytes are its length, and a checksum of 4 bytes at its end. The lengths are
found by going from header to header, in about 0.3 microseconds a record.
"""

import array
import mmap
import os
import struct
from typing import Sequence

import numpy as np

_LENGTH = struct.Struct('<Q')
_HEADER_BYTES = 12
# The bytes in the file for each record, besides its content.
FRAME_BYTES = _HEADER_BYTES + 4

# The number of records in a row whose bytes are added up; see `most_bytes`.
_RUNS = (1, 16)


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


def most_bytes(
    files: Sequence[np.ndarray], batch_size: int, cycle_length: int
) -> int:
  """Returns the largest number of bytes of a batch of consecutive records.

  The records of a file come in their order, interleaved with those of other
  files. The result holds for any interleaving.

  Args:
    files: the lengths of the records of each file, int64 `[R]`.
    batch_size: how many records a batch has.
    cycle_length: how many files TensorFlow reads at a time.
  """
  # A file is in the batch if it is read when the batch begins or when it ends,
  # or if all of its records are in the batch.
  fewest = max(min(map(len, files)), 1)
  num_files = min(
      len(files), 2 * cycle_length + batch_size // fewest, batch_size
  )
  whole = sorted(_most_in_a_row(lengths, batch_size) for lengths in files)
  bounds = [sum(whole[-num_files:])]
  for run in _RUNS:
    # This many runs cover the records of the batch, file by file.
    num_runs = (batch_size - num_files) // run + num_files
    bounds.append(
        num_runs * max(_most_in_a_row(lengths, run) for lengths in files)
    )
  return min(bounds)


def _most_in_a_row(lengths: np.ndarray, count: int) -> int:
  """Returns the largest number of bytes of `count` records in a row."""
  ends = np.concatenate([[0], np.cumsum(lengths)])
  count = min(count, len(lengths))
  return int(np.max(ends[count:] - ends[: len(ends) - count]))
