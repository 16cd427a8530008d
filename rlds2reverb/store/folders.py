"""Folders of rows: new files with checksums, the marker, and one check of both.

store.json     the marker: the layout of rows, and the size and checksums of
               each file; it has a checksum, too, and is written last
arrays.npz     further arrays by name, such as the lengths of episodes
rows-*.bin     the rows of each group of columns
strings.bin    all strings, one after the other
"""

import contextlib
import json
import os
from typing import Any
import zlib

import numpy as np

from rlds2reverb.store import damage
from rlds2reverb.store import memory

# This file is written last: if it exists, the other files are complete.
MARKER = 'store.json'
ARRAYS = 'arrays.npz'
VERSION = 5
_OLD_MARKERS = ('prepared_frames.json', 'random_access.json')
# What to do about a folder that cannot be used.
_REMEDY = 'Remove the folder; the next call with it builds it again.'
# A file has a checksum for each block of this many bytes.
BLOCK_BYTES = 1 << 20


class ChecksummedFile:
  """A new file, or memory like a file, and the checksums of its blocks.

  Attributes:
    size: the number of bytes so far.
    checksums: the checksum of each block.
  """

  def __init__(self, path: str | None):
    """Creates the file, or memory if `path` is None."""
    self._path = path
    self._file: Any = None
    if path is not None:
      self._file = open(path, 'wb')  # noqa: SIM115  close() closes it.
    self._memory: Any = None
    self.size = 0
    self.checksums: list[int] = []

  def write(self, data: Any) -> None:
    """Appends bytes, or a flat array of bytes."""
    data = memoryview(data)
    if self._file is not None:
      self._file.write(data)
    elif data:
      self._reserve(self.size + len(data))
      self._memory[self.size : self.size + len(data)] = data
    while data:
      begin = self.size % BLOCK_BYTES
      part, data = data[: BLOCK_BYTES - begin], data[BLOCK_BYTES - begin :]
      checksum = self.checksums.pop() if begin else 0
      self.checksums.append(zlib.crc32(part, checksum))
      self.size += len(part)

  def read(self, row_bytes: int) -> np.ndarray:
    """Returns the bytes so far, uint8 `[N, row_bytes]`.

    Nothing can be appended to memory after this call.
    """
    if self._path is not None:
      self._file.flush()
      return map_file(self._path, row_bytes)
    if not self.size:
      return np.zeros([0, row_bytes], np.uint8)
    memory.collapse(self._memory)
    content = np.frombuffer(self._memory, np.uint8, self.size)
    return content.reshape([-1, row_bytes])

  def close(self) -> None:
    """Closes the file. Bytes that were read stay readable."""
    if self._file is not None:
      self._file.close()
    self._memory = None

  def _reserve(self, size: int) -> None:
    """Makes the memory large enough, without copying its content."""
    if self._memory is None:
      self._memory = memory.allocate(BLOCK_BYTES)
    if size > len(self._memory):
      self._memory.resize(max(size, len(self._memory) * 3 // 2))


def write_marker(folder: str, content: dict[str, Any]) -> None:
  """Writes the marker of a complete folder, which has JSON values."""
  text = json.dumps(content)
  marker = {
      'version': VERSION,
      'checksum': zlib.crc32(text.encode()),
      'content': text,
  }
  with open(os.path.join(folder, MARKER), 'x', encoding='utf-8') as f:
    json.dump(marker, f)


def read_marker(folder: str) -> dict[str, Any] | None:
  """Returns the content of a folder's marker; None if it has no marker.

  Raises:
    OSError: if the marker is damaged, or of another version.
  """
  path = os.path.join(folder, MARKER)
  try:
    with open(path, 'rb') as f:
      marker = damage.loads_json(f.read())
      version = marker['version']
      if version == VERSION:
        if zlib.crc32(marker['content'].encode()) != marker['checksum']:
          raise ValueError('its checksum is wrong')
        return damage.loads_json(marker['content'])
  except (FileNotFoundError, NotADirectoryError):
    old = [os.path.join(folder, name) for name in _OLD_MARKERS]
    path = next(filter(os.path.isfile, old), '')
    if not path:
      return None
    version = 'an older one'
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise _damaged(path, str(e)) from e
  raise OSError(
      f'{path} is of version {version}, and this is version {VERSION}.'
      f' {_REMEDY}'
  )


def check_files(folder: str, files: dict[str, Any], blocks: int | None) -> None:
  """Checks the files of a folder.

  Args:
    folder: the folder.
    files: the size and the checksums of each, by their names.
    blocks: how many blocks of a file are read: the first, the last and others
      between them; None for all.

  Raises:
    OSError: if a file is missing, or has other bytes than it had.
  """
  for name, (size, checksums) in files.items():
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
      raise _damaged(path, 'it is missing')
    num_bytes = os.path.getsize(path)
    if num_bytes != size:
      raise _damaged(path, f'it has {num_bytes} bytes instead of {size}')
    checked = np.arange(len(checksums))
    if blocks is not None and len(checked) > blocks:
      checked = np.linspace(0, len(checked) - 1, blocks).astype(int)
    with open(path, 'rb') as f:
      for block in checked.tolist():
        f.seek(block * BLOCK_BYTES)
        if zlib.crc32(f.read(BLOCK_BYTES)) != checksums[block]:
          raise _damaged(path, f'the checksum of MB {block} is wrong')


def naming_damage(folder: str) -> contextlib.AbstractContextManager[None]:
  """Turns errors of the content of a folder into OSErrors that name it."""
  path = os.path.join(folder, MARKER)
  return damage.naming_damage(path, _REMEDY)


def _damaged(path: str, problem: str) -> OSError:
  """Returns the error of a damaged file."""
  return OSError(f'{path} is damaged: {problem}. {_REMEDY}')


def map_file(path: str, row_bytes: int) -> np.ndarray:
  """Maps a file into memory, as an array whose bytes are read lazily.

  Args:
    path: the file.
    row_bytes: the number of bytes of a row.

  Returns:
    uint8 `[N, row_bytes]`.
  """
  if not os.path.getsize(path):
    return np.zeros([0, row_bytes], np.uint8)
  return np.asarray(np.memmap(path, np.uint8, 'r')).reshape(-1, row_bytes)
