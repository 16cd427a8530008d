"""The step fields of an RLDS data set, read off its element spec.

An RLDS data set is a `tf.data.Dataset` of episodes. An episode is a dict whose
`steps` are either a nested `tf.data.Dataset` of steps, or *stacked*: one nest
of tensors `[T, ...]`, as TFDS gives with `SkipDecoding` for `steps`. Everything
in this package accepts both.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import rlds
import tensorflow as tf
import tree

_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
_PIECE_LENGTH = 64


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
      sparse, or if `discount` or a flag is not one number a step.
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
    raise ValueError(
        'Invalid RLDS step spec. Features expected '
        f'are {features}, but found {found}'
    )
  if stacked:
    step = without_time(step)
  for feature in features:
    for path, spec in tree.flatten_with_path(step[feature]):
      if not isinstance(spec, tf.TensorSpec):
        raise ValueError(
            f'Step field {field_path((feature,) + path)} must be a dense'
            f' tensor, but its spec is {spec}.'
        )
  _check_number(rlds.DISCOUNT, step[rlds.DISCOUNT])
  for flag in _FLAGS:
    _check_number(flag, step[flag], or_bool=True)
  return StepsSpec(step, stacked)


def stack_steps(steps: Any) -> Any:
  """Returns the steps of one episode stacked `[T, ...]`, whole.

  Args:
    steps: what an RLDS episode holds under `steps`: a nested `tf.data.Dataset`
      of steps, or steps stacked already, which come back as they are.

  Returns:
    A nest of tensors `[T, ...]`. Of a nested data set every field must have the
    same shape in every step.
  """
  if not isinstance(steps, tf.data.Dataset):
    return steps
  # In pieces first: TensorFlow makes one operation of a map and the batch that
  # follows, and that one hangs on a batch without bounds.
  whole = steps.batch(_PIECE_LENGTH).rebatch(tf.int64.max)
  # Of no steps there is no batch.
  nothing = tf.data.Dataset.from_tensors(zeros(whole.element_spec))
  return whole.concatenate(nothing).take(1).get_single_element()


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


def _check_number(feature: str, spec: Any, or_bool: bool = False) -> None:
  is_scalar = isinstance(spec, tf.TensorSpec) and (
      spec.shape.is_compatible_with([]) or spec.shape.is_compatible_with([1])
  )
  if not is_scalar or not (
      spec.dtype.is_floating
      or spec.dtype.is_integer
      or (or_bool and spec.dtype.is_bool)
  ):
    raise ValueError(
        f'Step field {feature} must be one number{" or bool" * or_bool} a step,'
        f' of shape () or (1,), but its spec is {spec}.'
    )
