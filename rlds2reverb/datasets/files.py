"""Paths, locks and atomic writes, on the local disk and at URLs of TensorFlow.

Users pass a path as a string or an `os.PathLike`, which may begin with `~`.
`expand` converts it to a string, which is an absolute path or a URL such as
`gs://bucket/folder`. The other functions take its result.

While a process writes a local folder `data`, these are next to it:

    .data.lock        a file that the process has locked with `flock`. If it is
                      not locked, the process has died.
    .data.unfinished  the new folder. At the end it is exchanged with the old
                      `data`, which is then removed.
    .data.turn        another lock, of `one_at_a_time`.
    .data.replaced    the old `data`, between two renames, on file systems that
                      cannot exchange two folders.

If a process dies, the next writer removes or restores the folders that it left
there. Only a local file system can rename a folder. On others, a folder is
complete when its last file exists. Until then it has a file `.unfinished`: a
writer is at work, or has died.

TFDS's `incomplete_dir` and `atomic_write` do less: they remove the old folder
before they rename the new one, so that a process that is killed in between
loses both; they leave unfinished folders; and they do not sync to the disk
first. `filelock` would be one more dependency, and would leave its lock files:
removing them safely takes the loop in `lock`.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import ctypes
import errno
import fcntl
import io
import os
import re
import shutil
import tempfile
from typing import BinaryIO

from absl import logging
from etils import epath
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.store import damage

PathLike = str | os.PathLike

_URL = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*://')
# A URL that `pathlib` has turned into a path.
_BROKEN_URL = re.compile(r'([A-Za-z][A-Za-z0-9+.-]*):/(?!/)')
_UNFINISHED = '.unfinished'
# The errors of file systems that lack an operation.
_UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def expand(path: PathLike) -> str:
  """Returns `path` as an absolute path or a URL.

  Raises:
    ValueError: if it is empty, or a URL that cannot be reached from here.
  """
  path = os.fsdecode(path)
  if not path:
    raise ValueError('A path must not be empty.')
  if is_url(path):
    try:
      return os.fspath(epath.Path(path))
    except KeyError as e:
      raise ValueError(
          f'{path} cannot be reached: there is no file system for {e.args[0]}.'
          ' A path must be a local one, or a URL that TFDS knows, such as'
          ' gs://bucket/folder.'
      ) from e
  broken = _BROKEN_URL.match(path)
  if broken:
    raise ValueError(
        f'{path} is a URL that has lost a slash, as pathlib.Path does with'
        f' {broken[1]}://. Pass a string, or an etils.epath.Path.'
    )
  return os.path.abspath(os.path.expanduser(path))


def expand_local(path: PathLike, name: str) -> str:
  """Returns `path` as an absolute local path.

  Args:
    path: the path.
    name: the subject of the error, such as 'The checkpoint'.

  Raises:
    ValueError: if it is a URL.
  """
  path = expand(path)
  if is_url(path):
    raise ValueError(
        f'{name} must be on the local disk, but is at {path}. Copy it first.'
    )
  return path


def user_path(path: str) -> str:
  """Returns a path that a user has typed as an absolute path or a URL.

  A relative path is relative to the folder in which the user typed it. Under
  `bazel run` this is not the folder in which the program runs.

  Raises:
    ValueError: as `expand` does.
  """
  if not is_url(path):
    folder = os.environ.get('BUILD_WORKING_DIRECTORY', '')
    path = os.path.join(folder, os.path.expanduser(path))
  return expand(path)


def is_url(path: str) -> bool:
  """Returns whether a path is a URL, and not a local path."""
  return bool(_URL.match(path))


def exists(path: str) -> bool:
  """Returns whether there is a file or a folder at a path.

  Raises:
    OSError: if the file system cannot be reached.
  """
  with os_errors(path):
    return epath.Path(path).exists()


def is_folder(path: str) -> bool:
  """Returns whether there is a folder at a path.

  Raises:
    OSError: if the file system cannot be reached.
  """
  # If a file system cannot be reached, TensorFlow's `exists` raises an error,
  # but its `isdir` does not.
  return exists(path) and epath.Path(path).is_dir()


def names_in(folder: str) -> list[str]:
  """Returns the sorted names in a folder; none if there is no folder."""
  if not is_folder(folder):
    return []
  if not is_url(folder):
    # `epath` would skip names that end with `~`.
    return sorted(os.listdir(folder))
  with os_errors(folder):
    return sorted(path.name for path in epath.Path(folder).iterdir())


def hint(path: str) -> str:
  """Returns a sentence on why a path is incomplete, or an empty string.

  The sentence names the job that writes the path, whose folder is `<path>.job`,
  or suggests similar names.
  """
  job = f'{path}.job'
  if exists(job):
    return f' Its job, {job}, is unfinished: run the same command to resume it.'
  folder, name = os.path.split(path)
  siblings = {file for file in names_in(folder) if not file.endswith('.job')}
  return checks.did_you_mean(name, siblings - {name})


def local_files(path: str) -> list[str]:
  """Returns the paths of the files at a local path, a file or a folder."""
  if os.path.isfile(path):
    return [path]
  return sorted(
      os.path.join(folder, name)
      for folder, _, names in os.walk(path)
      for name in names
  )


class _Text(io.StringIO):
  """The text of a file, whose parser may find brackets nested too deeply."""

  def __exit__(self, kind, error, traceback):
    super().__exit__(kind, error, traceback)
    if kind is RecursionError:
      raise ValueError(
          f'{self.name} cannot be parsed: its values are nested too deeply.'
      ) from error


def open_text(path: str) -> io.StringIO:
  """Returns the text of a file, as an open file with the name `path`.

  A RecursionError in the body of a `with` statement, as JSON that is nested
  deeply raises it, becomes a ValueError that names the file.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is not text.
  """
  # TensorFlow's `readline` would treat an error as the end of the file.
  try:
    with os_errors(path), epath.Path(path).open() as f:
      text = _Text(f.read())
  except UnicodeDecodeError as e:
    raise ValueError(f'{path} is not a text file in UTF-8: {e}.') from e
  text.name = path
  return text


def pointer_hint(path: str) -> str:
  """Returns what to do about a Git LFS pointer at a path, or an empty string.

  Git checks out a pointer, a text of three lines, instead of a large file that
  was not downloaded.

  Args:
    path: a file or, on the local disk, a folder, which is searched.
  """
  paths = [path]
  if not is_url(path) and os.path.isdir(path):
    paths = local_files(path)
  for file in paths:
    with contextlib.suppress(OSError):
      if size_of(file) <= damage.MAX_POINTER_BYTES:
        with open_binary(file) as f:
          if f.read(len(damage.POINTER)) == damage.POINTER:
            return damage.pointer(file)
  return ''


def check_not_pointer(path: str) -> None:
  """Raises a ValueError if there is a Git LFS pointer at a path."""
  message = pointer_hint(path)
  if message:
    raise ValueError(message)


@contextlib.contextmanager
def open_binary(path: str) -> Iterator[BinaryIO]:
  """Yields a file that is open for reading bytes, with `read` and `seek`.

  Raises:
    FileNotFoundError: if there is no such file.
    OSError: if it cannot be read.
  """
  with os_errors(path), epath.Path(path).open('rb') as f:
    yield f


def size_of(path: str) -> int:
  """Returns the number of bytes of a file.

  Raises:
    FileNotFoundError: if there is no such file.
  """
  with os_errors(path):
    return epath.Path(path).stat().length


def total_size(paths: Iterable[str]) -> int:
  """Returns the bytes of all files together; missing ones count 0."""
  return sum(size_of(path) for path in set(paths) if exists(path))


def stamp_of(path: str) -> tuple[int, int]:
  """Returns the size of a file, and its time of modification in nanoseconds.

  They differ if a file was written again. The file is not read.

  Raises:
    FileNotFoundError: if there is no such file.
    OSError: if the file system cannot be reached.
  """
  if not is_url(path):
    try:
      stat = os.stat(path)
    except FileNotFoundError as e:
      raise FileNotFoundError(damage.missing(path)) from e
    return stat.st_size, stat.st_mtime_ns
  with os_errors(path):
    stat = tf.io.gfile.stat(path)
  return stat.length, stat.mtime_nsec


def make_folder(path: str) -> None:
  """Creates a folder and its parents, if they do not exist."""
  with os_errors(path):
    epath.Path(path).mkdir(parents=True, exist_ok=True)


def link(source: str, target: str) -> None:
  """Makes a hard link to a file, or a copy if hard links are not supported."""
  try:
    os.link(source, target)
  except OSError:
    with os_errors(source):
      tf.io.gfile.copy(source, target)


def remove(path: str) -> None:
  """Removes a file, if it exists."""
  with os_errors(path):
    epath.Path(path).unlink(missing_ok=True)


def remove_folder(path: str) -> None:
  """Removes a folder and its content, if it exists."""
  if not is_url(path):
    shutil.rmtree(path, ignore_errors=True)
    return
  with contextlib.suppress(FileNotFoundError), os_errors(path):
    tf.io.gfile.rmtree(path)


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
  """Turns errors of TensorFlow about `path` into errors of Python."""
  try:
    yield
  except tf.errors.NotFoundError as e:
    raise FileNotFoundError(
        f'{path} is not there: {errors.message_of(e, path)}'
    ) from e
  except tf.errors.OpError as e:
    raise OSError(
        f'{path} cannot be reached: {errors.message_of(e, path)}'
    ) from e


@contextlib.contextmanager
def writing_to(path: str) -> Iterator[None]:
  """Makes errors of the body name `path`, which cannot be written.

  A `BlockingIOError` names it already, and is not changed.
  """
  try:
    yield
  except BlockingIOError:
    raise
  except OSError as e:
    # With the number, the message would have the path a second time.
    raise type(e)(f'{path} cannot be written: {e.strerror or e}.') from e


@contextlib.contextmanager
def lock(path: str, target: str, *, wait: bool = False) -> Iterator[bool]:
  """Holds a lock while the body of a `with` statement runs.

  The lock ends with the process.

  Args:
    path: the lock file. It is created, with its folder, and removed at the end.
    target: the path that the lock protects, for messages.
    wait: whether to wait for another process that has the lock.

  Yields:
    Whether the file system supports locks.

  Raises:
    BlockingIOError: if another process has the lock, unless `wait` is set.
    OSError: if the file cannot be written.
  """
  damage.refuse_link(path)
  with writing_to(target):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    while True:
      file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
      try:
        is_locked = _try_lock(file, target, wait)
      except BaseException:
        os.close(file)
        raise
      # The last owner may have removed the file after it was opened here.
      if not is_locked or _is_same_file(file, path):
        break
      os.close(file)
  try:
    yield is_locked
  finally:
    with contextlib.suppress(OSError):
      os.unlink(path)
    os.close(file)


def _try_lock(file: int, target: str, wait: bool) -> bool:
  """Locks a file, or returns False if the file system has no locks."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    if not wait:
      # Without the error number, which would precede the sentence.
      raise BlockingIOError(f'Another process is writing {target}.') from e
    logging.info('Waiting for another process, which writes %s.', target)
    fcntl.flock(file, fcntl.LOCK_EX)
  except OSError as e:
    if e.errno not in _UNSUPPORTED:
      raise
    return False
  return True


