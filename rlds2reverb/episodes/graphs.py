"""Decorators and checks for functions that become graphs."""

import functools
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import private
from rlds2reverb.episodes import steps as steps_lib

# A decorator for functions of the user.
as_user_code = private.as_user_code

# A decorator for functions that a graph uses in several places, and that take
# long to build.
built_once = functools.partial(
    tf.function,
    autograph=False,
    experimental_attributes={'_noinline': True},
)


def asserted(nest: Any, condition: Any, *message: Any) -> Any:
  """Returns a nest of tensors, after a check that a condition holds.

  Args:
    nest: the tensors.
    condition: bool `[]`.
    *message: what the `InvalidArgumentError` says otherwise: strings and
      tensors.
  """
  with tf.control_dependencies([tf.debugging.Assert(condition, list(message))]):
    return tf.nest.map_structure(tf.identity, nest)


# The stages of a pipeline. TensorFlow optimizes the function of each stage of
# `tf.data` whenever an iterator is made, which takes a quarter of a millisecond
# for each operation: longer than a small data set takes to be read. These have
# the attribute of functions of one device, which are run as they are, and a
# branch of a `tf.cond` is only built when it is first taken. They are for the
# functions of this library: those of a user may be of several devices.
_OF_ONE_DEVICE = {'experimental_ints_on_device': True}


def map_elements(
    data: tf.data.Dataset,
    function: Callable[..., Any],
    num_parallel_calls: Optional[int] = None,
) -> tf.data.Dataset:
  """Returns what `data.map` does."""
  traced, spec = _trace(function, data.element_spec)
  if not _are_plain((data.element_spec, spec)):
    return data.map(function, num_parallel_calls)
  arguments = dict(f=traced, preserve_cardinality=True)
  op = tf.raw_ops.MapDataset
  if num_parallel_calls is not None:
    op = tf.raw_ops.ParallelMapDatasetV2
    arguments['num_parallel_calls'] = np.int64(num_parallel_calls)
  return _made(op, data, spec, arguments)


def flat_map(
    data: tf.data.Dataset,
    function: Callable[..., tf.data.Dataset],
    num_parallel_calls: Optional[int] = None,
) -> tf.data.Dataset:
  """Returns what `data.flat_map` does.

  Args:
    data: a data set.
    function: a function of an element, which returns a data set.
    num_parallel_calls: how many of these are read at a time. Each then has one
      element, because they take turns.
  """
  traced, spec = _trace(function, data.element_spec)
  spec = spec.element_spec
  if not _are_plain((data.element_spec, spec)):
    return data.flat_map(function)
  arguments = dict(f=traced)
  if num_parallel_calls is None:
    return _made(tf.raw_ops.FlatMapDataset, data, spec, arguments)
  auto = np.int64(tf.data.AUTOTUNE)
  arguments.update(
      cycle_length=auto,
      block_length=np.int64(1),
      buffer_output_elements=auto,
      prefetch_input_elements=auto,
      num_parallel_calls=np.int64(num_parallel_calls),
      deterministic='true',
  )
  return _made(tf.raw_ops.ParallelInterleaveDatasetV4, data, spec, arguments)


def scan(
    data: tf.data.Dataset,
    initial: Any,
    function: Callable[..., Any],
    state: Any = None,
) -> tf.data.Dataset:
  """Returns what `data.scan` does.

  Args:
    data: a data set.
    initial: the first state, a nest of tensors.
    function: a function of a state and an element, which returns the next state
      and a new element.
    state: the spec of the states; by default that of the first one.
  """
  initial = tf.nest.map_structure(tf.convert_to_tensor, initial)
  if state is None:
    state = tf.nest.map_structure(tf.type_spec_from_value, initial)
  traced, (_, spec) = _trace(function, (state, data.element_spec))
  if not _are_plain((state, data.element_spec, spec)):
    return data.scan(initial, function)
  arguments = dict(
      initial_state=tf.nest.flatten(initial), f=traced, use_default_device=True
  )
  return _made(tf.raw_ops.ScanDataset, data, spec, arguments)


def with_each(numbers: tf.data.Dataset, nest: Any) -> tf.data.Dataset:
  """Returns pairs of each element of a data set and a nest of tensors.

  `map_elements` after a `flat_map` to these makes several elements of one. A
  map in the function of `flat_map` would be built again for each element.
  """
  return tf.data.Dataset.zip(
      (numbers, tf.data.Dataset.from_tensors(nest).repeat())
  )


def with_next(
    data: tf.data.Dataset,
    predicate: Callable[[Any], tf.Tensor],
    take: Callable[[Any, Any], Any],
) -> tf.data.Dataset:
  """Pairs each element with what is taken of it and of the next one.

  Args:
    data: a data set.
    predicate: says which elements count; the others are left out.
    take: a function of an element and the next one. After the last one comes an
      element of zeros.
  """
  nothing = steps_lib.zeros(data.element_spec)
  with_end = data.filter(predicate).concatenate(
      tf.data.Dataset.from_tensors(nothing)
  )
  # `scan` returns the element before, so `nothing` comes out first.
  return scan(
      with_end,
      nothing,
      lambda held, one: (one, (held, take(held, one))),
      data.element_spec,
  ).skip(1)


def _are_plain(spec: Any) -> bool:
  """Returns whether tf.data holds elements as the tensors that they are.

  A ragged or sparse tensor is one variant there.
  """
  return all(
      isinstance(leaf, (tf.TensorSpec, tf.data.DatasetSpec))
      for leaf in tf.nest.flatten(spec)
  )


def _trace(function, element_spec):
  """Returns a function of the tensors of elements, and the spec of results."""
  specs = []

  def flat(*tensors):
    element = tf.nest.pack_sequence_as(
        element_spec, tensors, expand_composites=True
    )
    is_tuple = type(element) is tuple  # As in tf.data, no named tuples.
    result = function(*element) if is_tuple else function(element)
    if not isinstance(result, tf.data.Dataset):
      result = tf.nest.map_structure(
          lambda leaf: leaf
          if tf.is_tensor(leaf) or isinstance(leaf, tf.data.Dataset)
          else tf.convert_to_tensor(leaf),
          result,
      )
    specs[:] = [tf.nest.map_structure(tf.type_spec_from_value, result)]
    return tf.nest.flatten(result, expand_composites=True)

  traced = tf.function(
      flat,
      input_signature=tf.nest.flatten(element_spec, expand_composites=True),
      autograph=False,
      experimental_attributes=_OF_ONE_DEVICE,
  ).get_concrete_function()
  return traced, specs[0]


def _made(op, data, spec, arguments):
  """Returns the data set that an operation makes of another."""
  leaves = tf.nest.flatten(spec, expand_composites=True)
  variant = op(
      input_dataset=tf.data.experimental.to_variant(data),
      other_arguments=arguments['f'].captured_inputs,
      output_types=[leaf.dtype for leaf in leaves],
      output_shapes=[leaf.shape for leaf in leaves],
      **arguments,
  )
  made = tf.data.experimental.from_variant(variant, spec)
  # Sources of a data set, such as a generator, live as long as its Python
  # object.
  made._source, made._function = data, arguments['f']  # pylint: disable=protected-access
  return made
