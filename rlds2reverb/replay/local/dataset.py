"""Batches as a `tf.data.Dataset`.

A data set has streams of batches, which differ in their random numbers. An
iterator takes the first stream that no other iterator owns, resumes at the
position of the stream, and returns the stream when it ends:

    for batch in dataset.take(3)       stream 0, batches 0, 1, 2
    for batch in dataset.take(2)       stream 0, batches 3, 4
    zip(dataset, dataset)              streams 0 and 1 at the same time

The data set's own iterator reads a batch without `tf.data`, eagerly and where a
graph calls `next`. Other data sets, such as `dataset.take(3)`, are `tf.data`
pipelines, which count the batches of an iterator as they are requested. Small
batches are read in groups:

    iterator ids | groups of batches, read by NumPy | batches, counted
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import functools
import itertools
import json
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import tf_private
from rlds2reverb.replay.local import batches as frame_batches
from rlds2reverb.store import damage
from rlds2reverb.store import items as store_items


class CallOrder:
  """Calls Python in graphs, one call after another as in the program.

  TensorFlow keeps the order of operations that share a resource, such as a
  table. Without one, calls are ordered among themselves, but not with calls in
  a loop or a branch.
  """

  def __init__(self):
    with tf.init_scope(), tf.device('cpu'):
      self._table = tf.lookup.experimental.MutableHashTable(
          tf.int64, tf.int64, 0, experimental_is_anonymous=True
      )

  def call(
      self, function: Callable[..., Any], args: Sequence[Any], dtypes: Any
  ) -> Any:
    """Returns the results of `tf.numpy_function` for the same arguments."""
    with tf.device('cpu'):
      with tf.control_dependencies([self._table.size()]):
        results = tf.numpy_function(function, args, dtypes)
      with tf.control_dependencies(tf.nest.flatten(results)):
        self._table.insert(np.int64(0), np.int64(0))
    return results


class Reader:
  """Reads the batches of one iterator in their order.

  Attributes:
    iterator_id: the id of the iterator.
    position: the index of the next batch. A `tf.data` pipeline reads ahead, so
      its batches count in `Streams`, and this stays the first one.
    has_ended: whether the iterator has ended, so its stream is free.
  """

  def __init__(
      self, streams: 'Streams', iterator_id: int, stream: int, position: int
  ):
    self.iterator_id, self.position = iterator_id, position
    self.has_ended = False
    self._streams, self._stream = streams, stream
    # In a `tf.data` pipeline, the index of the next batch to read.
    self._next_of_pipeline = position
    self._ready: collections.deque[Any] = collections.deque()
    self._ahead: futures.Future[Any] | None = None

  @functools.cached_property
  def batches(self) -> frame_batches.FrameBatches:
    """The batches of the stream that the iterator owns."""
    return self._streams.batches.of_stream(self._streams.index, self._stream)

  def next_leaves(self, read_ahead: bool) -> Sequence[np.ndarray] | None:
    """Returns the leaves of the next batch, or None after the last one.

    Args:
      read_ahead: whether a thread reads the next group, if the batches allow
        it.
    """
    if not self._ready:
      ahead, self._ahead = self._ahead, None
      group = self._read(self.position) if ahead is None else ahead.result()
      if group is None:
        return None
      self._ready.extend(zip(*group))
      if read_ahead and self.batches.may_read_ahead:
        self._ahead = self._streams.executor.submit(
            self._read, self.position + len(self._ready)
        )
    self.position += 1
    return self._ready.popleft()

  def next_group(self) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the next group of batches of a `tf.data` pipeline.

    Returns:
      The position after each batch, int64 `[k]`, and the leaves of the batches,
      `[k, ...]`.

    Raises:
      StopIteration: after the last batch.
    """
    leaves = self._read(self._next_of_pipeline)
    if leaves is None:
      raise StopIteration
    positions = self._next_of_pipeline + np.arange(len(leaves[0])) + 1
    self._next_of_pipeline += len(positions)
    return positions, leaves

  def end(self) -> None:
    """Frees the stream, and drops batches that were read in advance."""
    self.has_ended = True
    self._ahead = None
    self._ready.clear()

  def _read(self, first: int) -> list[np.ndarray] | None:
    """Reads the group of batches that begins with batch `first`."""
    return self.batches.read_leaves(first, self.batches.group_size)


