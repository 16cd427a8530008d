"""Steps of RLDS episodes: their specs, checks and stacking.

An RLDS data set is a `tf.data.Dataset` of episodes, which are dicts with the
key `steps`. The steps are either *nested*, a `tf.data.Dataset` of steps, or
*stacked*, one nest of tensors `[T, ...]`. TFDS reads stacked steps if it is
given `SkipDecoding` for `steps`. The library accepts both.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import tf_private

UNEQUAL_LENGTHS = 'All fields of an episode must have the same number of steps.'

_STACK_BATCH_SIZE = 64
_MAX_BLOCK_LENGTH = 4096
_UNKNOWN_DIM = 256  # The size assumed for an unknown dimension: an image side.
_STRING_BYTES = 4096  # The size assumed for a string: a small encoded image.


class StepsSpec(NamedTuple):
  """The spec of the steps of an RLDS data set.

  Attributes:
    step: a dict of the specs of one step's fields, without a time dimension.
    stacked: whether `steps` are tensors `[T, ...]`, not a `tf.data.Dataset`.
  """

  step: dict[str, Any]
  stacked: bool


def get_rlds_step_features() -> list[str]:
  """Returns the names of the seven features that an RLDS step must have."""
  fields = [rlds.OBSERVATION, rlds.ACTION, rlds.REWARD, rlds.DISCOUNT]
  return [*fields, *rlds.FLAGS]


def check_has_steps(name: str, episode: Any, advice: str = '') -> None:
  """Raises a ValueError unless an episode, or its spec, is a dict with steps.

  Args:
    name: the subject of the error message.
    episode: a nest of tensors or of their specs.
    advice: the last sentence of the error message.
  """
  if isinstance(episode, Mapping) and rlds.STEPS in episode:
    return
  description = episode
  if isinstance(episode, Mapping):
    description = list(episode)
  elif hasattr(episode, '_fields'):
    description = f'a {type(episode).__name__} of {list(episode._fields)}'
  raise ValueError(
      f'{name} must be a dict with {rlds.STEPS!r}, but is'
      f' {description}.{advice}'
  )


def get_steps_spec(episode: Any) -> StepsSpec:
  """Returns the spec of the steps, given the spec of an episode.

  Args:
    episode: the element spec of an RLDS data set.

  Raises:
    ValueError: if the elements are not dicts with `steps`, if a step is not a
      dict or lacks one of the seven features, if one of the seven is ragged or
      sparse, if `discount` or a flag is not one number for each step, or if the
      reward is not numeric.
  """
  if not isinstance(episode, dict) or rlds.STEPS not in episode:
    raise ValueError(
        f'No dataset representing RLDS {rlds.STEPS} exist in the data.'
    )
  steps = episode[rlds.STEPS]
  stacked = not isinstance(steps, tf.data.DatasetSpec)
  step = steps if stacked else steps.element_spec
  fields = list(step) if isinstance(step, dict) else []
  features = get_rlds_step_features()
  if not all(feature in fields for feature in features):
    # If no feature exists, the message is identical to the one of TF-Agents.
    message = (
        f'Invalid RLDS step spec. Features expected are {features}, but found'
        f' {fields}'
    )
    if any(feature in fields for feature in features):
      message += (
          '. map_fields makes RLDS steps of others: its StepMapping renames'
          ' features, and fills in the reward, the discount and the flags that'
          ' are missing.'
      )
    raise ValueError(message)
  if stacked:
    step = unstack_spec(step)
  check_dense({feature: step[feature] for feature in features})
  check_scalar(rlds.DISCOUNT, step[rlds.DISCOUNT])
  for flag in rlds.FLAGS:
    check_scalar(flag, step[flag], or_bool=True)
  check_numeric(rlds.REWARD, step[rlds.REWARD])
  return StepsSpec(step, stacked)


def check_dense(step: Any) -> None:
  """Raises a ValueError if a field, or its spec, is ragged or sparse."""
  for path, leaf in tree.flatten_with_path(step):
    if rows_lib.is_composite(leaf):
      raise ValueError(
          f'Step field {paths.name_of(path)} must be a dense tensor, but is'
          f' {type(leaf).__name__.replace("Spec", "")} of {leaf.dtype.name}'
          f' {leaf.shape}. Convert it, for example with to_tensor(), or remove'
          ' it from the steps.'
      )


def check_scalar(field: str, spec: Any, or_bool: bool = False) -> None:
  """Raises a ValueError unless a field is one number for each step.

  Args:
    field: the name of the field.
    spec: the spec of the field in one step.
    or_bool: whether the field may also be a bool.
  """
  is_scalar = isinstance(spec, tf.TensorSpec) and (
      spec.shape.is_compatible_with([]) or spec.shape.is_compatible_with([1])
  )
  if not is_scalar or not _is_number(spec.dtype, or_bool):
    kind = 'number or bool' if or_bool else 'number'
    raise ValueError(
        f'Step field {field} must be one {kind} per step, of shape () or (1,),'
        f' but its spec is {spec}.'
    )


def check_numeric(field: str, nest: Any) -> None:
  """Raises a ValueError if a leaf of a field, or its spec, is a string."""
  for path, leaf in tree.flatten_with_path(nest):
    if not _is_number(tf.as_dtype(leaf.dtype), or_bool=True):
      raise ValueError(
          f'Step field {paths.name_of((field,) + path)} must be of numbers, but'
          f' is {tf.as_dtype(leaf.dtype).name} {leaf.shape}.'
      )


def _is_number(dtype, or_bool) -> bool:
  return dtype.is_floating or dtype.is_integer or (or_bool and dtype.is_bool)


def to_column(field: str, column: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Casts a field of one number for each step to a column `[T]`.

  Args:
    field: the name of the field.
    column: `[T]` or `[T, 1]`. May be bool if `dtype` is bool.
    dtype: the dtype to cast to.

  Returns:
    The column, `[T]`.

  Raises:
    ValueError: if the field is not one number for each step.
    InvalidArgumentError: if that becomes known only at run time.
  """
  spec = _unstack_leaf_spec(tf.TensorSpec(column.shape, column.dtype))
  check_scalar(field, spec, or_bool=dtype == tf.bool)
  column = tf.cast(column, dtype)
  if column.shape.rank == 1:
    return column
  if column.shape.rank == 2 and column.shape[1] == 1:
    return tf.reshape(column, [-1])
  shape = tf.shape(column)
  return tf.reshape(
      errors.assert_true(
          column,
          tf.equal(tf.size(column), shape[0]),
          f'Step field {field} must be one number for each step, of shape () or'
          ' (1,). Are the episodes batched? Its shape is',
          shape,
      ),
      [-1],
  )


