"""Batches as a `tf.data.Dataset`:

runs of iterators | groups of batches, read by NumPy | batches, counted

A data set has streams of batches, which differ in their random numbers. An
iterator takes the first stream that no other iterator has, goes on where that
one stands, and gives it back when it ends:

    for batch in dataset.take(3)       stream 0, batches 0, 1, 2
    for batch in dataset.take(2)       stream 0, batches 3, 4
    zip(dataset, dataset)              streams 0 and 1 at the same time
"""

import itertools
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence
import weakref

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import graphs
from rlds2reverb.replay.local import batches as batches_lib


class Streams:
  """The batches of a data set, and how many were handed out of each stream.

  Attributes:
    batches: the batches of any stream.
    number: the number of the data set.
  """

  def __init__(self, batches: batches_lib.FrameBatches, goes_on: bool = True):
    """Creates the streams.

    Args:
      batches: the batches of any stream.
      goes_on: whether an iterator goes on where another one has ended, rather
        than at the start.
    """
    self.batches, self.number = batches, 0
    self._goes_on, self._lock = goes_on, threading.Lock()
    self._is_taken: List[bool] = []
    # The batches of each iterator, its stream, and the number of the next one.
    self._runs: Dict[int, List[Any]] = {}
    self._new_numbers = itertools.count()
    # Operations in graphs count here, because they cannot count in Python.
    with tf.init_scope(), tf.device('cpu'):
      self._counts = tf.lookup.experimental.MutableHashTable(
          tf.int64, tf.int64, 0, experimental_is_anonymous=True
      )

  def restore(self, positions: Sequence[int]) -> None:
    """Sets the positions of all streams, and forgets existing iterators."""
    with self._lock, tf.init_scope(), tf.device('cpu'):
      self._is_taken = [False] * len(positions)
      self._counts.remove(self._counts.export()[0])
      self._counts.insert(
          np.arange(len(positions)), np.array(positions, np.int64)
      )

  def new_run(self) -> Iterator[np.int64]:
    """Yields the number of a new iterator, which has a stream until it ends."""
    with self._lock:
      taken, run = self._is_taken, next(self._new_numbers)
      stream = (taken + [False]).index(False)
      taken[stream : stream + 1] = [True]
      begin = self.positions()[stream] if self._goes_on else 0
      batches = self.batches.of_stream(self.number, stream)
      self._runs[run] = [batches, stream, begin]
    try:
      yield np.int64(run)
    finally:
      taken[stream] = False
      del self._runs[run]

  def read(self, number: int) -> List[np.ndarray]:
    """Reads the next group of batches of an iterator.

    Args:
      number: the number of the iterator.

    Returns:
      The number of the stream, and how many of its batches have been handed out
      with each batch, int64 `[k]`; and the leaves of the batches `[k, ...]`.
      Where groups are of one batch, they have no axis `k`.

    Raises:
      StopIteration: at the end of the data set.
    """
    run = self._runs[int(number)]
    batches, stream, first = run
    leaves = batches.read_leaves(first, batches.group_size)
    if not leaves:
      raise StopIteration
    run[2] += len(leaves[-1])
    positions = np.arange(first, run[2]) + 1
    group = [np.full_like(positions, stream), positions, *leaves]
    return group if batches.group_size > 1 else [leaf[0] for leaf in group]

  def count(self, stream: tf.Tensor, position: tf.Tensor) -> None:
    """Notes in a graph how many batches of a stream have been handed out."""
    self._counts.insert(stream, position)

  def positions(self) -> List[int]:
    """Returns the position of each stream."""
    with tf.init_scope(), tf.device('cpu'):
      numbers = np.arange(len(self._is_taken))
      return self._counts.lookup(numbers).numpy().tolist()


def make_dataset(
    streams: Streams,
    sequence_fn: Optional[Callable[[Any], Any]] = None,
) -> tf.data.Dataset:
  """Returns a data set whose iterators have a stream each.

  Args:
    streams: the batches, which are read and counted there.
    sequence_fn: a function that is applied to the `Trajectory` `[L, ...]` of
      each item.
  """
  batches, read = streams.batches, _weak_method(streams, 'read')
  lead = [None] if batches.group_size > 1 else []
  number = tf.TensorSpec([], tf.int64)
  specs = tuple(
      tf.TensorSpec([*lead, *leaf.shape], leaf.dtype)
      for leaf in (number, number, *tf.nest.flatten(batches.element_spec))
  )

  def batches_of(run):
    groups = _map_here(
        tf.data.Dataset.range(tf.int64.max),
        lambda index: tf.numpy_function(
            read, [run], [leaf.dtype for leaf in specs]
        ),
        specs,
    )
    if batches.in_advance:
      groups = groups.prefetch(1)
    # Unlike `unbatch`, this copies nothing: a batch is a view of its group.
    of_group = lambda *group: tf.data.Dataset.from_tensor_slices(group)
    return groups.flat_map(of_group) if lead else groups

  def count(stream, position, *leaves):
    streams.count(stream, position)
    return leaves

  dataset = tf.data.Dataset.from_generator(
      _weak_method(streams, 'new_run'), output_signature=number
  ).flat_map(batches_of)
  options = tf.data.Options()
  options.deterministic = True
  # A batch counts as taken when it is asked for, and not before.
  options.experimental_optimization.inject_prefetch = False
  options.experimental_optimization.apply_default_optimizations = False
  dataset = _map_here(dataset, count, batches.element_spec)
  dataset = dataset.with_options(options)
  dataset.must_live = streams
  if sequence_fn is None:
    return dataset
  sequence_fn = item_fn = graphs.as_user_code(sequence_fn)
  if batches.element_spec[1].key.shape.rank == 2:
    sequence_fn = lambda frames: tf.vectorized_map(item_fn, frames)
  return dataset.map(lambda frames, info: (sequence_fn(frames), info))


def _map_here(
    dataset: tf.data.Dataset, function: Callable[..., Any], spec: Any
) -> tf.data.Dataset:
  """Maps a data set like `Dataset.map`, in the thread that asks for an element.

  `Dataset.map` runs the function in another thread and waits for it, which
  takes longer than to read a batch does.

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


def call(
    instance: Any, name: str, args: Sequence[Any], dtypes: Any = ()
) -> Any:
  """Calls a method that takes arrays, at once or as an operation of a graph.

  Args:
    instance: the owner of the method, which a graph does not keep alive.
    name: the name of the method.
    args: arrays, or tensors.
    dtypes: the types of its results, or that of its result.
  """
  if tf.executing_eagerly():
    return getattr(instance, name)(*map(np.asarray, args))
  return tf.numpy_function(_weak_method(instance, name), args, dtypes)


def _weak_method(instance: Any, name: str) -> Callable[..., Any]:
  """Returns a method that does not keep its instance alive.

  TensorFlow never forgets a Python function that is in a graph.
  """
  reference = weakref.ref(instance)

  def call_method(*args):
    found = reference()
    if found is None:
      raise ValueError('The replay buffer is gone.')
    return getattr(found, name)(*args)

  return call_method