def _is_same_file(file: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(file), os.stat(path))
  except FileNotFoundError:
    return False


@contextlib.contextmanager
def one_at_a_time(path: str) -> Iterator[None]:
  """Lets one process at a time create a file or folder that does not exist.

      with one_at_a_time(path):
        if not exists(path):
          make(path)

  Processes that come later wait. If the file system has no locks, no process
  waits.

  Args:
    path: a local file or folder. Its parents are created.

  Raises:
    OSError: if the lock, a file next to it, cannot be written.
  """
  target = os.path.realpath(path)
  with lock(_sibling(target, 'turn'), target, wait=True):
    yield


@contextlib.contextmanager
def new_folder(
    directory: str, markers: Sequence[str], *, replace: bool = False
) -> Iterator[str]:
  """Yields a local folder to write into, which becomes `directory` at the end.

  Until then `directory` is unchanged. All files are synced to the disk before
  they become visible. If the body fails, the new folder is removed. If the new
  folder cannot be moved to `directory` at the end, the error says where it is.

  Args:
    directory: the folder, as `expand` returns it. Its parents are
      created. If it is a symbolic link, its target is written.
    markers: the names of the files that mark a complete folder. At a URL they
      are copied last, in this order.
    replace: whether a folder that exists and is not empty is replaced.

  Raises:
    BlockingIOError: if another process is writing it.
    FileExistsError: if it exists, is not empty, and is not to be replaced.
    OSError: if it cannot be written or replaced.
  """
  if is_url(directory):
    with _new_remote_folder(directory, markers, replace) as folder:
      yield folder
    return
  target = os.path.realpath(directory)
  if os.path.ismount(target):
    raise OSError(
        f'{directory} is a mount point, which cannot be replaced by a complete'
        ' folder. Choose a folder in it.'
    )
  unfinished = _sibling(target, 'unfinished')
  with lock(_sibling(target, 'lock'), target) as is_locked:
    _recover(target, is_locked)
    _check_free(directory, replace)
    with writing_to(directory):
      os.mkdir(unfinished)
    with _removed_on_error(unfinished):
      yield unfinished
    try:
      for folder, _, names in os.walk(unfinished):
        for name in [*names, '']:
          _sync(os.path.join(folder, name))
      _move(unfinished, target, replace)
    except OSError as e:
      # No later writer removes it from there.
      folder, name = os.path.split(target)
      rescued = tempfile.mkdtemp(prefix=f'{name}.finished.', dir=folder)
      os.rename(unfinished, rescued)
      raise OSError(
          f'All is written, but could not be moved to {directory}: {e}. It is'
          f' kept in {rescued}.'
      ) from e
    _sync(os.path.dirname(target))
    # After an exchange, `unfinished` has the old content of `directory`.
    for path in unfinished, _sibling(target, 'replaced'):
      shutil.rmtree(path, ignore_errors=True)