class Streams:
  """The streams of a data set: their iterators and positions.

  Attributes:
    batches: the batches of any stream.
    index: the index of the data set.
    readers: the readers of iterators, by the ids of the iterators.
    order: the order of calls of Python in graphs.
    executor: the thread that reads batches in advance.
  """

  def __init__(
      self,
      batches: frame_batches.FrameBatches,
      order: CallOrder,
      resumes: bool = True,
  ):
    """Creates the streams.

    Args:
      batches: the batches of any stream.
      order: the order of calls of Python in graphs.
      resumes: whether an iterator begins at the position of its stream, rather
        than at the start.
    """
    self.batches = batches
    self.order = order
    self.index = 0
    self._resumes = resumes
    self._lock = threading.RLock()
    self._new_ids = itertools.count()
    self.readers: dict[int, Reader] = {}
    self.executor = futures.ThreadPoolExecutor(1)
    # The last reader of each stream.
    self._last_readers: list[Reader] = []
    # The positions of iterators of `tf.data` pipelines, by id.
    with tf.init_scope(), tf.device('cpu'):
      self._counts = tf.lookup.experimental.MutableHashTable(
          tf.int64, tf.int64, -1, experimental_is_anonymous=True
      )

  def restore(self, positions: Sequence[int]) -> None:
    """Sets the positions of all streams.

    New iterators continue there. Existing iterators continue where they are,
    and no longer count.
    """
    with self._lock:
      self._last_readers = []
      # A reader that has ended holds the position of a free stream.
      for stream, position in enumerate(positions):
        reader = Reader(self, next(self._new_ids), stream, position)
        reader.end()
        self._last_readers.append(reader)

  def new_iterator(self) -> Iterator[np.int64]:
    """Yields a new iterator id. The iterator owns a stream until it ends."""
    with self._lock:
      # After the last stream there is always another free one, at batch 0.
      is_free = [reader.has_ended for reader in self._last_readers] + [True]
      stream = is_free.index(True)
      positions = [*self.positions(), 0]
      position = positions[stream] if self._resumes else 0
      reader = Reader(self, next(self._new_ids), stream, position)
      self._last_readers[stream : stream + 1] = [reader]
      self.readers[reader.iterator_id] = reader
    try:
      yield np.int64(reader.iterator_id)
    finally:
      reader.end()
      del self.readers[reader.iterator_id]

  def read_next_group(self, iterator_id: int) -> list[np.ndarray]:
    """Reads the next group of batches of an iterator.

    Args:
      iterator_id: the id of the iterator.

    Returns:
      The id, and the position of the iterator after each batch, int64 `[k]`;
      and the leaves of the batches `[k, ...]`. Groups of one batch have no axis
      `k`.

    Raises:
      StopIteration: at the end of the data set.
    """
    positions, leaves = self.readers[int(iterator_id)].next_group()
    group = [np.full_like(positions, iterator_id), positions, *leaves]
    return group if self.batches.group_size > 1 else [leaf[0] for leaf in group]

  def set_position(self, iterator_id: tf.Tensor, position: tf.Tensor) -> None:
    """Sets the position of an iterator, in a graph."""
    self._counts.insert(iterator_id, position)

  def positions(self) -> list[int]:
    """Returns the position of each stream."""
    with self._lock, tf.init_scope(), tf.device('cpu'):
      readers = self._last_readers
      ids = np.array([reader.iterator_id for reader in readers], np.int64)
      counts = self._counts.lookup(ids).numpy().tolist()
      return [
          max(reader.position, count) for reader, count in zip(readers, counts)
      ]


