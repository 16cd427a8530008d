"""The memory limit of a process, and the return of free memory."""

import contextlib
import ctypes
import gc
import pathlib
import resource
from typing import Dict, Tuple

# TensorFlow aborts with a C++ stack where it cannot even start its threads, a
# Reverb server waits for ever there, and both are killed where they cannot be
# loaded. The smallest data set takes 2.45 GB of addresses on two processors.
_LEAST = {'address space': 2_500_000_000, 'memory': 500_000_000}
# The limit of a container.
_CONTAINER = '/sys/fs/cgroup/memory.max'
_NO_LIMIT = 1 << 60  # A limit above this means no limit.
# An option of `mallopt` of the C library.
_M_MMAP_THRESHOLD = -3
_LEAST_MAPPED = 1 << 18


def check() -> None:
  """Raises an OSError if the limit is too low for TensorFlow to start."""
  for what, (found, by) in limits().items():
    if found < _LEAST[what]:
      raise OSError(
          f'The {what} is limited to {found / 1e6:,.0f} MB ({by}), and'
          f' TensorFlow needs {_LEAST[what] / 1e6:,.0f} MB and more.'
      )


def keep_flat() -> None:
  """Lets this process give large blocks of memory back when they are free.

  Otherwise the C library keeps them, for blocks of other sizes, and a process
  grows with the number of its tasks. It is for the library's own processes.
  """
  with contextlib.suppress(AttributeError):  # Another C library has none.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LEAST_MAPPED)
  # Objects that exist now live on, so later garbage collections skip them.
  gc.collect()
  gc.freeze()


def limits() -> Dict[str, Tuple[int, str]]:
  """Returns how many bytes a process may take, and what sets that limit.

  That is `ulimit -v` or a container, by what they limit; none may be there.
  """
  addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
  known = {'address space': (addresses, 'ulimit -v')}
  with contextlib.suppress(OSError, ValueError):  # No such file, or `max`.
    text = pathlib.Path(_CONTAINER).read_text()
    known['memory'] = int(text), 'a control group'
  return {
      what: limit for what, limit in known.items() if 0 < limit[0] < _NO_LIMIT
  }
