"""Operations of the file system that survive a crash, or happen at once."""

import ctypes
import os

from rlds2reverb.datasets import locks

# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: str, other: str) -> bool:
  """Exchanges two folders in one step, or returns False if it cannot."""
  try:
    renameat2 = ctypes.CDLL(None).renameat2
  except AttributeError:
    return False
  result = renameat2(
      _AT_FDCWD,
      os.fsencode(one),
      _AT_FDCWD,
      os.fsencode(other),
      ctypes.c_uint(_RENAME_EXCHANGE),
  )
  return result == 0


def sync_tree(folder: str) -> None:
  """Makes sure that all that is in a folder is on disk, as `sync` does."""
  for path, _, names in os.walk(folder):
    for name in names:
      sync(os.path.join(path, name))
    sync(path)


def sync(path: str) -> None:
  """Makes sure that a file, or a folder's list of files, is on disk."""
  file = os.open(path, os.O_RDONLY)
  try:
    os.fsync(file)
  except OSError as e:
    # Some file systems can do this for files, but not for folders.
    if e.errno not in locks.UNSUPPORTED:
      raise
  finally:
    os.close(file)