class SamplingState(tf.train.experimental.PythonState):
  """The positions of the data sets of a replay buffer, for a checkpoint.

  Attributes:
    identity: values that determine the batches, by name.
    datasets: the data sets of `get_next`, by their arguments.
    iterators: the iterators of these data sets, by the same arguments. After a
      restored position, `get_next` makes new ones.
  """

  def __init__(self, identity: dict[str, Any]):
    self.identity = identity
    self.datasets: dict[Any, tf.data.Dataset] = {}
    self.iterators: dict[Any, Any] = {}
    self._streams: list[Streams] = []
    # The positions of all data sets, also of data sets that are made later.
    self._restored: list[list[int]] = []

  def add(self, streams: Streams) -> None:
    """Adds a data set and sets its index."""
    streams.index = len(self._streams)
    if streams.index < len(self._restored):
      streams.restore(self._restored[streams.index])
    self._streams.append(streams)

  def restore(self, positions: list[list[int]]) -> None:
    """Sets the positions of all data sets, also of later ones."""
    self._restored = positions
    self.iterators.clear()
    for streams, places in zip(self._streams, positions):
      streams.restore(places)

  def seek(self, index: int) -> None:
    """Continues all data sets at a batch; if there are none yet, the first."""
    self.restore([[index]] * max(len(self._positions()), 1))

  def serialize(self) -> str:
    """Returns the number of batches of each stream of each data set."""
    return json.dumps({**self.identity, 'positions': self._positions()})

  def deserialize(self, value: str) -> None:
    """Restores the result of `serialize`.

    Raises:
      ValueError: if the position is of other batches, or damaged.
    """
    try:
      saved = damage.loads_json(value)
      positions = [list(map(int, places)) for places in saved['positions']]
    except (KeyError, TypeError, ValueError) as e:
      raise ValueError(
          f'The sampling position in the checkpoint is damaged: {e!r}.'
      ) from e
    different = [
        f'{name} {saved.get(name)!r} (here {value!r})'
        for name, value in self.identity.items()
        if saved.get(name) != value
    ]
    if different:
      raise ValueError(
          'The checkpoint is of a replay buffer that draws other batches, with'
          f' {", ".join(different)}. Use the same arguments, or remove the'
          ' replay buffer from the checkpoint to sample from the start.'
      )
    self.restore(positions)

  def _positions(self) -> list[list[int]]:
    positions = [streams.positions() for streams in self._streams]
    return positions + self._restored[len(positions) :]


class _NumpyIterator:
  """An iterator over batches of NumPy arrays."""

  def __init__(self, streams: Streams):
    self._streams = streams
    self._lock = threading.Lock()
    self._ids: Any = streams.new_iterator()
    self._reader: Any = None

  def __iter__(self):
    return self

  def __next__(self) -> Any:
    return self._streams.batches.pack(self.next_leaves())

  def next_leaves(self, read_ahead: bool = False) -> Sequence[np.ndarray]:
    """Returns the leaves of the next batch; see `Reader`."""
    with self._lock:
      if self._reader is None:
        self._reader = self._streams.readers[next(self._ids)]
      leaves = self._reader.next_leaves(read_ahead)
      if leaves is None:
        # The iterator returns its stream, and later calls raise StopIteration.
        self._ids.close()
        self._reader = None
        raise StopIteration
      return leaves


class _BatchDataset(tf_private.WrappedDataset):
  """A data set of batches, whose eager iterators need no graph."""

  def __init__(self, streams: Streams):
    super().__init__(_graph_dataset(streams))
    self._streams = streams

  def __iter__(self):
    return (
        _TensorIterator(self) if tf.executing_eagerly() else super().__iter__()
    )

  def as_numpy_iterator(self):
    if not tf.executing_eagerly():
      return super().as_numpy_iterator()
    return _NumpyIterator(self._streams)


class _TensorIterator(tf_private.PlainIterator):
  """Reads batches by NumPy, eagerly and where a graph calls `next`."""

  def _create_iterator(self, dataset):
    self._dataset = dataset
    self._resource_iterator = None
    self._element_spec = dataset.element_spec
    specs = tf.nest.flatten(self._element_spec)
    self._flat_output_types = [spec.dtype for spec in specs]
    self._flat_output_shapes = [spec.shape for spec in specs]
    self._streams = dataset._streams
    self._numpy_iterator = _NumpyIterator(self._streams)
    # It reads ahead while the graph calls Python, which takes longer.
    self._read = functools.partial(
        pipelines.weak_method(self._numpy_iterator, 'next_leaves'),
        read_ahead=True,
    )
    with tf.device('cpu'):
      self._device = tf.convert_to_tensor(0).device

  def _next_internal(self):
    pack = self._streams.batches.pack
    if not tf.executing_eagerly():
      leaves = self._streams.order.call(self._read, [], self._flat_output_types)
      for leaf, shape in zip(leaves, self._flat_output_shapes):
        leaf.set_shape(shape)
      return pack(leaves)
    try:
      leaves = self._numpy_iterator.next_leaves()
    except StopIteration as e:
      raise tf.errors.OutOfRangeError(None, None, 'End of sequence') from e
    except store_items.SamplingError as e:
      # A graph raises the same error.
      raise tf.errors.InvalidArgumentError(None, None, str(e)) from e
    return pack(
        [tf_private.EagerTensor(leaf, self._device, None) for leaf in leaves]
    )

  @property
  def _iterator_resource(self):
    """TensorFlow's own iterator, for a graph that has it as an argument."""
    if self._resource_iterator is None:
      with tf.init_scope():
        dataset = _call_repeatedly(self._read, [], self._element_spec)
        self._resource_iterator = tf_private.PlainIterator(
            dataset.with_options(_options())
        )
    return self._resource_iterator._iterator_resource


