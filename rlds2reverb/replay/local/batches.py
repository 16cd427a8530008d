"""Batches of frames, with what Reverb says of its samples, in NumPy.

Small batches that come one after the other are drawn and read together.
"""

import contextlib
import copy
import functools
from typing import Any, Callable, List, Optional

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.replay import reverb
from rlds2reverb.replay.local import loading
from rlds2reverb.store import batches as batches_lib
from rlds2reverb.store import memory
from rlds2reverb.store import samplers

_GROUP_BYTES = 4 << 20
_MAX_GROUP = 16
_FEW_FRAMES = 8
# The types of the fields of Reverb's `SampleInfo`.
_INFO_DTYPES = [
    np.dtype(name)
    for name in ('uint64', 'float64', 'int64', 'float64', 'int32')
]
_NO_LOCK = contextlib.nullcontext()


class FrameBatches(batches_lib.Batches):
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
      store: loading.FrameStore,
      items: Any,
      bind: Callable[[int], samplers.DrawFn],
      batch_size: Optional[int],
      *,
      static_size: Optional[int] = None,
      num_batches: Optional[int] = None,
      in_advance: bool = True,
      identity: str = '',
  ):
    """Creates the batches of stream 0.

    Args:
      store: the frames.
      items: the items, an `ItemIndex` or a `FrameRing`.
      bind: takes the number of a stream, and returns what draws its batches.
      batch_size: the number of items of a batch; None for single items.
      static_size: the size of every batch, or None if some are shorter.
      num_batches: how many batches there are; None for any number.
      in_advance: see above.
      identity: what differs for other batches.
    """
    self._store, self._items = store, items
    self._bind, self._draw = bind, bind(0)
    self._batch_size, self._num_batches = batch_size, num_batches
    self._stream, self._identity = 0, identity
    self._boundary = loading.boundary_of(store.rows.layout)
    self.in_advance = in_advance
    # Episodes of different lengths have no common array.
    if in_advance and items.length is not None:
      size = store.rows.layout.frame_bytes * (batch_size or 1) * items.length
      count = min(_MAX_GROUP, _GROUP_BYTES // max(size, 1))
      self.group_size = max(count, 1)
    lead = [] if batch_size is None else [static_size]
    lead += [items.length]
    self.element_spec = (
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([*lead, *leaf.shape], leaf.dtype),
            store.spec,
        ),
        reverb.sample_info_class()(
            *[tf.TensorSpec(lead, dtype) for dtype in _INFO_DTYPES]
        ),
    )

  def of_stream(self, number: int) -> 'FrameBatches':
    """Returns the batches of another stream, with random draws of its own."""
    other = copy.copy(self)
    # pylint: disable=protected-access
    other._draw, other._stream = self._bind(number), number
    return other

  def identity(self) -> str:
    return f'{self._identity} {self._stream} {self._batch_size}'

  def read(self, first: int, count: int) -> List[Any]:
    """Returns some batches; see `Batches`.

    Raises:
      SamplingError: if nothing can be drawn.
    """
    return list(map(self._pack, zip(*self.read_leaves(first, count))))

  def read_leaves(self, first: int, count: int) -> List[np.ndarray]:
    """Returns the leaves of some batches, unshared arrays `[k, B, L, ...]`."""
    if self._num_batches is not None:
      count = min(count, self._num_batches - first)
    if count < 1:
      return []
    # Frames that are appended meanwhile must not overwrite those that are read.
    with self._items.lock if self._items.changes else _NO_LOCK:
      draws = self._draw(first, count, self._batch_size or 1)
      items = draws.items.ravel()
      leaves, _ = self._items.read(self._store.rows, items, self._boundary)
      size = self._items.num_items
    leaves = self._store.rows.with_strings(leaves)
    priority = draws.priority
    if priority is None:
      priority = 1.0
      if self._items.priorities is not None:
        priority = self._items.priorities[draws.items]
    length = leaves[0].shape[1]
    shape = [*draws.items.shape, length]
    if self._batch_size is None:
      del shape[1]
    leaves = [leaf.reshape([*shape, *leaf.shape[2:]]) for leaf in leaves]
    info = _info_layout(*shape).new_arrays()
    values = draws.items, draws.probability, size, priority, 0
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


@functools.lru_cache(8)
def _info_layout(*shape: int) -> memory.ArrayLayout:
  return memory.ArrayLayout([(shape, dtype) for dtype in _INFO_DTYPES])