def unstack_spec(stacked_spec: Any) -> Any:
  """Returns the specs of one step, given the specs of stacked steps."""
  return tf.nest.map_structure(_unstack_leaf_spec, stacked_spec)


def _unstack_leaf_spec(spec):
  # Ragged and sparse fields are refused where they are used.
  if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
    return spec
  if spec.shape.rank == 0:
    raise ValueError(
        'Stacked steps must have a leading time dimension, but a step field'
        f' has the spec {spec}.'
    )
  return tf.TensorSpec(spec.shape[1:], spec.dtype)


def has_static_shape(spec: Any) -> bool:
  """Returns whether a field has the same dense shape in every step."""
  return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()


def select_fields(
    steps: dict[str, Any], fields: Iterable[str]
) -> dict[str, Any]:
  """Returns the named fields of steps."""
  return {field: steps[field] for field in fields}


def find_float_fields(step: Any) -> list[tuple[str, Any]]:
  """Returns name and leaf of every floating-point leaf, which may hold NaN."""
  return [
      (paths.name_of(path), leaf)
      for path, leaf in tree.flatten_with_path(step)
      if leaf.dtype.is_floating
  ]


def zeros(spec: Any) -> Any:
  """Returns zeros of `spec`. Unknown dimensions become 0."""

  def leaf_zeros(leaf):
    shape = [None] if leaf.shape.rank is None else leaf.shape.as_list()
    return tf.zeros([dim or 0 for dim in shape], leaf.dtype)

  return tf.nest.map_structure(leaf_zeros, spec)


def estimate_step_bytes(step_spec: Any) -> int:
  """Returns the approximate size of a step in bytes, at least 1."""
  total = 0
  for spec in tf.nest.flatten(step_spec):
    shape = [None] if spec.shape.rank is None else spec.shape.as_list()
    size = _STRING_BYTES if spec.dtype == tf.string else spec.dtype.size
    for dim in shape:
      size *= _UNKNOWN_DIM if dim is None else dim
    total += size
  return max(total, 1)


def default_block_length(step_spec: Any, num_bytes: int = 2 << 20) -> int:
  """Returns the number of steps of a block of about `num_bytes`."""
  block_length = num_bytes // estimate_step_bytes(step_spec)
  return min(max(block_length, 1), _MAX_BLOCK_LENGTH)