def make_dataset(
    streams: Streams,
    sequence_fn: Callable[[Any], Any] | None = None,
) -> tf.data.Dataset:
  """Returns a data set whose iterators have a stream each.

  Args:
    streams: the batches, which are read and counted there.
    sequence_fn: a function that is applied to the `Trajectory` `[L, ...]` of
      each item.
  """
  if sequence_fn is None:
    return _BatchDataset(streams)
  sequence_fn = item_fn = pipelines.as_user_code(sequence_fn)
  if streams.batches.element_spec[1].key.shape.rank == 2:
    sequence_fn = lambda frames: tf.vectorized_map(item_fn, frames)
  return _graph_dataset(streams).map(
      pipelines.as_library_code(
          lambda frames, info: (sequence_fn(frames), info)
      )
  )


@pipelines.do_not_convert
def _graph_dataset(streams: Streams) -> tf.data.Dataset:
  """Returns the batches as a data set that graphs can read."""
  batches = streams.batches
  read = pipelines.weak_method(streams, 'read_next_group')
  lead = [None] if batches.group_size > 1 else []
  index = tf.TensorSpec([], tf.int64)
  specs = tuple(
      tf.TensorSpec([*lead, *leaf.shape], leaf.dtype)
      for leaf in (index, index, *tf.nest.flatten(batches.element_spec))
  )

  def read_batches(iterator):
    groups = _call_repeatedly(read, [iterator], specs)
    if batches.may_read_ahead:
      groups = groups.prefetch(1)
    # Unlike `unbatch`, this copies nothing: a batch is a view of its group.
    of_group = lambda *group: tf.data.Dataset.from_tensor_slices(group)
    return groups.flat_map(of_group) if lead else groups

  def count(iterator_id, position, *leaves):
    streams.set_position(iterator_id, position)
    return leaves

  dataset = tf.data.Dataset.from_generator(
      pipelines.weak_method(streams, 'new_iterator'), output_signature=index
  ).flat_map(read_batches)
  dataset = _map_here(dataset, count, batches.element_spec)
  dataset = dataset.with_options(_options())
  # The pipeline has only weak references to it.
  dataset.must_live = streams
  return dataset


def _options() -> tf.data.Options:
  """Returns options with which a batch counts when it is requested."""
  options = tf.data.Options()
  options.deterministic = True
  options.experimental_optimization.inject_prefetch = False
  options.experimental_optimization.apply_default_optimizations = False
  return options


def _call_repeatedly(
    function: Callable[..., Any], args: Sequence[Any], spec: Any
) -> tf.data.Dataset:
  """Returns the results of a Python function until it raises StopIteration."""
  dtypes = [leaf.dtype for leaf in tf.nest.flatten(spec)]
  return _map_here(
      tf.data.Dataset.range(tf.int64.max),
      lambda unused_index: tf.numpy_function(function, args, dtypes),
      spec,
  )


def _map_here(
    dataset: tf.data.Dataset, function: Callable[..., Any], spec: Any
) -> tf.data.Dataset:
  """Maps a data set like `Dataset.map`, in the thread that requests an element.

  `Dataset.map` runs the function in another thread and waits for it, which
  takes longer than reading a batch.

  Args:
    dataset: the elements.
    function: takes the parts of an element. The data set ends when it raises a
      StopIteration.
    spec: the spec of its result.
  """
  traced = tf.function(function, autograph=False).get_concrete_function(
      *tf.nest.flatten(dataset.element_spec)
  )
  leaves = tf.nest.flatten(spec)
  variant = tf.raw_ops.MapDataset(
      input_dataset=tf.data.experimental.to_variant(dataset),
      other_arguments=traced.captured_inputs,
      f=traced,
      output_types=[leaf.dtype for leaf in leaves],
      output_shapes=[leaf.shape for leaf in leaves],
      use_inter_op_parallelism=False,
      preserve_cardinality=False,
  )
  mapped = tf.data.experimental.from_variant(variant, spec)
  mapped.must_live = dataset, traced
  return mapped
