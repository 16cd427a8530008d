"""All uses of private names of TensorFlow, TFDS and TF-Agents, in one module.

They were checked with TensorFlow 2.15.1, TFDS 4.9.10 and TF-Agents 0.19.0;
`tf_private_test` checks that they exist. If another version of TFDS works
differently, its public functions, which are slower, are used instead.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import sys
import threading
import types
from typing import Any, cast, TypeVar

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import nested_structure_coder
import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_builder
from tensorflow_datasets.core import file_adapters
from tensorflow_datasets.core import reader
from tensorflow_datasets.core.utils import read_config as read_config_lib

from rlds2reverb.episodes import errors

_Function = TypeVar('_Function', bound=Callable[..., Any])


# AutoGraph rewrites `if` and `for` statements that depend on tensors, in a
# function and in all functions it calls. This library has none, and rewriting
# it would take one to four seconds for the first function of `windows` in a
# `Dataset.map`, and change its errors. So AutoGraph calls the functions of this
# library unchanged. `mark_package` marks the functions of modules. Two
# decorators are for functions in functions, which are passed to methods of a
# data set, to `tf.map_fn` or to the user:
# - `do_not_convert`, for the outer function, if it calls no code of the user.
# - `as_library_code`, for the inner function, or for a method. It is a cache of
#   size 0. AutoGraph does not rewrite caches, but it rewrites functions that
#   they call by `as_user_code`, unless the user disabled it.
do_not_convert: Callable[[_Function], _Function] = (
    tf.autograph.experimental.do_not_convert
)
as_library_code: Callable[[_Function], _Function] = cast(
    Any, functools.lru_cache(maxsize=0)
)
# Packages that the others use. They cannot mark themselves, because importing
# them must not import TensorFlow.
_SHARED_PACKAGES = (
    'rlds2reverb.arrays.',
    'rlds2reverb.episodes.',
    'rlds2reverb.store.',
)


def mark_package(name: str) -> None:
  """Makes AutoGraph call functions and methods unchanged.

  Args:
    name: the name of a package. The functions of all its imported modules are
      marked, and the functions of `_SHARED_PACKAGES`.
  """
  prefixes = f'{name}.', *_SHARED_PACKAGES
  for module_name, module in list(sys.modules.items()):
    if not f'{module_name}.'.startswith(prefixes):
      continue
    for value in list(vars(module).values()):
      is_class = isinstance(value, type) and value.__module__ == module_name
      for member in vars(value).values() if is_class else [value]:
        if isinstance(member, (classmethod, staticmethod)):
          member = member.__func__
        is_function = isinstance(member, types.FunctionType)
        if is_function and member.__module__ == module_name:
          autograph.autograph_artifact(member)


def autograph_enabled() -> contextlib.AbstractContextManager[None]:
  """Returns a context in which AutoGraph converts functions, as by default."""
  return ag_ctx.ControlStatusCtx(ag_ctx.Status.UNSPECIFIED)


def autograph_cause(error: Exception) -> str:
  """Returns the message of an error in code that AutoGraph converted.

  Returns:
    The message without the code's location, or '' for another error.
  """
  metadata = getattr(error, 'ag_error_metadata', None)
  return '' if metadata is None else metadata.cause_message


# `iter(dataset)` returns this type. AutoGraph accepts no other as an iterator.
OwnedIterator: Any = iterator_ops.OwnedIterator

# `EagerTensor(array, device, None)` is `tf.convert_to_tensor(array)` on a
# device, in a fifth of the time.
EagerTensor: Any = ops.EagerTensor

# These encode a nest of specs as a proto, and decode it.
encode_structure = nested_structure_coder.encode_structure
decode_structure = nested_structure_coder.decode_proto

RECORD = 'record'
TFRECORD = file_adapters.FileFormat.TFRECORD
ARRAY_RECORD = file_adapters.FileFormat.ARRAY_RECORD
_ADAPTERS_LOCK = threading.RLock()
# The number of files that TFDS reads in parallel.
_CYCLE_LENGTH = 16

# The settings of TF-Agents' Reverb observers. Each observer has some of them.
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

# Errors of files: damaged, missing, or with fewer episodes than expected.
FILE_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
)


@contextlib.contextmanager
def temporary_default_graph() -> Iterator[None]:
  """Runs the body with a new default graph, which is freed afterwards.

  `Dataset.scan` and `reduce` add their functions to the default graph, which
  outside of functions lives as long as the process.
  """
  with tf.Graph().as_default(), context.eager_mode():
    yield


def as_user_code(function: Callable[..., Any]) -> Callable[..., Any]:
  """Decorates a user function, so that AutoGraph rewrites it in graphs."""

  @as_library_code
  def call(*args, **kwargs):
    if tf.executing_eagerly():
      return function(*args, **kwargs)
    rewritten = autograph.tf_convert(function, ag_ctx.control_status_ctx())
    return rewritten(*args, **kwargs)

  return call


class WrappedDataset(tf.data.Dataset):
  """Base class of data sets that wrap another data set and add methods.

  The wrapped data set is made lazily from a source, because making it takes
  longer than converting a small data set.
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
      element_spec: the spec of the elements; by default the spec of `source`.
      make: makes the wrapped data set of `source`; by default it is `source`.
    """
    self._input, self._make = source, make
    self._spec = source.element_spec if element_spec is None else element_spec
    self._wrapped: tf.data.Dataset | None = None
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
  """An iterator whose errors are one line, without TensorFlow's nodes.

  The error of a damaged file names the file.
  """

  def __next__(self) -> Any:
    try:
      return super().__next__()
    except tf.errors.OpError as e:
      error_class, message = errors.restore(e)
      if issubclass(error_class, FILE_ERRORS):
        message = find_damage(self._dataset) or message
      raise error_class(e.node_def, e.op, message) from e


def with_damage_finder(
    dataset: tf.data.Dataset, find: Callable[[], str]
) -> tf.data.Dataset:
  """Attaches a function that finds the damaged file after an error.

  Args:
    dataset: a data set that reads files.
    find: returns a sentence about the damaged file; or an empty string.
  """
  dataset._find_damage = find
  return dataset


def find_damage(dataset: tf.data.Dataset) -> str:
  """Returns a sentence about a damaged file that a data set reads, or ''."""
  pending, visited = [dataset], set()
  while pending:
    upstream = pending.pop()
    if id(upstream) in visited:
      continue
    visited.add(id(upstream))
    find = getattr(upstream, '_find_damage', None)
    damage = find and find()
    if damage:
      return damage
    sources = tf.nest.flatten(getattr(upstream, '_sources', ()))
    pending += inputs_of(upstream)
    pending += [leaf for leaf in sources if isinstance(leaf, tf.data.Dataset)]
  return ''


@contextlib.contextmanager
def name_damaged_files(dataset: tf.data.Dataset) -> Iterator[None]:
  """Makes errors of a body that reads a data set name the damaged file."""
  try:
    yield
  except tf.errors.OpError as e:
    error_class, _ = errors.restore(e)
    is_of_file = issubclass(error_class, FILE_ERRORS)
    damage = find_damage(dataset) if is_of_file else ''
    if not damage:
      raise
    raise error_class(e.node_def, e.op, damage) from e


def inputs_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
  """Returns the data sets that a data set reads."""
  # A data set of `pipelines` has its input in an attribute.
  source = getattr(dataset, '_source', None)
  return [*dataset._inputs(), *([] if source is None else [source])]


def is_stateful(op: str) -> bool:
  """Returns whether TensorFlow declares an operation stateful."""
  definition = op_def_registry.get(op)
  return definition is None or definition.is_stateful


def tensors_of(dataset: tf.data.Dataset) -> Any:
  """Returns the nest of tensors that a data set itself holds in memory."""
  return getattr(dataset, '_tensors', [])


def observer_settings(observer: Any) -> types.SimpleNamespace:
  """Returns the `OBSERVER_SETTINGS` of an observer; None for missing ones."""
  return types.SimpleNamespace(
      **{
          name: getattr(observer, f'_{name}', None)
          for name in OBSERVER_SETTINGS
      }
  )


class _Reader(reader.Reader):
  """The reader of TFDS, without parsing the records."""

  def __init__(self, file_format):
    super().__init__({}, file_format)
    self._parser = self

  def parse_example(self, serialized):
    return {RECORD: serialized}


@contextlib.contextmanager
def read_tfrecords_by(read: Callable[..., tf.data.Dataset]) -> Iterator[None]:
  """Makes TFDS read TFRecord files with another function in the body.

  Args:
    read: returns the records of a file, given its path and `buffer_size`.
  """
  adapters = file_adapters.ADAPTER_FOR_FORMAT
  original = adapters[TFRECORD]

  class Adapter(original):  # type: ignore[misc, valid-type]

    @classmethod
    def make_tf_data(cls, filename, buffer_size=None):
      return read(filename, buffer_size or cls.BUFFER_SIZE)

  with _ADAPTERS_LOCK:
    adapters[TFRECORD] = Adapter
    try:
      yield
    finally:
      adapters[TFRECORD] = original


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
    read_file: Callable[..., tf.data.Dataset],
) -> tf.data.Dataset | None:
  """Returns dicts with the string of each record, or None if that fails."""
  with read_tfrecords_by(read_file):
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
) -> int | None:
  """Returns how many files TFDS reads in parallel.

  Args:
    read_config: the options of TFDS.
    in_order: whether files are read one after the other by default.
  """
  cycle_length = read_config.interleave_cycle_length
  if cycle_length != read_config_lib.MISSING:
    return cycle_length
  return 1 if in_order else _CYCLE_LENGTH


def id_prefixes_of(instructions: Sequence[Any]) -> list[str]:
  """Returns the prefix of the `tfds_id`s of the records of each file."""
  prefixes = reader._get_tfds_id_prefixes(instructions)
  return [prefixes[part.filename] for part in instructions]
