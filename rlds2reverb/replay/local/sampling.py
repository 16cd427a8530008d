"""Batches of frames, read by NumPy.

Small batches are drawn and read together, in a group. Graphs, eager loops and
trainers that work on NumPy arrays all take their batches from such groups.
"""

import contextlib
import functools
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple
import weakref

import numpy as np
import tensorflow as tf

from rlds2reverb.replay import reverb
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import rows as rows_lib
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.replay.local import streams as streams_lib

_GROUP_BYTES = 4 << 20
_MAX_GROUP = 16
_FEW_FRAMES = 8
# The types of the fields of Reverb's `SampleInfo`.
_INFO_DTYPES = [
    np.dtype(name)
    for name in ('uint64', 'float64', 'int64', 'float64', 'int32')
]
_NO_LOCK = contextlib.nullcontext()


class BatchSpec(NamedTuple):
  """The specs of batches.

  Attributes:
    batch_size: the number of items of a batch; None for single items.
    static_size: the size of every batch, or None if some are shorter.
    num_batches: how many batches there are; None for any number.
    in_advance: whether batches are drawn before they are asked for.
  """

  batch_size: Optional[int]
  static_size: Optional[int]
  num_batches: Optional[int] = None
  in_advance: bool = True


class BatchReader:
  """Draws and reads the batches of a data set.

  Attributes:
    streams: the positions of its iterators.
    spec: what the batches are like.
    element_spec: the spec of a pair of a `Trajectory` `[B, L, ...]` and a
      `reverb.SampleInfo` `[B, L]`; without `B` for single items.
    group_size: how many batches are drawn and read together at most.
  """

  def __init__(
      self,
      store: store_lib.FrameStore,
      population: population_lib.Population,
      streams: streams_lib.Streams,
      spec: BatchSpec,
  ):
    self.streams = streams
    self.spec = spec
    self._store = store
    self._population = population
    self._size = spec.batch_size or 1
    self.group_size = (
        batches_per_group(store, self._size) if spec.in_advance else 1
    )
    lead = [] if spec.batch_size is None else [spec.static_size]
    lead += [store.windows.sequence_length]
    self.element_spec = (
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([*lead, *leaf.shape], leaf.dtype),
            store.format.spec,
        ),
        reverb.sample_info_class()(
            *[tf.TensorSpec(lead, dtype) for dtype in _INFO_DTYPES]
        ),
    )

  def read(self, stream: streams_lib.Stream, first: int) -> List[np.ndarray]:
    """Reads a group of batches.

    Args:
      stream: the stream of the batches.
      first: the number of the first one.

    Returns:
      The leaves of the batches, unshared arrays `[k, B, L, ...]`. There are
      none at the end of the data set.

    Raises:
      SamplingError: if nothing can be drawn.
    """
    count = self.group_size
    if self.spec.num_batches is not None:
      count = min(count, self.spec.num_batches - first)
    if count < 1:
      return []
    # Frames that are appended meanwhile must not overwrite those that are read.
    lock = self._population.lock if self._population.changes else _NO_LOCK
    with lock:
      draws = stream.draw(first, count, self._size)
      items = draws.items.ravel()
      length = self._population.length(items)
      leaves = self._store.read(self._population.starts(items), length)
      size = self._population.num_items
    shape = [*draws.items.shape, length]
    if self.spec.batch_size is None:
      del shape[1]
    leaves = [leaf.reshape([*shape, *leaf.shape[2:]]) for leaf in leaves]
    info = _info_layout(*shape).new_arrays()
    for leaf, values in zip(
        info, (draws.items, draws.probability, size, draws.priority, 0)
    ):
      if not np.ndim(values):
        leaf[...] = values
        continue
      values = values.reshape(shape[:-1])
      if length > _FEW_FRAMES:
        leaf[...] = values[..., np.newaxis]
        continue
      for frame in range(length):
        leaf[..., frame] = values  # Faster than broadcasting.
    return leaves + info


class Run:
  """The groups of batches of one iterator.

  Attributes:
    stream: whose batches they are.
    number: the number of the stream.
    next: the number of the batch that is read next.
  """

  def __init__(self, reader: BatchReader):
    self._reader = reader
    self.number, self.stream = reader.streams.take()
    self.next = self.stream.position

  def read(self) -> List[np.ndarray]:
    """Returns the leaves of the next group; see `BatchReader.read`."""
    leaves = self._reader.read(self.stream, self.next)
    if leaves:
      self.next += len(leaves[-1])
    return leaves

  def close(self) -> None:
    """Gives the stream back."""
    self._reader.streams.give_back(self.number, self.stream)


class NumpyBatches:
  """An iterator over the leaves of batches."""

  def __init__(self, reader: BatchReader):
    self._reader = reader
    self._run: Optional[Run] = None
    self._batches: Iterator[Tuple[np.ndarray, ...]] = iter(())

  def __next__(self) -> Tuple[np.ndarray, ...]:
    leaves = next(self._batches, None)
    if leaves is None:
      if self._run is None:
        self._run = Run(self._reader)
      self._batches = zip(*self._run.read())
      leaves = next(self._batches)
    self._run.stream.position += 1
    return leaves

  def close(self) -> None:
    """Gives the stream back, for others to go on."""
    if self._run is not None:
      self._run.close()
      self._run = None
    self._batches = iter(())

  def __del__(self):
    self.close()


def weak_method(instance: Any, name: str) -> Callable[..., Any]:
  """Returns a method that does not keep its instance alive.

  TensorFlow never forgets a Python function that is in a graph.
  """
  reference = weakref.ref(instance)

  def call(*args):
    found = reference()
    if found is None:
      raise ValueError('The replay buffer is gone.')
    return getattr(found, name)(*args)

  return call


def batches_per_group(store: store_lib.FrameStore, batch_size: int) -> int:
  """Returns how many batches are drawn together."""
  length = store.windows.sequence_length
  if length is None:
    return 1  # Episodes of different lengths have no common array.
  num_bytes = store.format.frame_bytes * batch_size * length
  return max(1, min(_MAX_GROUP, _GROUP_BYTES // max(num_bytes, 1)))


@functools.lru_cache(8)
def _info_layout(*shape: int) -> rows_lib.ArrayLayout:
  return rows_lib.ArrayLayout([(shape, dtype) for dtype in _INFO_DTYPES])
