"""Folders of rows: new files with checksums, the marker, and one check of both.

store.json     what the rows are, and the size and the checksums of each
               file; it has a checksum of its own, and is written last
arrays.npz     one array for each thing to know, such as lengths of episodes
rows-*.bin     the rows of each group of columns
strings.bin    all strings, one after the other
"""

import json
import os
from typing import Any, BinaryIO, Dict, List, Optional
import zlib

import numpy as np

# This file is written last: where it is, the others are whole.
MARKER = 'store.json'
ARRAYS = 'arrays.npz'
VERSION = 5
_OLD_MARKERS = ('prepared_frames.json', 'random_access.json')
# A file has a checksum for each block of this many bytes.
BLOCK_BYTES = 1 << 20


class ChecksummedFile:
  """A new file, and the checksums of its blocks.

  Attributes:
    path: where it can be read while it is open.
    size: the number of bytes so far.
    checksums: the checksum of each block of them.
  """

  def __init__(self, name: str, folder: Optional[str]):
    """Creates the file in a folder, or in memory if `folder` is None."""
    target: Any = folder and os.path.join(folder, name)
    target = target or os.memfd_create(name)
    self.file: BinaryIO = open(target, 'wb')
    self.path = f'/proc/self/fd/{self.file.fileno()}'
    self.size = 0
    self.checksums: List[int] = []

  def write(self, data: Any) -> None:
    """Appends bytes, or a flat array of them."""
    self.file.write(data)
    rest = memoryview(data)
    while rest:
      begin = self.size % BLOCK_BYTES
      part, rest = rest[: BLOCK_BYTES - begin], rest[BLOCK_BYTES - begin :]
      before = self.checksums.pop() if begin else 0
      self.checksums.append(zlib.crc32(part, before))
      self.size += len(part)


def write_marker(folder: str, content: Dict[str, Any]) -> None:
  """Writes the file that says that a folder is whole, of JSON values."""
  text = json.dumps(content)
  marker = {
      'version': VERSION,
      'checksum': zlib.crc32(text.encode()),
      'content': text,
  }
  with open(os.path.join(folder, MARKER), 'x', encoding='utf-8') as f:
    json.dump(marker, f)


def read_marker(folder: str) -> Optional[Dict[str, Any]]:
  """Returns what a folder says of itself; None if it has no rows.

  Raises:
    OSError: if that is damaged, or of another version.
  """
  path = os.path.join(folder, MARKER)
  try:
    with open(path, 'rb') as f:
      marker = json.loads(f.read())
      version = marker['version']
      if version == VERSION:
        if zlib.crc32(marker['content'].encode()) != marker['checksum']:
          raise ValueError('its checksum is wrong')
        return json.loads(marker['content'])
  except (FileNotFoundError, NotADirectoryError):
    old = [os.path.join(folder, name) for name in _OLD_MARKERS]
    path = next(filter(os.path.isfile, old), '')
    if not path:
      return None
    version = 'an older one'
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise _damaged(path, str(e)) from e
  raise OSError(
      f'{path} is of version {version}, and this is version {VERSION}. Remove'
      ' its folder, and make it again.'
  )


def check_files(
    folder: str, files: Dict[str, Any], blocks: Optional[int]
) -> None:
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
    found = os.path.getsize(path) if os.path.isfile(path) else None
    if found is None:
      raise _damaged(path, 'it is missing')
    if found != size:
      raise _damaged(path, f'it has {found} bytes instead of {size}')
    some = np.arange(len(checksums))
    if blocks is not None and len(some) > blocks:
      some = np.linspace(0, len(some) - 1, blocks).astype(int)
    with open(path, 'rb') as f:
      for block in some.tolist():
        f.seek(block * BLOCK_BYTES)
        if zlib.crc32(f.read(BLOCK_BYTES)) != checksums[block]:
          raise _damaged(path, f'the checksum of MB {block} is wrong')


def _damaged(path: str, problem: str) -> OSError:
  """Returns the error of a damaged file."""
  return OSError(
      f'{path} is damaged: {problem}. Remove its folder, and make it again.'
  )


def map_file(path: str, row_bytes: int) -> np.ndarray:
  """Returns a file as an array, whose bytes are read as they are used.

  Args:
    path: the file.
    row_bytes: the number of bytes of a row.

  Returns:
    uint8 `[N, row_bytes]`.
  """
  if not os.path.getsize(path):
    return np.zeros([0, row_bytes], np.uint8)
  return np.asarray(np.memmap(path, np.uint8, 'r')).reshape(-1, row_bytes)
