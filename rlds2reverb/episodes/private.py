"""All uses of private names of TensorFlow, in one place.

They were checked with TensorFlow 2.15.1.
"""

import contextlib
from typing import Any, Iterator

import tensorflow as tf

# pylint: disable=g-direct-tensorflow-import
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import context
from tensorflow.python.saved_model import nested_structure_coder

from rlds2reverb.episodes import tf_errors

# `iter(dataset)` returns this type. AutoGraph accepts no other as an iterator.
OwnedIterator: Any = iterator_ops.OwnedIterator

# These encode a nest of specs as a proto, and decode it.
encode_structure = nested_structure_coder.encode_structure
decode_structure = nested_structure_coder.decode_proto


@contextlib.contextmanager
def own_default_graph() -> Iterator[None]:
  """Runs the body with a default graph of its own, which is freed after it.

  `Dataset.scan` and `reduce` add their functions to the default graph, and
  outside of functions that graph lives as long as the process.
  """
  with tf.Graph().as_default(), context.eager_mode():
    yield


class WrappedDataset(tf.data.Dataset):
  """The base of data sets that add methods to another data set."""

  def __init__(self, dataset: tf.data.Dataset):
    self._dataset = dataset
    super().__init__(tf.data.experimental.to_variant(dataset))

  def _inputs(self):
    return [self._dataset]

  @property
  def element_spec(self) -> Any:
    return self._dataset.element_spec

  def __iter__(self):
    if tf.executing_eagerly():
      return self._eager_iterator()
    return super().__iter__()

  def _eager_iterator(self) -> Any:
    """Returns the iterator for eager mode."""
    return PlainIterator(self)


class PlainIterator(iterator_ops.OwnedIterator):
  """An iterator whose errors are one line, without TensorFlow's nodes."""

  def __next__(self) -> Any:
    try:
      return super().__next__()
    except tf.errors.OpError as e:
      message = tf_errors.message_of(e)
      raise type(e)(e.node_def, e.op, message) from e
