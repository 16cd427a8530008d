"""A data set of batches whose eager iterators need no graph.

It is a `tf.data.Dataset` like any other. But its iterators take batches from
NumPy for as long as they are used eagerly, which is several times as fast.
Once an iterator has been used in a `tf.function`, it is one of TensorFlow's.

This is the one module of the replay buffer that uses private names of
TensorFlow: `OwnedIterator`, without which AutoGraph would not know that it is
an iterator, and the variant tensor of a data set; they were checked
with 2.15.1.
"""

from typing import Any, Callable, Iterator, List

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops  # pylint: disable=g-direct-tensorflow-import

from rlds2reverb.replay.local import sampling

# The types that TensorFlow takes through DLPack, which copies nothing, if an
# array begins at such an address.
_DLPACK = frozenset(
    np.dtype(name).num
    for name in (
        *('float16', 'float32', 'float64', 'int8', 'int16', 'int32', 'int64'),
        *('uint8', 'uint16', 'uint32', 'uint64'),
    )
)
_ALIGNMENT = 64


class BatchDataset(tf.data.Dataset):
  """A data set of the batches of a reader."""

  def __init__(self, reader: sampling.BatchReader, sequence_fn: Any = None):
    self._reader = reader
    self._is_of_numpy = sequence_fn is None
    self._dataset = sampling.make_dataset(reader, sequence_fn)
    super().__init__(self._dataset._variant_tensor)  # pylint: disable=protected-access

  def _inputs(self) -> List[tf.data.Dataset]:
    return [self._dataset]

  @property
  def element_spec(self) -> Any:
    return self._dataset.element_spec

  def __iter__(self) -> Iterator[Any]:
    if self._is_of_numpy and tf.executing_eagerly():
      return _BatchIterator(self)
    return super().__iter__()

  def as_numpy_iterator(self) -> Iterator[Any]:
    if self._is_of_numpy:
      return _NumpyIterator(self)
    return super().as_numpy_iterator()


class _NumpyIterator:
  """An iterator over NumPy arrays."""

  def __init__(self, dataset: BatchDataset):
    self._dataset = dataset
    self._pack = _packer(dataset.element_spec)
    self._run = sampling.Run(dataset._reader)  # pylint: disable=protected-access

  def __iter__(self):
    return self

  def __next__(self):
    leaves = self._run.next()
    if not leaves:
      raise StopIteration
    return self._pack(leaves)


class _BatchIterator(iterator_ops.OwnedIterator):
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
    self._run = sampling.Run(dataset._reader)  # pylint: disable=protected-access

  @property
  def _iterator_resource(self):
    if self._in_graph is None:
      self._run.close()
      with tf.init_scope():
        self._in_graph = iterator_ops.OwnedIterator(self._dataset)
    return self._in_graph._iterator_resource

  def _next_internal(self):
    if self._in_graph is not None or not tf.executing_eagerly():
      return super()._next_internal()
    leaves = self._run.next()
    if not leaves:
      raise tf.errors.OutOfRangeError(None, None, 'There are no more batches.')
    return self._pack(list(map(_to_tensor, leaves)))


def _packer(spec: Any) -> Callable[[List[Any]], Any]:
  """Returns the function that packs the leaves of frames and their info.

  `tf.nest` takes longer than reading a batch does.
  """
  frames, info = spec
  fields = []
  begin = 0
  for field in frames:
    end = begin + len(tf.nest.flatten(field))
    is_leaf = not tf.nest.is_nested(field)
    # Most fields are a leaf, or nothing at all.
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
  """Returns the tensor of an array that nobody else has."""
  address = array.__array_interface__['data'][0]
  if address % _ALIGNMENT or not array.size or array.dtype.num not in _DLPACK:
    return tf.convert_to_tensor(array)
  return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
