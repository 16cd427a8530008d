"""Folders and files that are written whole or not at all.

While a process writes a local folder `data`, there are beside it:

    .data.lock        a file that the process has locked with `flock`. Where it
                      is not locked, the process has died.
    .data.unfinished  what is being written. At the end it is exchanged with
                      what was in `data`, which is then removed.
    .data.turn        a lock, too, of `one_at_a_time`.
    .data.replaced    what was in `data`, for the moment between two renames,
                      where a file system cannot exchange two folders.

If a process dies, the next writer removes or puts back what it left there. Only
a local file system can rename a folder. On others, a folder is whole when its
last file is there. Until then it has a file `.unfinished`, by which a writer is
at work, or has died.

TFDS's `incomplete_dir` and `atomic_write` do less: they remove the old folder
before they rename the new one, so that a process that is killed in between
loses both; they leave what it wrote; and nothing is synced to the disk first.
"""

import contextlib
import ctypes
import os
import re
import shutil
import tempfile
from typing import Iterator, Sequence

from absl import logging
from etils import epath
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import locks
from rlds2reverb.store import json_files

_UNFINISHED = '.unfinished'
# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def new_folder(
    directory: str, markers: Sequence[str], *, replace: bool = False
) -> Iterator[str]:
  """Yields a local folder to write into, which becomes `directory` at the end.

  Until then `directory` stays as it was. All files are on disk, and not only in
  memory, before they become visible. If the body fails, what it has written is
  removed. If the folder cannot be moved to `directory` at the end, it is kept,
  and the error says where.

  Args:
    directory: the folder, as `files.expand` returns it. Its parents are made.
      If it is a symbolic link, the folder that it points to is written.
    markers: the names of the files that show that the folder is whole. At a URL
      they are copied last, in this order.
    replace: whether a folder that exists and is not empty is replaced.

  Raises:
    BlockingIOError: if another process is writing it.
    FileExistsError: if it exists, is not empty, and is not to be replaced.
    OSError: if it cannot be written, or not replaced.
  """
  if files.is_url(directory):
    with _new_remote(directory, markers, replace) as folder:
      yield folder
    return
  target = os.path.realpath(directory)
  if os.path.ismount(target):
    raise OSError(
        f'{directory} is a mount point, which cannot be replaced by a whole'
        ' folder. Choose a folder in it.'
    )
  unfinished = _beside(target, 'unfinished')
  with locks.locked(_beside(target, 'lock'), target) as is_locked:
    _recover(target, is_locked)
    _check_free(directory, replace)
    with files.writing_to(directory):
      os.mkdir(unfinished)
    with _removed_on_error(unfinished):
      yield unfinished
    try:
      for folder, _, found in os.walk(unfinished):
        for name in [*found, '']:
          sync(os.path.join(folder, name))
      _move(unfinished, target, replace)
    except OSError as e:
      # No later writer removes it from there.
      folder, name = os.path.split(target)
      kept = tempfile.mkdtemp(prefix=f'{name}.finished.', dir=folder)
      os.rename(unfinished, kept)
      raise OSError(
          f'All is written, but could not be moved to {directory}: {e}. It is'
          f' kept in {kept}.'
      ) from e
    sync(os.path.dirname(target))
    # After an exchange this folder has the old content of `directory`.
    for path in unfinished, _beside(target, 'replaced'):
      shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def one_at_a_time(path: str) -> Iterator[None]:
  """Lets one process at a time look for something and make it if it is missing.

      with one_at_a_time(path):
        if not exists(path):
          make(path)

  Processes that come later wait. Where the file system has no locks, nobody
  waits.

  Args:
    path: what is made, a local file or folder. Its parents are made.

  Raises:
    OSError: if the lock, which is a file beside it, cannot be written.
  """
  target = os.path.realpath(path)
  with locks.locked(_beside(target, 'turn'), target, wait=True):
    yield


def recover_interrupted_write(directory: str) -> None:
  """Puts back the old folder of a writer that died between two renames."""
  target = os.path.realpath(directory)
  if files.is_url(directory) or not os.path.exists(_beside(target, 'replaced')):
    return
  # A living writer that has the lock is between the two renames now.
  with contextlib.suppress(BlockingIOError):
    with locks.locked(_beside(target, 'lock'), target) as is_locked:
      _recover(target, is_locked)


def remove_unfinished(parent: str) -> None:
  """Removes what writers that died have left of new folders in a local folder.

  Args:
    parent: the folder, in which nobody may write now.
  """
  for name in files.names_in(parent):
    path = os.path.join(parent, name)
    if re.fullmatch(r'\..+\.unfinished', name):
      files.remove_folder(path)
    elif re.fullmatch(r'\..+\.(lock|turn)', name):
      files.remove(path)


