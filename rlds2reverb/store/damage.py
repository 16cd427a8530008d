"""Errors about local files that are missing, damaged or not downloaded.

The wording is the same wherever such a file is read. Nothing here needs
TensorFlow.
"""

from collections.abc import Iterator
import contextlib
import errno
import json
import os
import tokenize
from typing import Any
import zipfile
import zlib

# What to do about a damaged file.
ADVICE = 'Copy it from where it is whole, and start the same command again.'
# How a Git LFS pointer begins, and how long it is at most.
POINTER = b'version https://git-lfs.github.com/spec/'
MAX_POINTER_BYTES = 1024


def missing(path: str) -> str:
  """Returns the sentence about a file that does not exist."""
  return f'{path} is missing. {ADVICE}'


def pointer(path: str) -> str:
  """Returns the sentence about a Git LFS pointer."""
  return (
      f'{path} is a Git LFS pointer, not the file itself. Run `git lfs pull` in'
      ' its repository.'
  )


def pointer_hint(path: str) -> str:
  """Returns what to do about a Git LFS pointer, or an empty string.

  Git checks out a pointer, a text of three lines, in place of a large file that
  was not downloaded.

  Args:
    path: a file on the local disk.
  """
  with contextlib.suppress(OSError):
    if os.path.getsize(path) <= MAX_POINTER_BYTES:
      with open(path, 'rb') as f:
        if f.read(len(POINTER)) == POINTER:
          return pointer(path)
  return ''


def loads_json(text: bytes | str) -> Any:
  """Returns the value in JSON text, as `json.loads` does.

  Raises:
    ValueError: if the text is not JSON, or its values are nested too deeply.
  """
  try:
    return json.loads(text)
  except RecursionError as e:
    raise ValueError('its values are nested too deeply') from e


def parse_json(text: str, path: str, remedy: str) -> dict[str, Any]:
  """Returns the JSON object in the text of a file.

  Args:
    text: the text.
    path: the path of the file, for the error.
    remedy: a sentence of advice if the file is damaged.

  Raises:
    OSError: if the text is not a JSON object.
  """
  with naming_damage(path, remedy):
    if not text.strip('\0 \n'):
      raise ValueError('it is empty')
    value = loads_json(text)
    if not isinstance(value, dict):
      raise ValueError(f'it holds {text[:40]!r} instead of a JSON object')
    return value


def read_json(path: str, remedy: str) -> dict[str, Any]:
  """Returns the JSON object in a local file; see `parse_json`."""
  with naming_damage(path, remedy), open(path, encoding='utf-8') as f:
    text = f.read()
  return parse_json(text, path, remedy)


@contextlib.contextmanager
def naming_damage(path: str, remedy: str) -> Iterator[None]:
  """Turns errors of content into OSErrors that name the file and the remedy."""
  try:
    yield
  except KeyError as e:
    raise OSError(f'{path} is damaged: it has no {e}. {remedy}') from e
  except MemoryError as e:  # NumPy has the shape of the array in its message.
    text = str(e).rstrip('.') or 'its values do not fit into memory'
    raise OSError(f'{path} is damaged: {text}. {remedy}') from e
  except OSError as e:
    if e.errno != errno.EINVAL or e.filename:
      raise
    # An archive with wrong offsets makes zipfile seek to a negative position.
    raise OSError(f'{path} is damaged: {e}. {remedy}') from e
  except (
      ArithmeticError,
      AttributeError,
      EOFError,
      IndexError,
      RuntimeError,  # Of JSON that is nested too deeply, and of zip files.
      TypeError,
      ValueError,
      tokenize.TokenError,  # Of NumPy, for a damaged header.
      zipfile.BadZipFile,
      zlib.error,
  ) as e:
    text = str(e).rstrip('. \n')
    raise OSError(f'{path} is damaged: {text}. {remedy}') from e


def refuse_link(path: str) -> None:
  """Raises an OSError if the path of a file to write is a symbolic link.

  The target of the link would be overwritten or removed.
  """
  if os.path.islink(path):
    raise OSError(
        f'{path} is a symbolic link, which this library does not make there.'
        ' Remove the link.'
    )
