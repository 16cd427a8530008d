"""The step fields of an RLDS data set, read off its element spec.

An RLDS data set is a `tf.data.Dataset` of episodes. An episode is a dict whose
`steps` are either a nested `tf.data.Dataset` of steps, or *stacked*: one nest
of tensors `[T, ...]`, as TFDS gives with `SkipDecoding` for `steps`. Everything
in this package accepts both.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import rlds
import tensorflow as tf
import tree

_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
_PIECE_LENGTH = 64

UNEQUAL_LENGTHS = "An episode's fields must have a row for every step."


class Lengths(NamedTuple):
  """How many rows the leaves of stacked steps have.

  Attributes:
    paths: the path of each leaf.
    rows: int32 `[leaves]`.
  """

  paths: List[str]
  rows: tf.Tensor


class StepsSpec(NamedTuple):
  """How an RLDS data set holds its steps.

  Attributes:
    step: a dict of the specs of one step's fields, without a time dimension.
    stacked: True where `steps` are tensors `[T, ...]`, False where they are a
      nested `tf.data.Dataset`.
  """

  step: Dict[str, Any]
  stacked: bool


def get_rlds_step_features() -> List[str]:
  """Returns the names of the seven features that an RLDS step must have."""
  return [
      rlds.OBSERVATION,
      rlds.ACTION,
      rlds.REWARD,
      rlds.DISCOUNT,
      rlds.IS_FIRST,
      rlds.IS_LAST,
      rlds.IS_TERMINAL,
  ]


def steps_spec(rlds_data: tf.data.Dataset) -> StepsSpec:
  """Reads the spec of a step off `rlds_data`, whichever form `steps` has.

  Args:
    rlds_data: an RLDS data set.

  Returns:
    The `StepsSpec`.

  Raises:
    ValueError: if the elements are not dicts with `steps`, if a step is not a
      dict or lacks one of the seven features, if one of the seven is ragged or
      sparse, if `discount` or a flag is not one number a step, or if the reward
      is not of numbers.
  """
  episode = rlds_data.element_spec
  if not isinstance(episode, dict) or rlds.STEPS not in episode:
    raise ValueError(
        f'No dataset representing RLDS {rlds.STEPS} exist in the data.'
    )
  steps = episode[rlds.STEPS]
  stacked = not isinstance(steps, tf.data.DatasetSpec)
  step = steps if stacked else steps.element_spec
  found = list(step) if isinstance(step, dict) else []
  features = get_rlds_step_features()
  if not all(feature in found for feature in features):
    # Where nothing looks like RLDS this is TF-Agents' message to the letter.
    message = (
        f'Invalid RLDS step spec. Features expected are {features}, but found'
        f' {found}'
    )
    if any(feature in found for feature in features):
      message += (
          '. map_fields makes RLDS steps of others: its StepMapping renames'
          ' features, and fills in the reward, the discount and the flags that'
          ' are missing.'
      )
    raise ValueError(message)
  if stacked:
    step = without_time(step)
  check_dense({feature: step[feature] for feature in features})
  check_number(rlds.DISCOUNT, step[rlds.DISCOUNT])
  for flag in _FLAGS:
    check_number(flag, step[flag], or_bool=True)
  check_numeric(rlds.REWARD, step[rlds.REWARD])
  return StepsSpec(step, stacked)


def check_dense(step: Any) -> None:
  """Checks that a nest of fields, or of their specs, is of dense tensors.

  Raises:
    ValueError: if a field is ragged or sparse.
  """
  for path, leaf in tree.flatten_with_path(step):
    if _is_composite(leaf):
      raise ValueError(
          f'Step field {field_path(path)} must be a dense tensor, but is'
          f' {_type_name(leaf)} of {leaf.dtype.name} {leaf.shape}. Make it one,'
          ' with its to_tensor() for example, or leave it out of the steps.'
      )


def check_number(feature: str, spec: Any, or_bool: bool = False) -> None:
  """Checks that a field is one number a step, or a bool where that will do.

  Args:
    feature: the name of the field.
    spec: its spec in one step.
    or_bool: whether it may be a bool.

  Raises:
    ValueError: if it is not.
  """
  is_scalar = isinstance(spec, tf.TensorSpec) and (
      spec.shape.is_compatible_with([]) or spec.shape.is_compatible_with([1])
  )
  if not is_scalar or not _is_number(spec.dtype, or_bool):
    raise ValueError(
        f'Step field {feature} must be one number{" or bool" * or_bool} a step,'
        f' of shape () or (1,), but its spec is {spec}.'
    )


def one_a_step(field: str, column: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Casts a field of one number a step, `[T]` or `[T, 1]`, and flattens it.

  Raises:
    ValueError: if it is not; for the dtype bool, a bool will do too.
  """
  spec = _without_time(tf.TensorSpec(column.shape, column.dtype))
  check_number(field, spec, or_bool=dtype == tf.bool)
  column = tf.cast(column, dtype)
  # What is [T] already costs no operation.
  return column if column.shape.rank == 1 else tf.reshape(column, [-1])


def check_numeric(feature: str, nest: Any) -> None:
  """Checks that all leaves of a field, or their specs, are of numbers or bools.

  Raises:
    ValueError: if one is of strings.
  """
  for path, leaf in tree.flatten_with_path(nest):
    if not _is_number(tf.as_dtype(leaf.dtype), or_bool=True):
      raise ValueError(
          f'Step field {field_path((feature,) + path)} must be of numbers, but'
          f' is {tf.as_dtype(leaf.dtype).name} {leaf.shape}.'
      )


