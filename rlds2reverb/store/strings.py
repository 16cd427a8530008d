"""Strings of a store: in the store itself, or where a data set has them.

While an index is made, a reference goes through `tf.data` in the place of each
encoded image: 16 bytes that no data has by chance, and a cell. In the index,
the cell is in the row of its step.
"""

import functools
import os
import struct
from typing import Any, NamedTuple, Optional, Sequence, Tuple
import weakref
import zlib

import numpy as np

# This stands for the file of a string that is in the store itself.
OWN_FILE = -1
# The entry of a string: the number of its file, its length, where it begins,
# and the CRC-32 of its bytes.
CELL = np.dtype(
    [
        ('file', '<i4'),
        ('length', '<u4'),
        ('offset', '<i8'),
        ('checksum', '<u4'),
    ]
)
_PACKED = struct.Struct('<iIqI')  # A `CELL`.
_MARK = bytes.fromhex('6b0c9e51d2f84a37b1e6c5087f93ad24')

# The number of bytes at both ends of a file that tell whether it is the one
# that was indexed. A string has a checksum of its own.
_END_BYTES = 4096
# If there are more files, those that were read last are open.
_MAX_OPEN = 512


def reference(file: int, offset: int, value: bytes) -> bytes:
  """Returns the reference to a string that begins at a byte of a file."""
  return _MARK + _PACKED.pack(file, len(value), offset, zlib.crc32(value))


def referred(value: bytes) -> Optional[Tuple[int, ...]]:
  """Returns the cell of a reference; None for any other string."""
  if len(value) == len(_MARK) + _PACKED.size and value.startswith(_MARK):
    return _PACKED.unpack_from(value, len(_MARK))
  return None


class FileFacts(NamedTuple):
  """The facts by which an index knows a file.

  Attributes:
    name: its name in the folder of the data set.
    size: how many bytes it has.
    checksum: the CRC-32 of its first and last bytes.
  """

  name: str
  size: int
  checksum: int


def facts_of(folder: str, name: str) -> FileFacts:
  """Returns the facts by which an index knows a file."""
  with open(os.path.join(folder, name), 'rb') as f:
    return _facts_of(f.fileno(), name)


class DataFiles:
  """Reads strings from the files of a data set, from any thread and process.

  It reads with `pread` and maps nothing: a file that is cut while it is in use
  is an error, and pages of files do not count as memory of this process.
  """

  def __init__(self, folder: str, facts: Sequence[FileFacts]):
    """Prepares to read; the files are opened when they are first read.

    Args:
      folder: the folder of the data set.
      facts: the facts of each file.

    Raises:
      FileNotFoundError: if a file is not there.
      OSError: if a file has another size.
    """
    self.folder, self._facts = folder, facts
    self.paths = [os.path.join(folder, known.name) for known in facts]
    self._open = functools.lru_cache(_MAX_OPEN)(_OpenFile)
    for path, known in zip(self.paths, facts):
      try:
        size = os.path.getsize(path)
      except FileNotFoundError as e:
        raise FileNotFoundError(
            f'{path}, which the index refers to, is not there. If the data set'
            ' has moved, open the index with data_dir= its folder.'
        ) from e
      if size != known.size:
        raise _changed(path, f'has {size} bytes, but had {known.size}')

  def read(self, cell: Any) -> bytes:
    """Returns a string.

    Args:
      cell: the file, the length, the offset and the checksum of a `CELL`.

    Raises:
      OSError: if these are not the bytes that were indexed.
    """
    number, length, offset, checksum = cell
    file = self._open(self.paths[number], self._facts[number])
    value = os.pread(file.number, length, offset)
    if len(value) != length or zlib.crc32(value) != checksum:
      raise _changed(
          self.paths[number],
          f'has other bytes than it had, at byte {offset} ({length} bytes of an'
          ' image)',
      )
    return value


class _OpenFile:
  """A file that is open, and is the one that was indexed."""

  def __init__(self, path: str, known: FileFacts):
    self.number = os.open(path, os.O_RDONLY)
    # This also closes it when Python ends, while `os` is still there.
    weakref.finalize(self, os.close, self.number)
    if _facts_of(self.number, known.name) != known:
      raise _changed(path, 'is another file than it was')


def _facts_of(file: int, name: str) -> FileFacts:
  size = os.fstat(file).st_size
  ends = os.pread(file, _END_BYTES, 0)
  ends += os.pread(file, _END_BYTES, max(size - _END_BYTES, 0))
  return FileFacts(name, size, zlib.crc32(ends))


def _changed(path: str, how: str) -> OSError:
  return OSError(
      f'{path} {how} when the index was made. The index does not fit the data'
      ' any more: remove its folder, and make it again.'
  )