def recover_interrupted_write(directory: str) -> None:
  """Restores the old folder of a writer that died between two renames."""
  target = os.path.realpath(directory)
  replaced = _sibling(target, 'replaced')
  if is_url(directory) or not os.path.exists(replaced):
    return
  # A live writer that has the lock is between the two renames now.
  with contextlib.suppress(BlockingIOError):
    with lock(_sibling(target, 'lock'), target) as is_locked:
      _recover(target, is_locked)


def remove_unfinished(parent: str) -> None:
  """Removes unfinished folders and locks of dead writers in a local folder.

  Args:
    parent: the folder, in which no process may be writing.
  """
  for name in names_in(parent):
    path = os.path.join(parent, name)
    if re.fullmatch(r'\..+\.unfinished', name):
      remove_folder(path)
    elif re.fullmatch(r'\..+\.(lock|turn)', name):
      remove(path)


def is_unfinished(directory: str, marker: str) -> bool:
  """Returns whether a folder at a URL is incomplete.

  Args:
    directory: the folder.
    marker: the name of its last file.
  """
  names = names_in(directory) if is_url(directory) else []
  return _UNFINISHED in names and marker not in names


def write_text(path: str, text: str) -> None:
  """Writes a text file atomically. An existing file is replaced.

  Raises:
    OSError: if it cannot be written.
  """
  if is_url(path):
    with os_errors(path):
      epath.Path(path).write_text(text)
    return
  target = os.path.realpath(path)
  unfinished = _sibling(target, 'unfinished')
  with lock(_sibling(target, 'lock'), target, wait=True):
    damage.refuse_link(unfinished)
    try:
      with open(unfinished, 'w', encoding='utf-8') as f:
        f.write(text)
      _sync(unfinished)
      os.replace(unfinished, target)
    except BaseException:
      with contextlib.suppress(OSError):
        os.unlink(unfinished)
      raise


