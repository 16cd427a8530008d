"""All uses of private names of TensorFlow, TFDS and TF-Agents, in one place.

They were checked with TensorFlow 2.15.1, TFDS 4.9.10 and TF-Agents 0.19.0, and
`private_test` looks for them. If another version of TFDS works differently, its
public functions, which are slower, take their place.
"""

import contextlib
import types
from typing import Any, Callable, Iterator, List, Optional

import tensorflow as tf

# pylint: disable=g-direct-tensorflow-import
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.saved_model import nested_structure_coder
import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_builder
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core import reader
from tensorflow_datasets.core.utils import read_config as read_config_lib

from rlds2reverb.episodes import tf_errors

# pylint: disable=protected-access

# AutoGraph rewrites each `if` and `for` that depends on a tensor, in a function
# and in all that it calls. It takes seconds, changes the errors, and finds none
# in this library, so it leaves this library out.
autograph_config.CONVERSION_RULES = (
    autograph_config.DoNotConvert('rlds2reverb'),
    *autograph_config.CONVERSION_RULES,
)

# `iter(dataset)` returns this type. AutoGraph accepts no other as an iterator.
OwnedIterator: Any = iterator_ops.OwnedIterator

# These encode a nest of specs as a proto, and decode it.
encode_structure = nested_structure_coder.encode_structure
decode_structure = nested_structure_coder.decode_proto

RECORD = 'record'
TFRECORD = file_adapters.FileFormat.TFRECORD
# The number of files that TFDS reads at a time.
_CYCLE_LENGTH = 16

# What TF-Agents' Reverb observers hold; not all of them hold all of it.
OBSERVER_SETTINGS = (
    'bypass_partial_episodes',
    'cached_steps',
    'max_sequence_length',
    'pad_end_of_episodes',
    'priority',
    'sequence_length',
    'stride_length',
    'table_names',
    'tile_end_of_episodes',
    'writer',
)


@contextlib.contextmanager
def own_default_graph() -> Iterator[None]:
  """Runs the body with a default graph of its own, which is freed after it.

  `Dataset.scan` and `reduce` add their functions to the default graph, and
  outside of functions that graph lives as long as the process.
  """
  with tf.Graph().as_default(), context.eager_mode():
    yield


def as_user_code(function: Callable[..., Any]) -> Callable[..., Any]:
  """Decorates a function of the user, which AutoGraph rewrites in a graph."""

  def call(*args, **kwargs):
    if tf.executing_eagerly():
      return function(*args, **kwargs)
    rewritten = autograph.tf_convert(function, ag_ctx.control_status_ctx())
    return rewritten(*args, **kwargs)

  return call


class WrappedDataset(tf.data.Dataset):
  """The base of data sets that add methods to another data set.

  The other one is made of a source when it is first used, because it may never
  be, and making it takes longer than converting a small data set.
  """

  def __init__(
      self,
      source: tf.data.Dataset,
      element_spec: Any = None,
      make: Callable[[Any], tf.data.Dataset] = lambda source: source,
  ):
    """Creates the data set.

    Args:
      source: a data set.
      element_spec: the spec of the elements; by default that of `source`.
      make: makes the other data set of `source`; by default it is `source`.
    """
    self._input, self._make = source, make
    self._spec = source.element_spec if element_spec is None else element_spec
    self._wrapped: Optional[tf.data.Dataset] = None
    super().__init__(None)
    if not tf.executing_eagerly():
      self._wrapped = make(source)  # It must be in this function's graph.

  def _inputs(self):
    return [self._input]

  @property
  def _variant_tensor(self) -> tf.Tensor:
    if self._wrapped is None:
      with tf.init_scope():
        self._wrapped = self._make(self._input)
    return tf.data.experimental.to_variant(self._wrapped)

  @property
  def element_spec(self) -> Any:
    return self._spec

  def __iter__(self):
    return PlainIterator(self) if tf.executing_eagerly() else super().__iter__()


class PlainIterator(iterator_ops.OwnedIterator):
  """An iterator whose errors are one line, without TensorFlow's nodes."""

  def __next__(self) -> Any:
    try:
      return super().__next__()
    except tf.errors.OpError as e:
      message = tf_errors.message_of(e)
      raise type(e)(e.node_def, e.op, message) from e


def inputs_of(dataset: tf.data.Dataset) -> List[tf.data.Dataset]:
  """Returns the data sets that a data set reads."""
  # Those that `graphs` makes hold theirs in an attribute.
  source = getattr(dataset, '_source', None)
  return [*dataset._inputs(), *([] if source is None else [source])]


def is_stateful(op: str) -> bool:
  """Returns whether TensorFlow calls an operation stateful."""
  definition = op_def_registry.get(op)
  return definition is None or definition.is_stateful


def tensors_of(dataset: tf.data.Dataset) -> Any:
  """Returns the nest of tensors that a data set holds in memory itself."""
  return getattr(dataset, '_tensors', [])


def observer_settings(observer: Any) -> types.SimpleNamespace:
  """Returns `OBSERVER_SETTINGS` of an observer; None for one that it lacks."""
  return types.SimpleNamespace(
      **{
          name: getattr(observer, f'_{name}', None)
          for name in OBSERVER_SETTINGS
      }
  )


class _Reader(reader.Reader):
  """The reader of TFDS, which gives the records as they are."""

  def __init__(self, file_format):
    super().__init__({}, file_format)
    self._parser = self

  def parse_example(self, serialized):
    return {RECORD: serialized}


def reads_files(builder: tfds.core.DatasetBuilder) -> bool:
  """Returns whether TFDS reads the records of a data set from files."""
  read = getattr(type(builder), '_as_dataset', None)
  return read is dataset_builder.FileReaderBuilder._as_dataset


def file_format_of(
    builder: tfds.core.DatasetBuilder,
    read_config: tfds.ReadConfig = tfds.ReadConfig(),
) -> file_adapters.FileFormat:
  """Returns the format of the files of a data set."""
  return (
      read_config.file_format
      or builder.info.file_format
      or file_adapters.DEFAULT_FILE_FORMAT
  )


def read_records(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
) -> Optional[tf.data.Dataset]:
  """Returns dicts with the string of each record, or None if that fails."""
  records = _Reader(file_format_of(builder, read_config)).read(
      instructions=split,
      split_infos=builder.info.splits.values(),
      read_config=read_config,
      shuffle_files=shuffle_files,
      disable_shuffling=builder.info.disable_shuffling,
  )
  if records.element_spec.get(RECORD) != tf.TensorSpec([], tf.string):
    return None
  return records


def cycle_length_of(
    read_config: tfds.ReadConfig, in_order: bool = False
) -> Optional[int]:
  """Returns how many files TFDS reads at a time."""
  cycle_length = read_config.interleave_cycle_length
  if cycle_length != read_config_lib.MISSING:
    return cycle_length
  return 1 if in_order else _CYCLE_LENGTH
