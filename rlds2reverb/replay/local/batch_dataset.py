"""A `tf.data.Dataset` of batches whose eager iterators need no graph.

It is a data set like any other. But its iterators take batches from NumPy for
as long as they are used eagerly, which is several times as fast. Once an
iterator has been used in a `tf.function`, it is one of TensorFlow's:

    runs of iterators | groups of batches, read by NumPy | batches, counted

The iterators override private methods of TensorFlow's, checked with 2.15.1.
"""

import itertools
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import private
from rlds2reverb.replay.local import sampling

# TensorFlow takes arrays of these types through DLPack without a copy, if they
# begin at a multiple of `_ALIGNMENT`.
_DLPACK = frozenset(
    np.dtype(name).num
    for name in (
        *('float16', 'float32', 'float64', 'int8', 'int16', 'int32', 'int64'),
        *('uint8', 'uint16', 'uint32', 'uint64'),
    )
)
_ALIGNMENT = 64


class BatchDataset(private.WrappedDataset):
  """A data set of the batches of a reader."""

  def __init__(
      self,
      reader: sampling.BatchReader,
      on_distribution: Callable[[], None] = lambda: None,
  ):
    """Creates the data set.

    Args:
      reader: the reader.
      on_distribution: called when `tf.distribute` splits the batches.
    """
    self._reader = reader
    self._on_distribution = on_distribution
    self._runs = _GraphRuns(reader)
    super().__init__(_counted(_groups_of_runs(reader, self._runs), reader))

  def rebatch(self, *args: Any, **kwargs: Any) -> tf.data.Dataset:
    self._on_distribution()
    return super().rebatch(*args, **kwargs)

  def _eager_iterator(self) -> Iterator[Any]:
    return _BatchIterator(self)

  def as_numpy_iterator(self) -> Iterator[Any]:
    return _NumpyIterator(self)


class _NumpyIterator:
  """An iterator over NumPy arrays."""

  def __init__(self, dataset: BatchDataset):
    self._dataset = dataset
    self._pack = _packer(dataset.element_spec)
    self._batches = sampling.NumpyBatches(dataset._reader)  # pylint: disable=protected-access

  def __iter__(self):
    return self

  def __next__(self):
    return self._pack(next(self._batches))


class _BatchIterator(private.OwnedIterator):
  """An iterator that is one of NumPy until it is used in a graph."""

  def __init__(self, dataset: BatchDataset):
    self._in_graph = None
    super().__init__(dataset)

  def _create_iterator(self, dataset):
    self._dataset = dataset
    self._element_spec = dataset.element_spec
    self._pack = _packer(self._element_spec)
    specs = tf.nest.flatten(self._element_spec)
    self._flat_output_types = [spec.dtype for spec in specs]
    self._flat_output_shapes = [spec.shape for spec in specs]
    self._batches = sampling.NumpyBatches(dataset._reader)  # pylint: disable=protected-access

  @property
  def _iterator_resource(self):
    if self._in_graph is None:
      self._batches.close()
      with tf.init_scope():
        self._in_graph = private.OwnedIterator(self._dataset)
    return self._in_graph._iterator_resource

  def _next_internal(self):
    if self._in_graph is not None or not tf.executing_eagerly():
      return super()._next_internal()
    try:
      leaves = next(self._batches)
    except StopIteration as e:
      raise tf.errors.OutOfRangeError(
          None, None, 'There are no more batches.'
      ) from e
    return self._pack(list(map(_to_tensor, leaves)))


class _GraphRuns:
  """The runs of iterators in graphs, each known by a number."""

  def __init__(self, reader: sampling.BatchReader):
    self._reader = reader
    self._numbers = itertools.count()
    self._runs: Dict[int, sampling.Run] = {}

  def new_run(self):
    """Yields the number of a new run, which ends with the iterator."""
    number = next(self._numbers)
    run = self._runs[number] = sampling.Run(self._reader)
    try:
      yield np.int64(number)
    finally:
      del self._runs[number]
      run.close()

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
    first = run.next
    leaves = run.read()
    if not leaves:
      raise StopIteration
    positions = np.arange(first, run.next) + 1
    group = [np.full_like(positions, run.number), positions, *leaves]
    if self._reader.group_size > 1:
      return group
    return [leaf[0] for leaf in group]


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
def _groups_of_runs(
    reader: sampling.BatchReader, runs: _GraphRuns
) -> tf.data.Dataset:
  """Returns a data set of the groups of each run; see `_GraphRuns.read`."""
  new_run = sampling.weak_method(runs, 'new_run')
  read = sampling.weak_method(runs, 'read')
  lead = [None] if reader.group_size > 1 else []
  specs = [
      tf.TensorSpec([*lead, *leaf.shape], leaf.dtype)
      for leaf in (
          *[tf.TensorSpec([], tf.int64)] * 2,
          *tf.nest.flatten(reader.element_spec),
      )
  ]
  dtypes = [leaf.dtype for leaf in specs]

  def batches_of(run):
    groups = map_here(
        tf.data.Dataset.range(tf.int64.max),
        lambda number: tf.numpy_function(read, [run], dtypes),
        tuple(specs),
    )
    if reader.spec.in_advance:
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


def _counted(
    batches: tf.data.Dataset, reader: sampling.BatchReader
) -> tf.data.Dataset:
  """Returns the batches, and counts each one when it is taken.

  Args:
    batches: batches with the number of their stream, and their own.
    reader: the reader whose streams count.
  """

  def count(stream, position, *leaves):
    reader.streams.count(stream, position)
    return leaves

  options = tf.data.Options()
  options.deterministic = True
  # A batch counts as taken when it is asked for, and not before.
  options.experimental_optimization.inject_prefetch = False
  options.experimental_optimization.apply_default_optimizations = False
  return map_here(batches, count, reader.element_spec).with_options(options)


def map_sequences(
    dataset: tf.data.Dataset, sequence_fn: Callable[[Any], Any]
) -> tf.data.Dataset:
  """Applies a function to the `Trajectory` `[L, ...]` of every item.

  Args:
    dataset: pairs of a `Trajectory` `[B, L, ...]` and a `SampleInfo` `[B, L]`,
      or of single items without `B`.
    sequence_fn: the function.
  """
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


def _packer(spec: Any) -> Callable[[Sequence[Any]], Any]:
  """Returns the function that packs the leaves of frames and their info.

  `tf.nest` takes longer than reading a batch does.
  """
  frames, info = spec
  fields = []
  begin = 0
  for field in frames:
    end = begin + len(tf.nest.flatten(field))
    is_leaf = not tf.nest.is_nested(field)
    # Most fields are one leaf, or empty.
    fields.append((None if is_leaf else field, begin, end))
    begin = end

  def pack(leaves):
    values = [
        leaves[begin]
        if field is None
        else field
        if begin == end
        else tf.nest.pack_sequence_as(field, leaves[begin:end])
        for field, begin, end in fields
    ]
    return type(frames)(*values), type(info)(*leaves[-len(info) :])

  return pack


def _to_tensor(array: np.ndarray) -> tf.Tensor:
  """Returns a tensor of an array that nothing else refers to."""
  address = array.__array_interface__['data'][0]
  if address % _ALIGNMENT or not array.size or array.dtype.num not in _DLPACK:
    return tf.convert_to_tensor(array)
  return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
