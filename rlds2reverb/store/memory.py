"""Memory for arrays that TensorFlow can take without copying them."""

import collections
import math
import sys
from typing import Deque, List, Sequence, Tuple

import numpy as np

# TensorFlow does not copy an array that begins at a multiple of this many
# bytes.
_ALIGNMENT = 64
_LARGE_ARRAY_BYTES = 1 << 18
# The largest number of pieces of memory of one size that are in use again.
_PIECES = 4


class ArrayLayout:
  """Arrays that TensorFlow can take without copying them.

  Small arrays share memory, because every piece of memory costs time.
  """

  def __init__(self, specs: Sequence[Tuple[Sequence[int], np.dtype]]):
    """Creates the layout.

    Args:
      specs: the shape and the dtype of each array.
    """
    self._places = []
    shared_size = 0
    for shape, dtype in specs:
      size = math.prod(shape) * dtype.itemsize
      if size >= _LARGE_ARRAY_BYTES:
        self._places.append((shape, dtype, _Memory(size), 0))
      else:
        self._places.append((shape, dtype, None, shared_size))
        shared_size += size + -size % _ALIGNMENT
    self._shared = _Memory(shared_size)

  def new_arrays(self) -> List[np.ndarray]:
    """Returns arrays that nothing else refers to, with undefined content."""
    shared, first = self._shared.take()
    return [
        np.ndarray(shape, dtype, *memory.take())
        if memory
        else np.ndarray(shape, dtype, shared, first + begin)
        for shape, dtype, memory, begin in self._places
    ]


class _Memory:
  """Pieces of memory of one size, each used again when nothing refers to it.

  The system takes longer to give out new pages than it takes to fill them.
  """

  def __init__(self, size: int):
    self._size = size
    self._pieces: Deque[np.ndarray] = collections.deque(maxlen=_PIECES)

  def take(self) -> Tuple[np.ndarray, int]:
    """Returns a piece of memory, and the index of its first aligned byte."""
    for piece in tuple(self._pieces):
      # A piece is free if nothing else refers to it: no array, no view of one,
      # and no other thread that is looking at it.
      if sys.getrefcount(piece) == _REFERENCES:
        break
    else:
      piece = np.empty(self._size + _ALIGNMENT, np.uint8)
      if self._size >= _LARGE_ARRAY_BYTES:
        self._pieces.append(piece)
    return piece, -piece.__array_interface__['data'][0] % _ALIGNMENT


# The reference count of a free piece, as `_Memory.take` sees it.
_PROBE = collections.deque([np.empty(1)])
_REFERENCES = [sys.getrefcount(piece) for piece in tuple(_PROBE)][0]
