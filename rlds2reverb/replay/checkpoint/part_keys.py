"""Sorted keys in files, merged without holding them in memory.

The file of a part has the keys of its chunks, or of its items, as uint64 in
little-endian order, the least key first. A key that several parts hold is found
by reading each of their files once.
"""

import contextlib
from typing import Iterator, Optional, Sequence

import numpy as np

from rlds2reverb.datasets import files

KINDS = ('chunks', 'items')
_DTYPE = np.dtype('<u8')
# How many keys, of all files together, a merge holds in memory at a time.
_KEYS_IN_MEMORY = 1 << 20
_MIN_KEYS_PER_READ = 1 << 10


def file_of(kind: str) -> str:
  """Returns the name of the file with the keys of one of `KINDS`."""
  return f'{kind}.keys'


def write(path: str, kind: str, keys: np.ndarray) -> None:
  """Writes keys of one of `KINDS`, uint64 `[N]` in any order.

  Raises:
    OSError: if the file cannot be written.
    ValueError: if a key comes twice.
  """
  keys = np.sort(keys).astype(_DTYPE)
  check_distinct(kind, keys)
  keys.tofile(path)


def merge(
    paths: Sequence[str], kind: str, target: Optional[str] = None
) -> None:
  """Merges files of sorted keys into one, or only looks for keys in common.

  Args:
    paths: the files.
    kind: the kind of the keys, one of `KINDS`.
    target: the file to write, if any.

  Raises:
    OSError: if a file cannot be read or written.
    ValueError: if a key comes twice.
  """
  with contextlib.ExitStack() as stack:
    merged = target and stack.enter_context(open(target, 'wb'))
    last = np.zeros(0, _DTYPE)
    for keys in _merged(paths):
      check_distinct(kind, np.concatenate([last, keys]))
      last = keys[-1:]
      if merged:
        keys.tofile(merged)


def _merged(paths: Sequence[str]) -> Iterator[np.ndarray]:
  """Yields the keys of all files in increasing order, some at a time."""
  length = max(_KEYS_IN_MEMORY // max(len(paths), 1), _MIN_KEYS_PER_READ)
  readers = [_Reader(path, length) for path in paths]
  while True:
    readers = [reader for reader in readers if len(reader.keys)]
    if not readers:
      return
    # Keys that are not read yet are greater than the least of these.
    bound = min(reader.keys[-1] for reader in readers)
    yield np.sort(
        np.concatenate([reader.take_up_to(bound) for reader in readers])
    )


class _Reader:
  """Reads a file of sorted keys, some at a time.

  Attributes:
    keys: the keys that were read and not taken; none if all were taken.
  """

  def __init__(self, path: str, length: int):
    self._path = path
    self._length = length
    self._position = 0
    self.keys = self._read()

  def take_up_to(self, bound: np.uint64) -> np.ndarray:
    """Returns the keys that were read and are not greater than a key."""
    end = int(np.searchsorted(self.keys, bound, 'right'))
    taken, self.keys = self.keys[:end], self.keys[end:]
    if not len(self.keys):
      self.keys = self._read()
    return taken

  def _read(self) -> np.ndarray:
    # There may be more parts than files that a process may have open.
    with files.open_binary(self._path) as f:
      f.seek(self._position)
      content = f.read(self._length * _DTYPE.itemsize)
    self._position += len(content)
    return np.frombuffer(content, _DTYPE)


def check_distinct(kind: str, keys: np.ndarray) -> None:
  """Raises a ValueError if sorted keys have one that comes twice."""
  if np.any(keys[1:] == keys[:-1]):
    raise ValueError(
        f'Two {kind} have the same key, so one would replace the other. Write'
        ' them under another identity.'
    )
