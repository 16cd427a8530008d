"""Memory in large pages, in which random reads are faster.

With pages of 4 KB, random reads of 100 MB mostly wait for addresses of pages.
"""

from collections.abc import Sequence
import contextlib
import math
import mmap
from typing import Any

import numpy as np

# Moves memory into large pages now (Linux 6.1; older ones do so later).
_MADV_COLLAPSE = 25


def allocate(num_bytes: int) -> mmap.mmap:
  """Returns new memory, zeros, which may be resized."""
  memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
  _advise(memory, mmap.MADV_HUGEPAGE)
  return memory


def collapse(memory: mmap.mmap) -> None:
  """Moves memory into large pages now, after it was resized."""
  _advise(memory, _MADV_COLLAPSE)


def zeros(shape: Sequence[int], dtype: Any) -> np.ndarray:
  """Returns a page-aligned array of zeros."""
  count = math.prod(shape)
  if not count:
    return np.zeros(shape, dtype)
  memory = allocate(count * np.dtype(dtype).itemsize)
  return np.frombuffer(memory, dtype, count).reshape(shape)


def _advise(memory: mmap.mmap, advice: int) -> None:
  # Kernels without large pages refuse it.
  with contextlib.suppress(OSError):
    memory.madvise(advice)