def _sibling(target: str, suffix: str) -> str:
  folder, name = os.path.split(target)
  return os.path.join(folder, f'.{name}.{suffix}')


def _sync(path: str) -> None:
  """Syncs a file, or a folder's list of files, to the disk."""
  file = os.open(path, os.O_RDONLY)
  try:
    os.fsync(file)
  except OSError as e:
    # Some file systems support this for files, but not for folders.
    if e.errno not in _UNSUPPORTED:
      raise
  finally:
    os.close(file)


@contextlib.contextmanager
def _removed_on_error(folder: str) -> Iterator[None]:
  try:
    yield
  except BaseException:
    shutil.rmtree(folder, ignore_errors=True)
    raise


def _recover(target: str, is_locked: bool) -> None:
  """Removes or restores the folders of a writer that died."""
  unfinished = _sibling(target, 'unfinished')
  replaced = _sibling(target, 'replaced')
  for path in unfinished, replaced:
    damage.refuse_link(path)
    if os.path.isfile(path):
      raise OSError(f'{path} is a file, where a folder is written. Remove it.')
  if is_locked and os.path.exists(replaced) and not os.path.exists(target):
    os.rename(replaced, target)
  for path in filter(os.path.exists, (unfinished, replaced)):
    if not is_locked:
      raise FileExistsError(
          f'{path} belongs to another process. The file system has no locks to'
          ' tell whether that is still at work. Remove it if it is not.'
      )
    logging.info('Removing %s, which a process left when it died.', path)
    shutil.rmtree(path)


