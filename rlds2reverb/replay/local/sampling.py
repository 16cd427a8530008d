"""Batches of frames: read by NumPy, and as a `tf.data.Dataset`.

Batches that are small are drawn and read together, in a group. There is one way
to make a group, whoever takes the batches: a graph, an eager loop or a trainer
that works on NumPy arrays.
"""

import contextlib
import itertools
from typing import Any, Callable, Dict, List, NamedTuple, Optional
import weakref

import numpy as np
import tensorflow as tf

from rlds2reverb.replay import sample_info
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import rows as rows_lib
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.replay.local import streams as streams_lib

_GROUP_BYTES = 1 << 20
_MAX_GROUP = 16
_FEW_FRAMES = 8
# Those of Reverb's `SampleInfo`.
_INFO_DTYPES = [
    np.dtype(name)
    for name in ('uint64', 'float64', 'int64', 'float64', 'int32')
]
_NO_LOCK = contextlib.nullcontext()


class BatchSpec(NamedTuple):
  """What batches are like.

  Attributes:
    batch_size: the number of items of a batch; None for single items.
    static_size: that which all batches have, None if some are shorter.
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
    streams: where its iterators stand.
    element_spec: the spec of a pair of a `Trajectory` `[B, L, ...]` and a
      `reverb.SampleInfo` `[B, L]`; without `B` for single items.
    spec: what the batches are like.
    runs: its iterators in graphs.
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
    self.runs: Any = None
    self._store = store
    self._population = population
    self._size = spec.batch_size or 1
    self._group = batches_per_group(store, self._size) if spec.in_advance else 1
    lead = [] if spec.batch_size is None else [spec.static_size]
    lead += [store.form.sequence_length]
    self.element_spec = (
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([*lead, *leaf.shape], leaf.dtype),
            store.format.spec,
        ),
        sample_info.sample_info_class()(
            *[tf.TensorSpec(lead, dtype) for dtype in _INFO_DTYPES]
        ),
    )

  def read(self, stream: streams_lib.Stream, first: int) -> List[np.ndarray]:
    """Reads a group of batches.

    Args:
      stream: whose batches they are.
      first: the number of the first one.

    Returns:
      The leaves of the batches, arrays `[k, B, L, ...]` that nobody else has.
      There are none at the end of the data set.

    Raises:
      SamplingError: if nothing can be drawn.
    """
    count = self._group
    if self.spec.num_batches is not None:
      count = min(count, self.spec.num_batches - first)
    if count < 1:
      return []
    # What is appended meanwhile must not overwrite what is read.
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
    info = rows_lib.aligned_arrays([(shape, dtype) for dtype in _INFO_DTYPES])
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
        leaf[..., frame] = values  # In a few long loops.
    return leaves + info

  def empty_group(self) -> List[np.ndarray]:
    """Returns the leaves of a group of no batches."""
    return [
        np.zeros([0] * (spec.shape.rank + 1), spec.dtype.as_numpy_dtype)
        for spec in tf.nest.flatten(self.element_spec)
    ]


class Run:
  """The batches of one iterator, as NumPy arrays."""

  def __init__(self, reader: BatchReader):
    self._reader = reader
    self._group: List[np.ndarray] = []
    self._at = self._end = 0
    self._stream: Optional[streams_lib.Stream] = None
    self._number = 0

  def next(self) -> List[np.ndarray]:
    """Returns the leaves of the next batch, or none at the end."""
    if self._stream is None:
      self._number, self._stream = self._reader.streams.take()
    if self._at == self._end:
      self._group = self._reader.read(self._stream, self._stream.position)
      if not self._group:
        return []
      self._at, self._end = 0, len(self._group[-1])
    leaves = [leaf[self._at] for leaf in self._group]
    self._at += 1
    self._stream.position += 1
    return leaves

  def close(self) -> None:
    """Gives the stream back."""
    if self._stream is not None:
      self._reader.streams.give_back(self._number, self._stream)
      self._stream = None
    self._at = self._end = 0

  def __del__(self):
    self.close()


class _GraphRuns:
  """The iterators of a data set in graphs, which are known by numbers."""

  def __init__(self, reader: BatchReader):
    self._reader = reader
    self._numbers = itertools.count()
    # The stream, its number, and the batch that is drawn next.
    self._runs: Dict[int, List[Any]] = {}

  def new_run(self):
    """Yields what an iterator is known by, until that ends."""
    number, stream = self._reader.streams.take()
    run = next(self._numbers)
    self._runs[run] = [stream, number, stream.position]
    try:
      yield np.int64(run)
    finally:
      del self._runs[run]
      self._reader.streams.give_back(number, stream)

  def read_next(self, run: int) -> List[np.ndarray]:
    """Returns the next group.

    Args:
      run: which iterator it is for.

    Returns:
      The number of the stream and that of each batch, int64 `[k, 2]`, and the
      leaves of the batches.
    """
    state = self._runs[int(run)]
    stream, number, first = state
    leaves = self._reader.read(stream, first)
    count = len(leaves[-1]) if leaves else 0
    state[-1] += count
    numbers = np.arange(first, first + count)
    return [
        np.stack([np.full_like(numbers, number), numbers], 1),
        *(leaves or self._reader.empty_group()),
    ]

  def read_one(self, run: int) -> List[np.ndarray]:
    """Returns the leaves of the next batch, which counts as handed out."""
    state = self._runs[int(run)]
    stream, _, first = state
    leaves = self._reader.read(stream, first)
    stream.position = state[-1] = first + 1
    return [leaf[0] for leaf in leaves]


def make_dataset(
    reader: BatchReader, sequence_fn: Optional[Callable[[Any], Any]] = None
) -> tf.data.Dataset:
  """Returns the data set of the batches of a reader, which must stay alive.

  Args:
    reader: the reader.
    sequence_fn: a function of the `Trajectory` `[L, ...]` of each item.
  """
  reader.runs = _GraphRuns(reader)
  new_run = weak_method(reader.runs, 'new_run')
  read_next = weak_method(reader.runs, 'read_next')
  count = reader.streams.count
  leaf_specs = tf.nest.flatten(reader.element_spec)

  # What is drawn when it is asked for needs no group, and counts at once.
  in_groups = reader.spec.in_advance or reader.spec.num_batches is not None
  read_one = weak_method(reader.runs, 'read_one')

  @tf.autograph.experimental.do_not_convert
  def read_batch(run):
    leaves = tf.numpy_function(
        read_one, [run], [spec.dtype for spec in leaf_specs]
    )
    for leaf, spec in zip(leaves, leaf_specs):
      leaf.set_shape(spec.shape)
    frames, info = tf.nest.pack_sequence_as(reader.element_spec, leaves)
    if sequence_fn is not None:
      frames = _map_sequences(sequence_fn, frames, info.key)
    return frames, info

  @tf.autograph.experimental.do_not_convert
  def read_group(run):
    numbers, *leaves = tf.numpy_function(
        read_next, [run], [tf.int64, *[spec.dtype for spec in leaf_specs]]
    )
    numbers.set_shape([None, 2])
    for leaf, spec in zip(leaves, leaf_specs):
      leaf.set_shape([None, *spec.shape])
    frames, info = tf.nest.pack_sequence_as(reader.element_spec, leaves)
    if sequence_fn is not None:
      frames = _map_sequences(sequence_fn, frames, info.key)
    return numbers, frames, info

  @tf.autograph.experimental.do_not_convert
  def batches_of(run):
    if not in_groups:
      return tf.data.Dataset.range(tf.int64.max).map(lambda _: read_batch(run))
    groups = tf.data.Dataset.range(tf.int64.max).map(lambda _: read_group(run))
    if reader.spec.num_batches is not None:
      groups = groups.take_while(lambda numbers, *_: tf.size(numbers) > 0)
    if reader.spec.in_advance:
      groups = groups.prefetch(1)
    return _take_apart(groups)

  @tf.autograph.experimental.do_not_convert
  def hand_out(number, frames, info):
    count(number[0], number[1] + 1)
    return frames, info

  batches = tf.data.Dataset.from_generator(
      new_run, output_signature=tf.TensorSpec([], tf.int64)
  )
  batches = batches.flat_map(batches_of)
  if in_groups:
    batches = batches.map(hand_out)
  options = tf.data.Options()
  options.deterministic = True
  # A batch counts as taken when it is asked for, and not before.
  options.experimental_optimization.inject_prefetch = False
  options.experimental_optimization.apply_default_optimizations = False
  return batches.with_options(options)


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
  length = store.form.sequence_length
  if length is None:
    return 1  # Episodes of different lengths have no common array.
  num_bytes = store.format.frame_bytes * batch_size * length
  return max(1, min(_MAX_GROUP, _GROUP_BYTES // max(num_bytes, 1)))


def _take_apart(groups: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the batches of groups of them."""
  if any(0 in leaf.shape for leaf in tf.nest.flatten(groups.element_spec)):
    # `unbatch` crashes where tensors have no elements.
    return groups.flat_map(
        lambda *group: tf.data.Dataset.from_tensor_slices(group)
    )
  return groups.unbatch()


def _map_sequences(sequence_fn, frames, key):
  """Applies a function to the frames of every item; `key` is `[..., L]`."""
  lead = tf.shape(key)[:-1]
  count = tf.reduce_prod(lead, keepdims=True)
  rank = key.shape.rank - 1
  flat = tf.nest.map_structure(
      lambda leaf: tf.ensure_shape(
          tf.reshape(leaf, tf.concat([count, tf.shape(leaf)[rank:]], 0)),
          [None, *leaf.shape[rank:]],
      ),
      frames,
  )
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), flat
  )
  function = tf.function(sequence_fn).get_concrete_function(spec)
  # Within a graph these are tensors.
  signature = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
      function.structured_outputs,
  )
  flat = tf.map_fn(sequence_fn, flat, fn_output_signature=signature)
  return tf.nest.map_structure(
      lambda leaf: tf.ensure_shape(
          tf.reshape(leaf, tf.concat([lead, tf.shape(leaf)[1:]], 0)),
          [*key.shape[:-1], *leaf.shape[1:]],
      ),
      flat,
  )
