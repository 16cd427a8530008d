"""Batches of frames, with what Reverb says of its samples, in NumPy.

Small batches that come one after the other are drawn and read together.
"""

import contextlib
import copy
import functools
from typing import Any, List, Optional

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
      store: Any,
      items: Any,
      sampler: samplers.Sampler,
      process: samplers.Process,
      batch_size: Optional[int],
      identity: str = '',
  ):
    """Creates the batches of the first stream.

    Args:
      store: the frames, a `FrameStore` or a `FrameRing`.
      items: the items, an `ItemIndex` or a `FrameRing`.
      sampler: which items make a batch.
      process: the process that draws.
      batch_size: the number of items of a batch; None for single items.
      identity: what differs for other batches.
    """
    self._store, self._items, self._sampler = store, items, sampler
    self._process, self._batch_size = process, batch_size
    self._identity = identity
    self._boundary = loading.boundary_of(store.rows.layout)
    self.in_advance = not (sampler.is_synchronous or items.changes)
    # Episodes of different lengths have no common array.
    if self.in_advance and items.length is not None:
      size = store.rows.layout.frame_bytes * (batch_size or 1) * items.length
      count = min(_MAX_GROUP, _GROUP_BYTES // max(size, 1))
      self.group_size = max(count, 1)
    lead = [items.length]
    if batch_size is not None:
      lead.insert(0, sampler.batch_size(items, process, batch_size))
    self.element_spec = (
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([*lead, *leaf.shape], leaf.dtype),
            store.spec,
        ),
        reverb.sample_info_class()(
            *[tf.TensorSpec(lead, dtype) for dtype in _INFO_DTYPES]
        ),
    )
    self._bind(0, 0)

  def of_stream(self, data_set: int, stream: int) -> 'FrameBatches':
    """Returns the batches of another stream, with random draws of its own."""
    other = copy.copy(self)
    other._bind(data_set, stream)  # pylint: disable=protected-access
    return other

  def identity(self) -> str:
    return f'{self._identity} {self._process.stream[1]} {self._batch_size}'

  def read(self, first: int, count: int) -> List[Any]:
    """Returns some batches; see `Batches`.

    Raises:
      SamplingError: if nothing can be drawn.
    """
    return list(map(self._pack, zip(*self.read_leaves(first, count))))

  def read_leaves(self, first: int, count: int) -> List[np.ndarray]:
    """Returns the leaves of some batches, unshared arrays `[k, B, L, ...]`."""
    # Frames that are appended meanwhile must not overwrite those that are read.
    with self._items.lock if self._items.changes else _NO_LOCK:
      items, *drawn = self._draw(first, count, self._batch_size or 1)
      if not items.size:
        return []  # It is the end of the pass.
      leaves, _ = self._items.read(
          self._store.rows, items.ravel(), self._boundary
      )
      size = self._items.num_items
    leaves = self._store.rows.with_strings(leaves)
    probability, priority = drawn
    if priority is None:
      known = self._items.priorities
      priority = 1.0 if known is None else known[items]
    lead = items.shape[: 1 if self._batch_size is None else 2]
    length = leaves[0].shape[1]
    info = _info_layout(*lead, length).new_arrays()
    for leaf, value in zip(info, (items, probability, size, priority, 0)):
      if not np.ndim(value) or length > _FEW_FRAMES:
        leaf[...] = value if not np.ndim(value) else value.reshape([*lead, 1])
        continue
      for frame in range(length):
        leaf[..., frame] = value.reshape(lead)  # Faster than broadcasting.
    return [leaf.reshape([*lead, *leaf.shape[1:]]) for leaf in leaves] + info

  def _bind(self, *stream):
    self._process = self._process._replace(stream=stream)
    self._draw = self._sampler.bind(self._items, self._process)

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
