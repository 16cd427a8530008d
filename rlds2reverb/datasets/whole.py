"""Folders and files that are written whole or not at all.

Of a local folder `data` this is what there is beside it, and when:

    .data.lock        while a process writes, held with `flock`: where nobody
                      holds it, the writer is dead
    .data.unfinished  what is being written; then, for a moment, what was there
    .data.replaced    what is being replaced, for the moment between two
                      renames, where a file system cannot exchange two folders

A dead writer's are put right by the next one. Other file systems than a local
one cannot rename a folder: there one is whole when its last file is there.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from typing import Iterator, NamedTuple, Sequence

from absl import logging
from etils import epath
import tensorflow as tf

from rlds2reverb.datasets import files

# How file systems say that they have no locks, or do not sync folders.
_UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class _Names(NamedTuple):
  """The paths of a target, and of what is beside it."""

  target: str
  lock: str
  unfinished: str
  replaced: str


@contextlib.contextmanager
def new_folder(
    directory: str, markers: Sequence[str], *, replace: bool = False
) -> Iterator[str]:
  """Yields a local folder to write into, which becomes `directory` at the end.

  Until then there is nothing in `directory`, or what was there. All is on disk,
  and not only in memory, before it becomes visible. If the body fails, what it
  has written is removed. If the folder cannot be moved to `directory` at the
  end, it is kept, and the error says where.

  Args:
    directory: the folder, as `files.expand` returns it. Its parents are made. A
      symbolic link stays, and what it points to is written.
    markers: the names of the files that tell that the folder is whole, in their
      order. At a URL they come last.
    replace: whether a folder that is there, and not empty, is replaced.

  Raises:
    BlockingIOError: if another process is writing it.
    FileExistsError: if it exists, is not empty, and is not to be replaced.
    OSError: if it cannot be written, or not replaced.
  """
  if files.is_url(directory):
    with _new_remote(directory, markers, replace) as folder:
      yield folder
    return
  names = _names_of(directory)
  if os.path.ismount(names.target):
    raise OSError(
        f'{directory} is a mount point, which cannot be replaced by a whole'
        ' folder. Choose a folder in it.'
    )
  with _locked(names) as is_locked:
    _put_right(names, is_locked)
    _check_free(directory, replace)
    with _reasons(directory):
      os.mkdir(names.unfinished)
    try:
      yield names.unfinished
    except BaseException:
      shutil.rmtree(names.unfinished, ignore_errors=True)
      raise
    try:
      _sync_tree(names.unfinished)
      _move(names, replace)
    except OSError as e:
      kept = _keep(names)
      raise OSError(
          f'All is written, but could not be moved to {directory}: {e}. It is'
          f' kept in {kept}.'
      ) from e
    _sync(os.path.dirname(names.target))
    # Where it was exchanged, this is what was replaced.
    shutil.rmtree(names.unfinished, ignore_errors=True)
    shutil.rmtree(names.replaced, ignore_errors=True)


def put_right(directory: str) -> None:
  """Puts back what was replaced, where a writer died between two renames."""
  if files.is_url(directory):
    return
  names = _names_of(directory)
  if os.path.exists(names.replaced):
    # Where a living writer has the lock, it is between them now.
    with contextlib.suppress(BlockingIOError), _locked(names) as is_locked:
      _put_right(names, is_locked)


def write_text(path: str, text: str) -> None:
  """Writes a file whole, in the place of what is there.

  Raises:
    OSError: if it cannot be written.
  """
  if files.is_url(path):
    with files.os_errors(path):
      epath.Path(path).write_text(text)
    return
  names = _names_of(path)
  with _locked(names, wait=True):
    try:
      with open(names.unfinished, 'w', encoding='utf-8') as f:
        f.write(text)
      _sync(names.unfinished)
      os.replace(names.unfinished, names.target)
    except BaseException:
      with contextlib.suppress(OSError):
        os.unlink(names.unfinished)
      raise


def _names_of(path: str) -> _Names:
  target = os.path.realpath(path)
  folder, name = os.path.split(target)
  return _Names(
      target,
      *(
          os.path.join(folder, f'.{name}.{suffix}')
          for suffix in ('lock', 'unfinished', 'replaced')
      ),
  )


@contextlib.contextmanager
def _locked(names: _Names, wait: bool = False) -> Iterator[bool]:
  """Holds the lock; yields whether there are locks at all."""
  with _reasons(names.target):
    os.makedirs(os.path.dirname(names.lock), exist_ok=True)
    while True:
      lock = os.open(names.lock, os.O_RDWR | os.O_CREAT, 0o666)
      try:
        is_locked = _try_lock(lock, names, wait)
      except BaseException:
        os.close(lock)
        raise
      # Who had it before may have removed the file since it was opened.
      if not is_locked or _is_at(lock, names.lock):
        break
      os.close(lock)
  try:
    yield is_locked
  finally:
    with contextlib.suppress(OSError):
      os.unlink(names.lock)
    os.close(lock)


def _try_lock(lock: int, names: _Names, wait: bool) -> bool:
  """Locks a file, or returns False where the file system has no locks."""
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
  except BlockingIOError as e:
    raise BlockingIOError(
        e.errno, f'Another process is writing {names.target}.'
    ) from e
  except OSError as e:
    if e.errno not in _UNSUPPORTED:
      raise
    return False
  return True


def _is_at(file: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(file), os.stat(path))
  except FileNotFoundError:
    return False


def _put_right(names: _Names, is_locked: bool) -> None:
  """Removes or puts back what a dead writer has left."""
  if os.path.exists(names.replaced) and not os.path.exists(names.target):
    if is_locked:
      os.rename(names.replaced, names.target)
  for path in names.unfinished, names.replaced:
    if os.path.exists(path):
      if not is_locked:
        raise FileExistsError(
            f'{path} is of another process. The file system has no locks to'
            ' tell whether it is still at work. Remove it if it is not.'
        )
      logging.info('Removing %s, which a process that died has left.', path)
      shutil.rmtree(path)


def _check_free(directory: str, replace: bool) -> None:
  if not files.is_folder(directory):
    if files.exists(directory):
      raise FileExistsError(f'{directory} is a file. Choose another path.')
  elif files.names_in(directory) and not replace:
    raise FileExistsError(
        f'{directory} is not empty. Remove it, or choose a new directory.'
    )


@contextlib.contextmanager
def _reasons(directory: str) -> Iterator[None]:
  """Says, in one line, that `directory` cannot be written, and why."""
  try:
    yield
  except BlockingIOError:
    raise
  except OSError as e:
    raise type(e)(
        e.errno, f'{directory} cannot be written: {e.strerror}', e.filename
    ) from e


def _move(names: _Names, replace: bool) -> None:
  """Moves what is finished to its place."""
  is_there = replace and os.path.isdir(names.target)
  if not is_there or not os.listdir(names.target):
    # This takes the place of an empty folder, and of no other.
    os.rename(names.unfinished, names.target)
  elif not _exchange(names.unfinished, names.target):
    os.rename(names.target, names.replaced)
    try:
      os.rename(names.unfinished, names.target)
    except BaseException:
      os.rename(names.replaced, names.target)
      raise


def _exchange(one: str, other: str) -> bool:
  """Exchanges two folders in one step, or returns False."""
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


def _keep(names: _Names) -> str:
  """Moves what is finished where no later writer removes it."""
  folder, name = os.path.split(names.target)
  try:
    kept = tempfile.mkdtemp(prefix=f'{name}.finished.', dir=folder)
  except OSError:
    return names.unfinished
  os.rename(names.unfinished, kept)
  return kept


def _sync_tree(folder: str) -> None:
  """Has all that is in a folder written to disk."""
  for path, _, names in os.walk(folder):
    for name in names:
      _sync(os.path.join(path, name))
    _sync(path)


def _sync(path: str) -> None:
  file = os.open(path, os.O_RDONLY)
  try:
    os.fsync(file)
  except OSError as e:
    # Some file systems have it for files, but not for folders.
    if e.errno not in _UNSUPPORTED:
      raise
  finally:
    os.close(file)


@contextlib.contextmanager
def _new_remote(
    directory: str, markers: Sequence[str], replace: bool
) -> Iterator[str]:
  """Yields a local folder, which is copied to a URL at the end."""
  if replace and files.names_in(directory):
    raise OSError(
        f'{directory} cannot be replaced in one step. Remove it first, or'
        ' choose another directory.'
    )
  _check_free(directory, replace)
  with files.os_errors(directory):
    # This tells before the work whether it can be written.
    epath.Path(directory).mkdir(parents=True, exist_ok=True)
  folder = tempfile.mkdtemp()
  try:
    yield folder
  except BaseException:
    shutil.rmtree(folder, ignore_errors=True)
    raise
  try:
    with files.os_errors(directory):
      names = [name for name in os.listdir(folder) if name not in markers]
      for name in [*names, *markers]:
        tf.io.gfile.copy(
            os.path.join(folder, name), os.path.join(directory, name)
        )
  except OSError as e:
    raise OSError(
        f'All is written, but could not be copied to {directory}: {e}. It is'
        f' kept in {folder}.'
    ) from e
  shutil.rmtree(folder, ignore_errors=True)
