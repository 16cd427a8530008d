"""Paths and files, on the local disk and at URLs that TensorFlow can read.

Users pass a path as a string or an `os.PathLike`, which may begin with `~`.
`expand` converts it to a string, which is an absolute path or a URL such as
`gs://bucket/folder`. The other functions take its result.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import io
import json
import os
import re
import shutil
from typing import Any, BinaryIO

from etils import epath
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.store import damage

PathLike = str | os.PathLike

_URL = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*://')
# A URL that `pathlib` has turned into a path.
_BROKEN_URL = re.compile(r'([A-Za-z][A-Za-z0-9+.-]*):/(?!/)')
_JSON_TYPES = {
    bool: 'true or false',
    dict: 'an object',
    float: 'a number',
    int: 'an integer',
    list: 'a list',
    str: 'a string',
}


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


def read_json(path: str, remedy: str) -> dict[str, Any]:
  """Returns the JSON object in a file of this library.

  Args:
    path: the file.
    remedy: a sentence of advice if the file is damaged.

  Raises:
    FileNotFoundError: if there is no such file.
    OSError: if it does not hold a JSON object.
  """
  with damage.naming_damage(path, remedy), open_text(path) as f:
    text = f.read()
  return damage.parse_json(text, path, remedy)


def read_json_object(path: str) -> dict[str, Any]:
  """Reads a file of another program that holds one JSON object.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is empty, damaged, a Git LFS pointer, or holds anything
      but an object.
  """
  return parse_json_object(_read_text(path), path)


def read_json_lines(path: str) -> list[tuple[str, dict[str, Any]]]:
  """Reads a file with a JSON object in each line. Blank lines are skipped.

  Returns:
    The place of each object, such as `line 3 of FILE`, and the object.

  Raises:
    FileNotFoundError, ValueError: see `read_json_object`.
  """
  lines = []
  for number, line in enumerate(_read_text(path).splitlines(), 1):
    if line.strip():
      place = f'line {number} of {path}'
      lines.append((place, parse_json_object(line, place)))
  return lines


def _read_text(path: str) -> str:
  try:
    with open_text(path) as f:
      text = f.read()
  except IsADirectoryError:
    raise ValueError(f'{path} must be a file, but is a folder.') from None
  check_not_pointer(path)
  return text


def parse_json_object(text: str, place: str) -> dict[str, Any]:
  """Returns the JSON object in a text; see `read_json_object`."""
  if not text.strip():
    raise ValueError(f'{place} is empty, but must hold JSON.')
  try:
    content = json.loads(text)
  except (RecursionError, ValueError) as e:
    raise ValueError(f'{place} is not complete JSON: {e}.') from e
  if not isinstance(content, dict):
    kind = type(content).__name__
    raise ValueError(f'{place} must hold a JSON object, but holds a {kind}.')
  return content


def get_json_value(
    content: Mapping[str, Any],
    key: str,
    kind: type[Any] | tuple[type[Any], ...],
    place: str,
    default: Any = None,
) -> Any:
  """Returns the value of a key of a JSON object.

  Args:
    content: the object.
    key: the key.
    kind: the type of the value; `float` includes integers.
    place: where the object is, for errors, such as the path of its file.
    default: the value if there is no such key; None if the key is required.

  Raises:
    ValueError: if there is no such key, or its value has another type.
  """
  if key not in content:
    if default is not None:
      return default
    raise ValueError(
        f'{place} must have the key {key!r}, but has {sorted(content)}.'
        f'{checks.did_you_mean(key, content)}'
    )
  value = content[key]
  kinds = kind if isinstance(kind, tuple) else (kind,)
  accepted = (*kinds, int) if float in kinds else kinds
  is_bool = isinstance(value, bool) and bool not in kinds
  if is_bool or not isinstance(value, accepted):
    names = ' or '.join(_JSON_TYPES[kind] for kind in kinds)
    raise ValueError(f'{key!r} of {place} must be {names}, but is {value!r}.')
  return value


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
