"""Batches as a `tf.data.Dataset`:

runs of iterators | groups of batches, read by NumPy | batches, counted
"""

import itertools
from typing import Any, Callable, Dict, List, Optional
import weakref

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import graphs
from rlds2reverb.replay.local import batches as batches_lib
from rlds2reverb.replay.local import position as position_lib


def make_dataset(
    batches: batches_lib.FrameBatches,
    streams: position_lib.Streams,
    sequence_fn: Optional[Callable[[Any], Any]] = None,
) -> tf.data.Dataset:
  """Returns a data set whose iterators have a stream each.

  Args:
    batches: the batches of any stream.
    streams: where each iterator begins, and its batches are counted.
    sequence_fn: a function that is applied to the `Trajectory` `[L, ...]` of
      each item.
  """
  runs = _Runs(batches, streams)

  def count(stream, position, *leaves):
    streams.count(stream, position)
    return leaves

  options = tf.data.Options()
  options.deterministic = True
  # A batch counts as taken when it is asked for, and not before.
  options.experimental_optimization.inject_prefetch = False
  options.experimental_optimization.apply_default_optimizations = False
  dataset = map_here(
      _batches_of_runs(batches, runs), count, batches.element_spec
  ).with_options(options)
  dataset.must_live = runs
  return dataset if sequence_fn is None else _mapped(dataset, sequence_fn)


class _Runs:
  """The batches of iterators, each known by a number."""

  def __init__(self, batches, streams):
    self._batches, self._streams = batches, streams
    self._numbers = itertools.count()
    # The batches of a run, and the numbers of its stream and its next batch.
    self._runs: Dict[int, List[Any]] = {}

  def new_run(self):
    """Yields the number of a new run, which ends with the iterator."""
    number = next(self._numbers)
    stream, begin, taken = self._streams.take()
    self._runs[number] = [self._batches.of_stream(stream), stream, begin]
    try:
      yield np.int64(number)
    finally:
      del self._runs[number]
      self._streams.give_back(stream, taken)

  def read(self, number: int) -> List[np.ndarray]:
    """Reads the next group of a run.

    Args:
      number: the number of the run.

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


def map_here(
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


@graphs.no_autograph
def _batches_of_runs(
    batches: batches_lib.FrameBatches, runs: _Runs
) -> tf.data.Dataset:
  """Returns a data set of the batches of each run; see `_Runs.read`."""
  new_run, read = weak_method(runs, 'new_run'), weak_method(runs, 'read')
  lead = [None] if batches.group_size > 1 else []
  leaves = [tf.TensorSpec([], tf.int64)] * 2
  leaves += tf.nest.flatten(batches.element_spec)
  specs = [tf.TensorSpec([*lead, *leaf.shape], leaf.dtype) for leaf in leaves]
  dtypes = [leaf.dtype for leaf in specs]

  def batches_of(run):
    groups = map_here(
        tf.data.Dataset.range(tf.int64.max),
        lambda number: tf.numpy_function(read, [run], dtypes),
        tuple(specs),
    )
    if batches.in_advance:
      groups = groups.prefetch(1)
    if not lead:
      return groups
    # Unlike `unbatch`, this copies nothing: a batch is a view of its group.
    return groups.flat_map(
        lambda *group: tf.data.Dataset.from_tensor_slices(group)
    )

  return tf.data.Dataset.from_generator(
      new_run, output_signature=tf.TensorSpec([], tf.int64)
  ).flat_map(batches_of)


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


def _mapped(dataset, sequence_fn):
  """Applies a function to the `Trajectory` of every item of batches."""
  frames_spec, info_spec = dataset.element_spec
  if info_spec.key.shape.rank == 1:
    return dataset.map(lambda frames, info: (sequence_fn(frames), info))
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), frames_spec
  )
  function = tf.function(sequence_fn).get_concrete_function(spec)
  # Within a graph these are tensors.
  signature = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
      function.structured_outputs,
  )
  return dataset.map(
      lambda frames, info: (
          tf.map_fn(sequence_fn, frames, fn_output_signature=signature),
          info,
      )
  )
