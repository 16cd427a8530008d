"""Strings of a store: in the store itself, or where a data set has them.

While an index is made, a reference goes through `tf.data` in the place of each
encoded image: 16 bytes that no data has by chance, and a cell. In the index,
the cell is in the row of its step.
"""

import hashlib
import os
import struct
import threading
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple
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
_MARK_BYTES = 16

# The number of bytes at both ends of a file that tell whether it is the one
# that was indexed. A string has a checksum of its own.
_END_BYTES = 4096
# If there are more files, each is opened whenever it is read.
_MAX_OPEN = 512


def new_mark(identity: str) -> bytes:
  """Returns the first bytes of the references of one index.

  Args:
    identity: a string that differs for any other data.
  """
  return hashlib.sha256(identity.encode()).digest()[:_MARK_BYTES]


def reference(mark: bytes, file: int, offset: int, value: bytes) -> bytes:
  """Returns the reference to a string that begins at a byte of a file."""
  return mark + _PACKED.pack(file, len(value), offset, zlib.crc32(value))


def referred(value: bytes, mark: Optional[bytes]) -> Optional[Tuple[int, ...]]:
  """Returns the cell of a reference; None for any other string."""
  if mark and value.startswith(mark) and len(value) == len(mark) + _PACKED.size:
    return _PACKED.unpack_from(value, len(mark))
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
    return _facts(name, f.fileno())


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
    self.folder, self.facts = folder, list(facts)
    self._open: Dict[int, int] = {}
    # This also closes them when Python ends, while `os` is still there.
    weakref.finalize(self, _close_all, self._open)
    self._lock = threading.Lock()
    for number, known in enumerate(self.facts):
      path = self.path(number)
      try:
        size = os.path.getsize(path)
      except FileNotFoundError as e:
        raise FileNotFoundError(
            f'{path}, which the index refers to, is not there. If the data set'
            ' has moved, open the index with data_dir= its folder.'
        ) from e
      if size != known.size:
        raise self._changed(number, f'has {size} bytes, but had {known.size}')

  def path(self, number: int) -> str:
    """Returns the path of a file."""
    return os.path.join(self.folder, self.facts[number].name)

  def read(self, cell: Any) -> bytes:
    """Returns a string.

    Args:
      cell: the file, the length, the offset and the checksum of a `CELL`.

    Raises:
      OSError: if these are not the bytes that were indexed.
    """
    number, length, offset, checksum = cell
    file = self._open.get(number)
    if file is None:
      file = self._checked(number)
    try:
      value = os.pread(file, length, offset)
    finally:
      if number not in self._open:
        os.close(file)
    if len(value) != length or zlib.crc32(value) != checksum:
      raise self._changed(
          number,
          f'has other bytes than it had, at byte {offset} ({length} bytes'
          ' of an image)',
      )
    return value

  def _checked(self, number: int) -> int:
    """Opens a file, and checks whether it is the one that was indexed."""
    with self._lock:
      if number in self._open:
        return self._open[number]
      file = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
      if _facts(self.facts[number].name, file) != self.facts[number]:
        os.close(file)
        raise self._changed(number, 'is another file than it was')
      if len(self._open) < _MAX_OPEN:
        self._open[number] = file
      return file

  def _changed(self, number: int, how: str) -> OSError:
    return OSError(
        f'{self.path(number)} {how} when the index was made. The index does not'
        ' fit the data any more: remove its folder, and make it again.'
    )


def _facts(name: str, file: int) -> FileFacts:
  size = os.fstat(file).st_size
  ends = os.pread(file, _END_BYTES, 0)
  ends += os.pread(file, _END_BYTES, max(size - _END_BYTES, 0))
  return FileFacts(name, size, zlib.crc32(ends))


def _close_all(files: Dict[int, int]) -> None:
  for file in files.values():
    os.close(file)
