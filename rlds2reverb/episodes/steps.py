"""Checks the specs of the steps of RLDS episodes.

An RLDS data set is a `tf.data.Dataset` of episodes, which are dicts with the
key `steps`. There are two forms of `steps`: a nested `tf.data.Dataset` of
steps; or *stacked* steps, which are one nest of tensors `[T, ...]`. TFDS reads
stacked steps if it is given `SkipDecoding` for `steps`. Everything in this
package accepts both forms.
"""

from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

import tensorflow as tf
import tree

from rlds2reverb.episodes import rlds

_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)


class StepsSpec(NamedTuple):
  """The spec of the steps of an RLDS data set, and their form.

  Attributes:
    step: a dict of the specs of one step's fields, without a time dimension.
    stacked: True if `steps` are tensors `[T, ...]`, False if they are a nested
      `tf.data.Dataset`.
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


def check_has_steps(name: str, episode: Any, advice: str = '') -> None:
  """Checks that something is an RLDS episode, or the spec of one.

  Args:
    name: the subject of the check, the first words of the error.
    episode: a nest of tensors or of their specs.
    advice: the last words of the error.

  Raises:
    ValueError: if it is anything but a dict with steps.
  """
  if isinstance(episode, Mapping) and rlds.STEPS in episode:
    return
  found = episode
  if isinstance(episode, Mapping):
    found = list(episode)
  elif hasattr(episode, '_fields'):
    found = f'a {type(episode).__name__} of {list(episode._fields)}'
  raise ValueError(
      f'{name} must be a dict with {rlds.STEPS!r}, but is {found}.{advice}'
  )


def steps_spec(episode: Any) -> StepsSpec:
  """Reads the spec of a step from the spec of an episode.

  Args:
    episode: the element spec of an RLDS data set.

  Returns:
    The `StepsSpec`.

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
  found = list(step) if isinstance(step, dict) else []
  features = get_rlds_step_features()
  if not all(feature in found for feature in features):
    # If nothing looks like RLDS, the message is that of TF-Agents, to the
    # letter.
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
  """Checks that all fields, or specs of fields, are dense tensors.

  Raises:
    ValueError: if a field is ragged or sparse.
  """
  for path, leaf in tree.flatten_with_path(step):
    if is_composite(leaf):
      raise ValueError(
          f'Step field {field_path(path)} must be a dense tensor, but is'
          f' {type(leaf).__name__.replace("Spec", "")} of {leaf.dtype.name}'
          f' {leaf.shape}. Make it one, with its to_tensor() for example, or'
          ' leave it out of the steps.'
      )


def check_number(feature: str, spec: Any, or_bool: bool = False) -> None:
  """Checks that a field is one number for each step.

  Args:
    feature: the name of the field.
    spec: the spec of the field in one step.
    or_bool: whether the field may also be a bool.

  Raises:
    ValueError: if it is not one number.
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
  """Casts a field of one number for each step to a column `[T]`.

  Args:
    field: the name of the field.
    column: `[T]` or `[T, 1]`; it may be bool if `dtype` is.
    dtype: the dtype to cast to.

  Returns:
    The column, `[T]`.

  Raises:
    ValueError: if the field is not one number for each step.
    InvalidArgumentError: if that is only known later.
  """
  spec = _without_time(tf.TensorSpec(column.shape, column.dtype))
  check_number(field, spec, or_bool=dtype == tf.bool)
  column = tf.cast(column, dtype)
  if column.shape.rank == 1:
    return column  # A column `[T]` needs no check.
  checks = []
  if column.shape.rank != 2 or column.shape[1] != 1:
    shape = tf.shape(column)
    checks.append(
        tf.debugging.Assert(
            tf.equal(tf.size(column), shape[0]),
            [
                f'Step field {field} must be one number for each step, of shape'
                ' () or (1,). Are the episodes batched? Its shape is',
                shape,
            ],
        )
    )
  with tf.control_dependencies(checks):
    return tf.reshape(column, [-1])


def check_numeric(feature: str, nest: Any) -> None:
  """Checks that all leaves of a field, or their specs, are numbers or bools.

  Raises:
    ValueError: if a leaf is a string.
  """
  for path, leaf in tree.flatten_with_path(nest):
    if not _is_number(tf.as_dtype(leaf.dtype), or_bool=True):
      raise ValueError(
          f'Step field {field_path((feature,) + path)} must be of numbers, but'
          f' is {tf.as_dtype(leaf.dtype).name} {leaf.shape}.'
      )


def has_one_shape(spec: Any) -> bool:
  """Returns whether a field has the same dense shape in every step."""
  return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()


def zeros(spec: Any) -> Any:
  """Returns zeros of `spec`; its unknown dimensions are 0."""

  def leaf_zeros(leaf):
    shape = [None] if leaf.shape.rank is None else leaf.shape.as_list()
    return tf.zeros([dim or 0 for dim in shape], leaf.dtype)

  return tf.nest.map_structure(leaf_zeros, spec)


def field_path(path: Sequence[Any]) -> str:
  """Returns the name of a nested field, such as `observation/camera/0`."""
  return '/'.join(str(key) for key in path)


def float_fields(step: Any) -> List[Tuple[str, Any]]:
  """Returns the path and the leaf of each leaf of `step` that can hold NaN."""
  return [
      (field_path(path), leaf)
      for path, leaf in tree.flatten_with_path(step)
      if leaf.dtype.is_floating
  ]


def without_time(stacked_spec: Any) -> Any:
  """Returns the specs of one step, given those of stacked steps."""
  return tf.nest.map_structure(_without_time, stacked_spec)


def _without_time(spec):
  # Ragged and sparse fields are refused where they are used.
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


def map_dense(function: Callable[[Any], Any], nest: Any) -> Any:
  """Maps the tensors of a nest, or their specs.

  Ragged and sparse tensors, and data sets, stay as they are: only a batch of
  one episode has them, and they are not cut.
  """

  def change(leaf):
    is_data = isinstance(leaf, (tf.data.Dataset, tf.data.DatasetSpec))
    return leaf if is_data or is_composite(leaf) else function(leaf)

  return tf.nest.map_structure(change, nest)


def is_composite(leaf) -> bool:
  """Returns whether a leaf, or the spec of one, is ragged or sparse."""
  if isinstance(leaf, tf.TypeSpec):
    return not isinstance(leaf, tf.TensorSpec)
  return isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))