def is_unfinished(directory: str, marker: str) -> bool:
  """Returns whether a writer has left a folder at a URL that is not whole.

  Args:
    directory: the folder.
    marker: the name of its last file.
  """
  names = files.names_in(directory) if files.is_url(directory) else []
  return _UNFINISHED in names and marker not in names


def write_text(path: str, text: str) -> None:
  """Writes a file whole, which replaces the one that is there.

  Raises:
    OSError: if it cannot be written.
  """
  if files.is_url(path):
    with files.os_errors(path):
      epath.Path(path).write_text(text)
    return
  target = os.path.realpath(path)
  unfinished = _beside(target, 'unfinished')
  with locks.locked(_beside(target, 'lock'), target, wait=True):
    json_files.refuse_link(unfinished)
    try:
      with open(unfinished, 'w', encoding='utf-8') as f:
        f.write(text)
      sync(unfinished)
      os.replace(unfinished, target)
    except BaseException:
      with contextlib.suppress(OSError):
        os.unlink(unfinished)
      raise


def exchange(one: str, other: str) -> bool:
  """Exchanges two folders in one step, or returns False if it cannot."""
  try:
    renameat2 = ctypes.CDLL(None).renameat2
  except AttributeError:
    return False
  paths = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other)
  return renameat2(*paths, ctypes.c_uint(_RENAME_EXCHANGE)) == 0


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


def _beside(target: str, what: str) -> str:
  folder, name = os.path.split(target)
  return os.path.join(folder, f'.{name}.{what}')


@contextlib.contextmanager
def _removed_on_error(folder: str) -> Iterator[None]:
  try:
    yield
  except BaseException:
    shutil.rmtree(folder, ignore_errors=True)
    raise


def _recover(target: str, is_locked: bool) -> None:
  """Removes or puts back what a writer left when it died."""
  replaced = _beside(target, 'replaced')
  for path in _beside(target, 'unfinished'), replaced:
    json_files.refuse_link(path)
    if os.path.isfile(path):
      raise OSError(f'{path} is a file, where a folder is written. Remove it.')
  if is_locked and os.path.exists(replaced) and not os.path.exists(target):
    os.rename(replaced, target)
  for path in filter(os.path.exists, (_beside(target, 'unfinished'), replaced)):
    if not is_locked:
      raise FileExistsError(
          f'{path} belongs to another process. The file system has no locks to'
          ' tell whether that is still at work. Remove it if it is not.'
      )
    logging.info('Removing %s, which a process left when it died.', path)
    shutil.rmtree(path)


def _check_free(directory: str, replace: bool) -> None:
  if not files.is_folder(directory):
    if files.exists(directory):
      raise FileExistsError(f'{directory} is a file. Choose another path.')
  elif files.names_in(directory) and not replace:
    raise FileExistsError(
        f'{directory} is not empty. Remove it, or choose a new directory.'
    )


def _move(unfinished: str, target: str, replace: bool) -> None:
  """Moves the finished folder to its place."""
  if not (replace and files.names_in(target)):
    # This replaces an empty folder, but fails where there are files in it.
    os.rename(unfinished, target)
  elif not exchange(unfinished, target):
    replaced = _beside(target, 'replaced')
    os.rename(target, replaced)
    try:
      os.rename(unfinished, target)
    except BaseException:
      os.rename(replaced, target)
      raise


@contextlib.contextmanager
def _new_remote(
    directory: str, markers: Sequence[str], replace: bool
) -> Iterator[str]:
  """Yields a local folder, which is copied to a URL at the end."""
  if markers and is_unfinished(directory, markers[-1]):
    logging.info('Removing what a writer left in %s.', directory)
    files.remove_folder(directory)
  if replace and files.names_in(directory):
    raise OSError(
        f'{directory} cannot be replaced in one step. Remove it first, or'
        ' choose another directory.'
    )
  _check_free(directory, replace)
  # A folder that cannot be written thus fails before the work begins.
  files.make_folder(directory)
  folder = tempfile.mkdtemp()
  with _removed_on_error(folder):
    yield folder
  try:
    with files.os_errors(directory):
      unfinished = epath.Path(directory, _UNFINISHED)
      unfinished.write_text('')
      names = [name for name in os.listdir(folder) if name not in markers]
      for name in [*names, *markers]:
        tf.io.gfile.copy(
            os.path.join(folder, name), os.path.join(directory, name)
        )
      unfinished.unlink()
  except OSError as e:
    raise OSError(
        f'All is written, but could not be copied to {directory}: {e}. It is'
        f' kept in {folder}.'
    ) from e
  shutil.rmtree(folder, ignore_errors=True)
