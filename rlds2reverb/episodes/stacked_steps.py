"""Stacks steps, and checks the lengths of their fields."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_PIECE_LENGTH = 64

UNEQUAL_LENGTHS = "An episode's fields must have a row for every step."


class Lengths(NamedTuple):
  """The number of rows of each leaf of stacked steps.

  Attributes:
    paths: the path of each leaf.
    rows: int32 `[leaves]`: the number of rows of each leaf.
  """

  paths: List[str]
  rows: tf.Tensor


def stack_steps(steps: Any) -> Any:
  """Returns all steps of one episode, stacked `[T, ...]`.

  Args:
    steps: the `steps` of an RLDS episode: a nested `tf.data.Dataset` of steps,
      whose fields have the same shape in every step; or steps that are stacked
      already, which are returned as they are.

  Returns:
    A nest of tensors `[T, ...]`.

  Raises:
    ValueError: if a field of a nested data set is ragged or sparse.
    InvalidArgumentError: if stacked fields differ in length; see `lengths_of`.
  """
  if not isinstance(steps, tf.data.Dataset):
    return with_equal_lengths(steps)
  steps_lib.check_dense(steps.element_spec)
  # The steps are batched in pieces first. TensorFlow fuses a map with the batch
  # that follows, and the fused operation hangs if the batch has no bound.
  whole = steps.batch(_PIECE_LENGTH).rebatch(tf.int64.max)
  # A data set without steps has no batch, so an empty one stands in for it.
  nothing = tf.data.Dataset.from_tensors(steps_lib.zeros(whole.element_spec))
  return whole.concatenate(nothing).take(1).get_single_element()


def stacked_fields(steps: Any, fields: Iterable[str]) -> Dict[str, Any]:
  """Returns some fields of all steps of one episode, stacked `[T, ...]`.

  Other fields of nested steps are not read. The lengths of steps that are
  stacked already are not checked.
  """

  def select(step):
    return {field: step[field] for field in fields}

  if isinstance(steps, tf.data.Dataset):
    return stack_steps(steps.map(select))
  return select(steps)


def lengths_of(steps: Any) -> Optional[Lengths]:
  """Returns the number of rows of each leaf of stacked steps.

  Args:
    steps: a nest of tensors. Ragged and sparse ones are ignored here, and
      refused where they are used.

  Returns:
    The `Lengths`; or None if all are known to be the same.

  Raises:
    ValueError: if a leaf is a scalar, or if the lengths are known to differ
      while a pipeline is built.
    InvalidArgumentError: if the lengths differ, in eager mode.
  """
  names, leaves = [], []
  known = []
  for path, leaf in tree.flatten_with_path(steps):
    if steps_lib.is_composite(leaf):
      continue
    shape = tf.TensorShape(
        leaf.shape if hasattr(leaf, 'shape') else np.shape(leaf)
    )
    name = steps_lib.field_path(path)
    if shape.rank == 0:
      raise ValueError(
          'Stacked steps must have a leading time dimension, but step field'
          f' {name} is one value.'
      )
    names.append(name)
    leaves.append(leaf)
    if shape.rank and shape[0] is not None:
      known.append((name, shape[0]))
  if len(set(size for _, size in known)) > 1:
    message = f'{UNEQUAL_LENGTHS} Found ' + ', '.join(
        f'{name}: {size}' for name, size in known
    )
    if tf.executing_eagerly():
      raise tf.errors.InvalidArgumentError(None, None, message)
    raise ValueError(message)
  if len(names) < 2 or len(known) == len(names):
    return None
  return Lengths(names, _num_rows(leaves))


def _num_rows(leaves: Sequence[Any]) -> tf.Tensor:
  """Returns the number of rows of each leaf, int32 `[leaves]`.

  The shapes of all leaves of one dtype are read by one operation. This runs for
  every episode, and a short one takes as long as its operations.
  """
  leaves = [tf.convert_to_tensor(leaf) for leaf in leaves]
  shapes = [None] * len(leaves)
  for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
    places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
    for i, shape in zip(places, tf.shape_n([leaves[i] for i in places])):
      shapes[i] = shape if leaves[i].shape.rank else shape[:1]
  firsts = np.cumsum([0, *(leaf.shape.rank or 1 for leaf in leaves[:-1])])
  return tf.gather(tf.concat(shapes, 0), firsts.astype(np.int32))


def are_equal(lengths: Lengths) -> tf.Tensor:
  """Returns whether all lengths are the same, bool `[]`."""
  return tf.reduce_min(lengths.rows) == tf.reduce_max(lengths.rows)


def with_equal_lengths(steps: Any) -> Any:
  """Returns stacked steps, after a check that their lengths are the same.

  Raises:
    ValueError: as `lengths_of` does.
    InvalidArgumentError: if the lengths differ. The message lists all of them.
  """
  lengths = lengths_of(steps)
  if lengths is None:
    return steps
  found = []
  for path, rows in zip(lengths.paths, tf.unstack(lengths.rows)):
    found += [f'{path}:', rows]
  return graphs.asserted(
      steps, are_equal(lengths), f'{UNEQUAL_LENGTHS} Found', *found
  )


def own_rows(nest: Any, start: Any, stop: Any) -> Any:
  """Returns a copy of the rows `[start, stop)`.

  A slice would share the memory of the tensor, which TensorFlow 2.15 does not
  protect if the tensor is an array of a `from_generator` data set: in
  `map(lambda a: a[:-1] * 2.0)`, the product is written into the array of the
  generator, and the next epoch reads it. So this function gathers the rows,
  which copies them. Strings do not share memory and are sliced.

  Args:
    nest: a nest of tensors `[N, ...]`; see `steps.map_dense` about others.
    start: an integer `[]` in `[0, N]`.
    stop: an integer `[]` in `[0, N]`, of the same dtype.

  Returns:
    The nest, every leaf `[stop - start, ...]`.
  """
  index = tf.range(start, stop)
  return steps_lib.map_dense(
      lambda leaf: leaf[start:stop]
      if leaf.dtype == tf.string
      else tf.gather(leaf, index),
      nest,
  )


def rows_of(nest: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
  """Returns the rows `[start, stop)`, without a copy; see `own_rows`."""
  # `leaf[start:stop]` would add the same operations for every leaf.
  begin, end = tf.reshape(start, [1]), tf.reshape(stop, [1])
  strides = tf.ones([1], end.dtype)
  return tf.nest.map_structure(
      lambda leaf: tf.strided_slice(leaf, begin, end, strides), nest
  )


def stack_episodes(rlds_data: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes with their `steps` stacked; see `stack_steps`."""

  def stack(episode):
    return {**episode, rlds.STEPS: stack_steps(episode[rlds.STEPS])}

  return rlds_data.map(stack, num_parallel_calls=tf.data.AUTOTUNE)
