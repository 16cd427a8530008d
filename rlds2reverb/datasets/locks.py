"""Locks that end with the process that holds them.

`filelock` would be one more dependency, and would leave its file behind:
removing that file safely takes the loop below.
"""

import contextlib
import errno
import fcntl
import os
from typing import Iterator

from absl import logging

from rlds2reverb.datasets import files
from rlds2reverb.store import json_files

# The errors of file systems that lack an operation.
UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: str, target: str, *, wait: bool = False) -> Iterator[bool]:
  """Holds a lock while the body of a `with` statement runs.

  Args:
    path: the lock's file. It is made, and its folder too, and removed after.
    target: the path that the lock protects, for messages.
    wait: whether to wait for another process that has the lock.

  Yields:
    Whether the file system has locks at all.

  Raises:
    BlockingIOError: if another process has the lock, unless `wait` is set.
    OSError: if the file cannot be written.
  """
  json_files.refuse_link(path)
  with files.writing_to(target):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    while True:
      lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
      try:
        is_locked = _try_lock(lock, target, wait)
      except BaseException:
        os.close(lock)
        raise
      # The last owner may have removed the file after it was opened here.
      if not is_locked or _is_at(lock, path):
        break
      os.close(lock)
  try:
    yield is_locked
  finally:
    with contextlib.suppress(OSError):
      os.unlink(path)
    os.close(lock)


def _try_lock(lock: int, target: str, wait: bool) -> bool:
  """Locks a file, or returns False where the file system has no locks."""
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    if not wait:
      # The error number is left out: it would stand before the sentence.
      raise BlockingIOError(f'Another process is writing {target}.') from e
    logging.info('Waiting for another process, which writes %s.', target)
    fcntl.flock(lock, fcntl.LOCK_EX)
  except OSError as e:
    if e.errno not in UNSUPPORTED:
      raise
    return False
  return True


def _is_at(file: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(file), os.stat(path))
  except FileNotFoundError:
    return False