def _check_free(directory: str, replace: bool) -> None:
  if not is_folder(directory):
    if exists(directory):
      raise FileExistsError(f'{directory} is a file. Choose another path.')
  elif names_in(directory) and not replace:
    raise FileExistsError(
        f'{directory} is not empty. Remove it, or choose a new directory.'
    )


def _move(unfinished: str, target: str, replace: bool) -> None:
  """Moves the finished folder to its place."""
  if not (replace and names_in(target)):
    # This replaces an empty folder, but fails if there are files in it.
    os.rename(unfinished, target)
  elif not _exchange(unfinished, target):
    replaced = _sibling(target, 'replaced')
    os.rename(target, replaced)
    try:
      os.rename(unfinished, target)
    except BaseException:
      os.rename(replaced, target)
      raise


def _exchange(source: str, target: str) -> bool:
  """Exchanges two folders atomically, or returns False if it cannot."""
  try:
    renameat2 = ctypes.CDLL(None).renameat2
  except AttributeError:
    return False
  paths = _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target)
  return renameat2(*paths, ctypes.c_uint(_RENAME_EXCHANGE)) == 0


@contextlib.contextmanager
def _new_remote_folder(
    directory: str, markers: Sequence[str], replace: bool
) -> Iterator[str]:
  """Yields a local folder, which is copied to a URL at the end."""
  if markers and is_unfinished(directory, markers[-1]):
    logging.info('Removing the unfinished folder %s.', directory)
    remove_folder(directory)
  if replace and names_in(directory):
    raise OSError(
        f'{directory} cannot be replaced in one step. Remove it first, or'
        ' choose another directory.'
    )
  _check_free(directory, replace)
  # A folder that cannot be written thus fails before the work begins.
  make_folder(directory)
  folder = tempfile.mkdtemp()
  with _removed_on_error(folder):
    yield folder
  try:
    with os_errors(directory):
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