def stack_steps(steps: Any) -> Any:
  """Returns all steps of one episode, stacked `[T, ...]`.

  Args:
    steps: the `steps` of an RLDS episode: a `tf.data.Dataset` of steps, whose
      fields have the same shape in every step; or stacked steps, which are
      returned unchanged.

  Returns:
    A nest of tensors `[T, ...]`.

  Raises:
    ValueError: if a field of a nested data set is ragged or sparse.
    InvalidArgumentError: if stacked fields differ in length; see
      `get_lengths`.
  """
  if not isinstance(steps, tf.data.Dataset):
    return check_equal_lengths(steps)
  check_dense(steps.element_spec)
  # Batching in two stages: TensorFlow fuses a map with the batch that follows,
  # and the fused operation hangs if the batch size is unbounded.
  batches = steps.batch(_STACK_BATCH_SIZE).rebatch(tf.int64.max)
  # A data set without steps has no batch; then the empty batch is taken.
  empty = tf.data.Dataset.from_tensors(zeros(batches.element_spec))
  return batches.concatenate(empty).take(1).get_single_element()


def stack_fields(steps: Any, fields: Iterable[str]) -> dict[str, Any]:
  """Returns some fields of all steps of one episode, stacked `[T, ...]`.

  Other fields of nested steps are not read. The lengths of stacked steps are
  not checked.
  """
  if isinstance(steps, tf.data.Dataset):
    return stack_steps(
        steps.map(functools.partial(select_fields, fields=fields))
    )
  return select_fields(steps, fields)


def stack_episodes(rlds_data: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes with stacked `steps`; see `stack_steps`."""

  @tf_private.as_library_code
  def stack(episode):
    return {**episode, rlds.STEPS: stack_steps(episode[rlds.STEPS])}

  return rlds_data.map(stack, num_parallel_calls=tf.data.AUTOTUNE)


class FieldLengths(NamedTuple):
  """The number of rows of each leaf of stacked steps.

  Attributes:
    names: the name of each leaf.
    lengths: int32 `[leaves]`: the number of rows of each leaf.
  """

  names: list[str]
  lengths: tf.Tensor

  def are_equal(self) -> tf.Tensor:
    """Returns whether all lengths are equal, bool `[]`."""
    return tf.reduce_min(self.lengths) == tf.reduce_max(self.lengths)


def get_lengths(steps: Any) -> FieldLengths | None:
  """Returns the number of rows of each leaf of stacked steps.

  Args:
    steps: a nest of tensors. Ragged and sparse ones are ignored here, and
      refused where they are used.

  Returns:
    The `FieldLengths`; None if all lengths are statically known to be equal.

  Raises:
    ValueError: if a leaf is a scalar, or if static lengths differ while a
      pipeline is built.
    InvalidArgumentError: if the lengths differ, in eager mode.
  """
  names, leaves, static_lengths = [], [], []
  for path, leaf in tree.flatten_with_path(steps):
    if rows_lib.is_composite(leaf):
      continue
    shape = tf.TensorShape(
        leaf.shape if hasattr(leaf, 'shape') else np.shape(leaf)
    )
    name = paths.name_of(path)
    if shape.rank == 0:
      raise ValueError(
          'Stacked steps must have a leading time dimension, but step field'
          f' {name} is one value.'
      )
    names.append(name)
    leaves.append(leaf)
    if shape.rank and shape[0] is not None:
      static_lengths.append((name, shape[0]))
  if len({length for _, length in static_lengths}) > 1:
    message = f'{UNEQUAL_LENGTHS} Found ' + ', '.join(
        f'{name}: {length}' for name, length in static_lengths
    )
    if tf.executing_eagerly():
      raise tf.errors.InvalidArgumentError(None, None, message)
    raise ValueError(message)
  if len(names) < 2 or len(static_lengths) == len(names):
    return None
  return FieldLengths(names, _num_rows_of_leaves(leaves))


def _num_rows_of_leaves(leaves: Sequence[Any]) -> tf.Tensor:
  """Returns the number of rows of each leaf, int32 `[leaves]`.

  This runs for every episode, so the shapes of all leaves of one dtype are read
  by one operation.
  """
  leaves = [tf.convert_to_tensor(leaf) for leaf in leaves]
  shapes = [None] * len(leaves)
  for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
    indices = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
    for i, shape in zip(indices, tf.shape_n([leaves[i] for i in indices])):
      shapes[i] = shape if leaves[i].shape.rank else shape[:1]
  offsets = np.cumsum([0, *(leaf.shape.rank or 1 for leaf in leaves[:-1])])
  return tf.gather(tf.concat(shapes, 0), offsets.astype(np.int32))


def check_equal_lengths(steps: Any) -> Any:
  """Returns stacked steps after checking that their lengths are equal.

  Raises:
    ValueError: as `get_lengths` does.
    InvalidArgumentError: if the lengths differ. The message lists all of them.
  """
  lengths = get_lengths(steps)
  if lengths is None:
    return steps
  message = []
  for name, length in zip(lengths.names, tf.unstack(lengths.lengths)):
    message += [f'{name}:', length]
  return errors.assert_true(
      steps, lengths.are_equal(), f'{UNEQUAL_LENGTHS} Found', *message
  )