def stack_steps(steps: Any) -> Any:
  """Returns the steps of one episode stacked `[T, ...]`, whole.

  Args:
    steps: what an RLDS episode holds under `steps`: a nested `tf.data.Dataset`
      of steps, or steps stacked already, which come back as they are.

  Returns:
    A nest of tensors `[T, ...]`. Of a nested data set every field must have the
    same shape in every step.

  Raises:
    ValueError: if a field of a nested data set is ragged or sparse.
    InvalidArgumentError: if stacked fields differ in length; see `lengths_of`.
  """
  if not isinstance(steps, tf.data.Dataset):
    return with_equal_lengths(steps)
  check_dense(steps.element_spec)
  # In pieces first: TensorFlow makes one operation of a map and the batch that
  # follows, and that one hangs on a batch without bounds.
  whole = steps.batch(_PIECE_LENGTH).rebatch(tf.int64.max)
  # Of no steps there is no batch.
  nothing = tf.data.Dataset.from_tensors(zeros(whole.element_spec))
  return whole.concatenate(nothing).take(1).get_single_element()


def lengths_of(steps: Any) -> Optional[Lengths]:
  """Returns how many rows the leaves of stacked steps have.

  Args:
    steps: a nest of tensors. Ragged and sparse ones are not looked at: where
      they are used is where they are refused.

  Returns:
    The `Lengths`; None where it is known already that all are the same.

  Raises:
    ValueError: if a leaf has no rows; or if it is known while a pipeline is
      built that the lengths differ.
    InvalidArgumentError: if they differ, eagerly.
  """
  names, leaves = [], []
  known = []
  for path, leaf in tree.flatten_with_path(steps):
    if _is_composite(leaf):
      continue
    shape = tf.TensorShape(
        leaf.shape if hasattr(leaf, 'shape') else np.shape(leaf)
    )
    name = field_path(path)
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

  One operation reads the shapes of all leaves of a dtype: this runs for every
  episode, and short episodes are dominated by the number of operations.
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
  """Returns, bool `[]`, whether all lengths are the same."""
  return tf.reduce_min(lengths.rows) == tf.reduce_max(lengths.rows)


def with_equal_lengths(steps: Any) -> Any:
  """Returns stacked steps whose leaves are checked to have as many rows.

  Raises:
    ValueError: see `lengths_of`.
    InvalidArgumentError: if they do not. The message has every length.
  """
  lengths = lengths_of(steps)
  if lengths is None:
    return steps
  found = []
  for path, rows in zip(lengths.paths, tf.unstack(lengths.rows)):
    found += [f'{path}:', rows]
  with tf.control_dependencies([
      tf.debugging.Assert(
          are_equal(lengths), [f'{UNEQUAL_LENGTHS} Found', *found]
      )
  ]):
    return tf.nest.map_structure(tf.identity, steps)


def own_rows(nest: Any, start: Any, stop: Any) -> Any:
  """Returns the rows `[start, stop)`, in memory of their own.

  TensorFlow 2.15 lends the arrays of a `from_generator` data set to its
  operations. Of a slice of one it does not know that it is lent: in
  `map(lambda a: a[:-1] * 2.0)` the product is written into the array, and the
  next epoch reads it. A gather copies; strings are never lent.

  Args:
    nest: a nest of tensors `[N, ...]`.
    start: an integer `[]` in `[0, N]`.
    stop: an integer `[]` in `[0, N]`, of the same dtype.

  Returns:
    The nest, every leaf `[stop - start, ...]`.
  """
  index = tf.range(start, stop)
  return tf.nest.map_structure(
      lambda leaf: leaf[start:stop]
      if leaf.dtype == tf.string
      else tf.gather(leaf, index),
      nest,
  )


def stack_episodes(rlds_data: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes with their `steps` stacked; see `stack_steps`."""
  return rlds_data.map(
      lambda episode: {
          **episode,
          rlds.STEPS: stack_steps(episode[rlds.STEPS]),
      },
      num_parallel_calls=tf.data.AUTOTUNE,
  )


def has_one_shape(spec: Any) -> bool:
  """Returns whether a field has the same dense shape in every step."""
  return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()


def zeros(spec: Any) -> Any:
  """Returns zeros of `spec`; a dimension that it leaves open is 0."""

  def leaf_zeros(leaf):
    shape = [None] if leaf.shape.rank is None else leaf.shape.as_list()
    return tf.zeros([dim or 0 for dim in shape], leaf.dtype)

  return tf.nest.map_structure(leaf_zeros, spec)


def field_path(path: Sequence[Any]) -> str:
  """Names a nested field, for example `observation/camera/0`."""
  return '/'.join(str(key) for key in path)


def float_fields(step: Any) -> List[Tuple[str, Any]]:
  """Returns the leaves of `step` that can hold a NaN, each with its path."""
  return [
      (field_path(path), leaf)
      for path, leaf in tree.flatten_with_path(step)
      if leaf.dtype.is_floating
  ]


def without_time(stacked_spec: Any) -> Any:
  """Returns the specs of one step, of those of stacked steps."""
  return tf.nest.map_structure(_without_time, stacked_spec)


def _without_time(spec):
  # A ragged or sparse field is an error only where it is used.
  if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
    return spec
  if spec.shape.rank == 0:
    raise ValueError(
        'Stacked steps must have a leading time dimension, but a step field'
        f' has the spec {spec}.'
    )
  return tf.TensorSpec(spec.shape[1:], spec.dtype)


def _is_number(dtype, or_bool) -> bool:
  return dtype.is_floating or dtype.is_integer or (or_bool and dtype.is_bool)


def _is_composite(leaf) -> bool:
  """Returns whether a leaf, or the spec of one, is ragged or sparse."""
  if isinstance(leaf, tf.TypeSpec):
    return not isinstance(leaf, tf.TensorSpec)
  return isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))


def _type_name(leaf) -> str:
  return type(leaf).__name__.replace('Spec', '')
