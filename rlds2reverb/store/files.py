"""Files of rows: new ones with checksums, their check, and mapped ones."""

import math
import mmap
import os
from typing import Any, BinaryIO, Optional, Sequence
import zlib

import numpy as np

# A file has a checksum for each block of this many bytes.
BLOCK_BYTES = 1 << 20
# Python 3.13 has this flag of mmap. Without it, Linux would reserve as much
# memory as the file is large, though the file is only read.
_MAP_NORESERVE = getattr(mmap, 'MAP_NORESERVE', 0x4000)


class ChecksummedFile:
  """A new file, and the checksums of its blocks.

  Attributes:
    path: where it can be read.
    size: the number of bytes so far.
  """

  def __init__(self, name: str, folder: Optional[str]):
    """Creates the file in a folder, or in memory if `folder` is None."""
    self._file: BinaryIO
    if folder is None:
      self._file = open(os.memfd_create(name), 'w+b')
      self.path = f'/proc/self/fd/{self._file.fileno()}'
    else:
      self.path = os.path.join(folder, name)
      self._file = open(self.path, 'xb')
    self.size = 0
    self._checksums = [0]

  def write(self, data: Any) -> None:
    """Appends bytes, or an array of them."""
    data = memoryview(data).cast('B') if len(data) else b''
    self._file.write(data)
    begin = 0
    while begin < len(data):
      room = BLOCK_BYTES - self.size % BLOCK_BYTES
      part = data[begin : begin + room]
      self._checksums[-1] = zlib.crc32(part, self._checksums[-1])
      self.size += len(part)
      begin += len(part)
      if len(part) == room:
        self._checksums.append(0)

  def finish(self) -> np.ndarray:
    """Writes the rest, and returns the checksums, uint32 `[B]`."""
    self._file.flush()
    count = -(-self.size // BLOCK_BYTES)
    return np.array(self._checksums[:count], np.uint32)

  def close(self) -> None:
    """Closes the file. What was mapped stays."""
    self._file.close()


def check_size(path: str, size: int, again: str) -> None:
  """Raises an OSError if a file has not so many bytes."""
  found = os.path.getsize(path) if os.path.isfile(path) else None
  if found is None:
    raise damaged(path, 'it is missing', again)
  if found != size:
    raise damaged(path, f'it has {found} bytes instead of {size}', again)


def check_blocks(
    path: str, checksums: Sequence[int], again: str, limit: Optional[int] = None
) -> None:
  """Checks all blocks of a file, or `limit` of them.

  Args:
    path: the file.
    checksums: the checksums of its blocks.
    again: what makes the file again, for errors.
    limit: how many blocks: the first, the last and others between them.

  Raises:
    OSError: if a block has other bytes than it had.
  """
  count = len(checksums)
  some = np.arange(count)
  if limit is not None and count > limit:
    some = np.linspace(0, count - 1, limit).astype(int)
  with open(path, 'rb') as f:
    for block in some.tolist():
      f.seek(block * BLOCK_BYTES)
      if zlib.crc32(f.read(BLOCK_BYTES)) != checksums[block]:
        raise damaged(path, f'the checksum of MB {block} is wrong', again)


def damaged(path: str, problem: str, again: str) -> OSError:
  """Returns the error of a damaged file."""
  return OSError(
      f'{path} is damaged: {problem}. Remove its folder, and {again}.'
  )


def map_file(path: str, shape: Sequence[int]) -> np.ndarray:
  """Returns a file as an array, uint8, whose bytes are read as they are used.

  Args:
    path: the file.
    shape: the shape of the array, of as many bytes as the file has.
  """
  size = math.prod(shape)
  if not size:
    return np.zeros(shape, np.uint8)
  with open(path, 'rb') as f:
    mapped = mmap.mmap(
        f.fileno(),
        size,
        mmap.MAP_PRIVATE | _MAP_NORESERVE,
        mmap.PROT_READ | mmap.PROT_WRITE,
    )
  return np.frombuffer(mapped, np.uint8).reshape(shape)
