"""Batches of frames by their numbers, read by NumPy.

Small batches that come one after the other are drawn and read together.
"""

import contextlib
import copy
import functools
from typing import Any, Callable, Iterator, List, Optional

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.replay import reverb
from rlds2reverb.replay.local import samplers
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.store import memory

_GROUP_BYTES = 4 << 20
_MAX_GROUP = 16
_FEW_FRAMES = 8
# The types of the fields of Reverb's `SampleInfo`.
_INFO_DTYPES = [
    np.dtype(name)
    for name in ('uint64', 'float64', 'int64', 'float64', 'int32')
]
_NO_LOCK = contextlib.nullcontext()


class Batches:
  """The batches of one stream: `batches[i]` is number `i`.

  A batch is a pair of a `Trajectory` `[B, L, ...]` and a `SampleInfo` `[B, L]`
  of NumPy arrays. It depends on the seed, the stream and its number alone,
  unless the sampler is `Prioritized` or frames are appended.

      batches = replay_buffer.batches(256)
      for frames, info in batches.iterate(start=step):
        ...

  Attributes:
    element_spec: the spec of a batch; without `B` for single items.
    group_size: how many batches are drawn and read together at most.
    in_advance: whether batches may be drawn before they are asked for.
  """

  def __init__(
      self,
      store: store_lib.FrameStore,
      population: Any,
      bind: Callable[[int], samplers.DrawFn],
      batch_size: Optional[int],
      *,
      static_size: Optional[int] = None,
      num_batches: Optional[int] = None,
      in_advance: bool = True,
  ):
    """Creates the batches of stream 0.

    Args:
      store: the frames.
      population: the items.
      bind: takes the number of a stream, and returns what draws its batches.
      batch_size: the number of items of a batch; None for single items.
      static_size: the size of every batch, or None if some are shorter.
      num_batches: how many batches there are; None for any number.
      in_advance: see above.
    """
    self._store, self._population = store, population
    self._bind, self._draw = bind, bind(0)
    self._batch_size, self._num_batches = batch_size, num_batches
    self.in_advance = in_advance
    self.group_size = (
        batches_per_group(store, batch_size or 1) if in_advance else 1
    )
    lead = [] if batch_size is None else [static_size]
    lead += [store.windows.sequence_length]
    self.element_spec = (
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([*lead, *leaf.shape], leaf.dtype),
            store.spec,
        ),
        reverb.sample_info_class()(
            *[tf.TensorSpec(lead, dtype) for dtype in _INFO_DTYPES]
        ),
    )

  def of_stream(self, number: int) -> 'Batches':
    """Returns the batches of another stream, with random draws of its own."""
    other = copy.copy(self)
    other._draw = self._bind(number)  # pylint: disable=protected-access
    return other

  def __getitem__(self, number: int) -> Any:
    """Returns a batch.

    Raises:
      IndexError: if there is no such batch.
      SamplingError: if nothing can be drawn.
    """
    leaves = self.read(number, 1) if number >= 0 else []
    if not leaves:
      raise IndexError(f'There is no batch {number}.')
    return self._pack([leaf[0] for leaf in leaves])

  def __iter__(self) -> Iterator[Any]:
    return self.iterate()

  def iterate(self, start: int = 0) -> Iterator[Any]:
    """Yields batches, from the number `start` on."""
    while leaves := self.read(start, self.group_size):
      start += len(leaves[-1])
      for batch in zip(*leaves):
        yield self._pack(batch)

  def read(self, first: int, count: int) -> List[np.ndarray]:
    """Reads a group of batches.

    Args:
      first: the number of the first one.
      count: how many, at most; there may be fewer.

    Returns:
      The leaves of the batches, unshared arrays `[k, B, L, ...]`. There are
      none after the last batch.
    """
    if self._num_batches is not None:
      count = min(count, self._num_batches - first)
    if count < 1:
      return []
    # Frames that are appended meanwhile must not overwrite those that are read.
    with self._population.lock if self._population.changes else _NO_LOCK:
      draws = self._draw(first, count, self._batch_size or 1)
      items = draws.items.ravel()
      length = self._population.length(items)
      leaves = self._store.read(self._population.starts(items), length)
      size = self._population.num_items
    shape = [*draws.items.shape, length]
    if self._batch_size is None:
      del shape[1]
    leaves = [leaf.reshape([*shape, *leaf.shape[2:]]) for leaf in leaves]
    info = _info_layout(*shape).new_arrays()
    values = draws.items, draws.probability, size, draws.priority, 0
    for leaf, value in zip(info, values):
      if not np.ndim(value):
        leaf[...] = value
        continue
      value = value.reshape(shape[:-1])
      if length > _FEW_FRAMES:
        leaf[...] = value[..., np.newaxis]
        continue
      for frame in range(length):
        leaf[..., frame] = value  # Faster than broadcasting.
    return leaves + info

  def _pack(self, leaves: Any) -> Any:
    frames, info = self.element_spec
    values = iter(leaves)
    # Most fields are one leaf, for which a nest would take too long.
    fields = [
        tree.map_structure(lambda _: next(values), field)
        if isinstance(field, (tuple, list, dict))
        else next(values)
        for field in frames
    ]
    return type(frames)(*fields), type(info)(*values)


def batches_per_group(store: store_lib.FrameStore, batch_size: int) -> int:
  """Returns how many batches are drawn together."""
  length = store.windows.sequence_length
  if length is None:
    return 1  # Episodes of different lengths have no common array.
  num_bytes = store.format.frame_bytes * batch_size * length
  return max(1, min(_MAX_GROUP, _GROUP_BYTES // max(num_bytes, 1)))


@functools.lru_cache(8)
def _info_layout(*shape: int) -> memory.ArrayLayout:
  return memory.ArrayLayout([(shape, dtype) for dtype in _INFO_DTYPES])
