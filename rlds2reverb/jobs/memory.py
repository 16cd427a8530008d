"""The memory limit of a process, and the return of free memory."""

import ctypes
import gc
import pathlib
import resource
from typing import Iterator

# The files with the limits of control groups, of version 2 and version 1.
_GROUP = '/sys/fs/cgroup{}/memory.max'
_OLD_GROUP = '/sys/fs/cgroup/memory{}/memory.limit_in_bytes'
# TensorFlow aborts with a C++ stack where it cannot even start its threads, a
# Reverb server waits for ever there, and both are killed where they cannot be
# loaded. The smallest data set takes 2.45 GB of addresses on two processors.
_LEAST_ADDRESS_SPACE = 2_500_000_000
_LEAST_MEMORY = 500_000_000
_NO_LIMIT = 1 << 60  # A limit above this means no limit.
# An option of `mallopt` of the C library.
_M_MMAP_THRESHOLD = -3
_LEAST_MAPPED = 1 << 18


def check() -> None:
  """Raises an OSError if the limit is too low for TensorFlow to start."""
  for found, least, what, by in (
      (_of_addresses(), _LEAST_ADDRESS_SPACE, 'address space', 'ulimit -v'),
      (_of_groups(), _LEAST_MEMORY, 'memory', 'a control group'),
  ):
    if 0 < found < least:
      raise OSError(
          f'The {what} is limited to {found / 1e6:,.0f} MB ({by}), and'
          f' TensorFlow needs {least / 1e6:,.0f} MB and more.'
      )


def limit() -> int:
  """Returns how many bytes a process may take, or 0 if there is no limit.

  That is what `ulimit -v` or a control group (a container) says.
  """
  return min(filter(None, (_of_addresses(), _of_groups())), default=0)


def keep_flat() -> None:
  """Lets this process give large blocks of memory back when they are free.

  Otherwise the C library keeps them, for blocks of other sizes, and a process
  grows with the number of its tasks. It is for the library's own processes.
  """
  try:
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LEAST_MAPPED)
  except AttributeError:
    pass  # Another C library has no such option.
  # Objects that exist now live on, so later garbage collections skip them.
  gc.collect()
  gc.freeze()


def _of_addresses() -> int:
  found = resource.getrlimit(resource.RLIMIT_AS)[0]
  return found if 0 < found < _NO_LIMIT else 0


def _of_groups() -> int:
  limits = []
  for path in _files_of_groups():
    try:
      limits.append(int(_read(path)))
    except ValueError:
      pass  # There is no such group, or it has no limit.
  return min((found for found in limits if found < _NO_LIMIT), default=0)


def _files_of_groups() -> Iterator[str]:
  # In a container the limit may be at the root.
  yield from (_GROUP.format(''), _OLD_GROUP.format(''))
  for line in _read('/proc/self/cgroup').splitlines():
    _, controllers, group = line.split(':', 2)
    if not controllers:
      yield _GROUP.format(group)
    elif 'memory' in controllers.split(','):
      yield _OLD_GROUP.format(group)


def _read(path: str) -> str:
  """Returns the text of a file; an empty string if there is none."""
  try:
    return pathlib.Path(path).read_text()
  except OSError:
    return ''
