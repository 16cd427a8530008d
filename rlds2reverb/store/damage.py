"""Sentences about files of data that are missing, damaged or not downloaded.

They need no TensorFlow, and are the same wherever such a file is read.
"""

import contextlib
import os

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
