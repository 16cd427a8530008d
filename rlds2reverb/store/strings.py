"""Strings of a store: in the store itself, or where a data set has them.

While an index is made, encoded images are replaced by references in `tf.data`:
16 bytes that do not occur in data by chance, and a cell. In the index, the cell
is in the row of its step.
"""

from collections.abc import Sequence
import functools
import os
import struct
from typing import Any, NamedTuple
import weakref
import zlib

import numpy as np

from rlds2reverb.store import array_records
from rlds2reverb.store import damage

# The file number of strings in the store itself.
OWN_FILE = -1
# The entry of a string: the number of its file, its length, where it begins,
# and the CRC-32 of its bytes. In an ArrayRecord file, it begins at a byte of a
# record; see `offset_in_record`.
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

# The number of bytes at both ends of a file that identify the indexed file. A
# string has its own checksum.
_END_BYTES = 4096
# A record, as a protocol buffer, has less than 2 GiB.
_OFFSET_BITS = 32
# If there are more files, those that were read last are open.
_MAX_OPEN = 512


def offset_in_record(record: int, offset: int) -> int:
  """Returns the `offset` of a cell for a byte of a record of a file."""
  return record << _OFFSET_BITS | offset


def record_and_offset(offset: int) -> tuple[int, int]:
  """Returns the record and the byte in it; undoes `offset_in_record`."""
  return offset >> _OFFSET_BITS, offset & ((1 << _OFFSET_BITS) - 1)


def reference(file: int, offset: int, value: bytes) -> bytes:
  """Returns the reference to a string that begins at a byte of a file."""
  return _MARK + _PACKED.pack(file, len(value), offset, zlib.crc32(value))


def referred(value: bytes) -> tuple[int, ...] | None:
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
    is_array_record: whether it is an ArrayRecord file.
  """

  name: str
  size: int
  checksum: int
  is_array_record: bool = False


def facts_of(
    folder: str, name: str, is_array_record: bool = False
) -> FileFacts:
  """Returns the facts by which an index knows a file."""
  with open(os.path.join(folder, name), 'rb') as f:
    return _facts_of(f.fileno(), name, is_array_record)


class DataFiles:
  """Reads strings from the files of a data set, from any thread and process.

  It reads with `pread` and maps nothing: truncating a file in use raises an
  error, and pages of files do not count as memory of this process.
  """

  def __init__(self, folder: str, facts: Sequence[FileFacts]):
    """Prepares to read; the files are opened when they are first read.

    Args:
      folder: the folder of the data set.
      facts: the facts of each file.

    Raises:
      FileNotFoundError: if a file does not exist.
      OSError: if a file has another size.
    """
    self.folder, self._facts = folder, facts
    self.paths = [os.path.join(folder, file.name) for file in facts]
    self._open = functools.lru_cache(_MAX_OPEN)(_OpenFile)
    self._records = array_records.RecordCache()
    for path, file in zip(self.paths, facts):
      try:
        size = os.path.getsize(path)
      except FileNotFoundError as e:
        raise FileNotFoundError(
            f'{path} is missing, but existed when the index was made. Restore'
            ' it; or remove the folder of the index: the next call with it'
            ' builds it again. If the data set has moved, give its new folder.'
        ) from e
      if size != file.size:
        raise _changed(path, f'has {size} bytes, but had {file.size}')

  def read(self, cell: Any) -> bytes:
    """Returns a string.

    Args:
      cell: the file, the length, the offset and the checksum of a `CELL`.

    Raises:
      OSError: if these are not the bytes that were indexed.
    """
    number, length, offset, checksum = cell
    path, facts = self.paths[number], self._facts[number]
    file = self._open(path, facts)
    if facts.is_array_record:
      record, offset = record_and_offset(offset)
      value = self._records.read(path, record)[offset : offset + length]
    else:
      value = os.pread(file.number, length, offset)
    if len(value) != length or zlib.crc32(value) != checksum:
      raise _changed(
          path,
          f'has other bytes than it had, {self.place_of(cell)} ({length} bytes'
          ' of an image)',
      )
    return value

  def place_of(self, cell: Any) -> str:
    """Describes where in its file a string begins."""
    number, _, offset, _ = cell
    if not self._facts[number].is_array_record:
      return f'at byte {offset}'
    record, offset = record_and_offset(offset)
    return f'at byte {offset} of record {record}'


class _OpenFile:
  """An open file, checked against the file that was indexed."""

  def __init__(self, path: str, facts: FileFacts):
    self.number = os.open(path, os.O_RDONLY)
    # This also closes it when Python ends, while `os` is still there.
    weakref.finalize(self, os.close, self.number)
    if _facts_of(self.number, facts.name, facts.is_array_record) != facts:
      raise _changed(path, 'is another file than it was')


def _facts_of(file: int, name: str, is_array_record: bool) -> FileFacts:
  size = os.fstat(file).st_size
  ends = os.pread(file, _END_BYTES, 0)
  ends += os.pread(file, _END_BYTES, max(size - _END_BYTES, 0))
  return FileFacts(name, size, zlib.crc32(ends), is_array_record)


def _changed(path: str, how: str) -> OSError:
  return OSError(
      damage.pointer_hint(path)
      or f'{path} {how} when the index was made. The index does not fit the'
      ' data any more. Remove its folder; the next call with it builds it'
      ' again.'
  )
