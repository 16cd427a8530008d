"""Reads and replaces numbers along the last axis of a field."""

from typing import Any, Callable, Dict, Optional

import tensorflow as tf

from rlds2reverb.episodes import paths


def width_of(name: str, leaf: tf.Tensor) -> int:
  """Returns how many numbers a step has along the last axis of a field.

  Args:
    name: the path of the field, for the message of an error.
    leaf: `[..., n]`.

  Raises:
    ValueError: if the leaf is not of numbers, or `n` is not known.
  """
  if leaf.dtype == tf.string or not leaf.shape.rank or leaf.shape[-1] is None:
    raise ValueError(
        f'{name} must be numbers with a last axis of known size, but is'
        f' {leaf.dtype.name} {leaf.shape}.'
    )
  return leaf.shape[-1]


def floats(steps: Dict[str, Any], field: paths.Path) -> tf.Tensor:
  """Returns a leaf of floats, `[..., n]`.

  Args:
    steps: a dict of step fields.
    field: the path of the leaf.

  Raises:
    ValueError: as `one_leaf` does; and if the size of its last axis is not
      known.
  """
  leaf = one_leaf(steps, field)
  width_of(paths.name_of(field), leaf)
  return leaf


def one_leaf(steps: Dict[str, Any], field: paths.Path) -> tf.Tensor:
  """Returns a leaf of floats, of any shape.

  Raises:
    ValueError: if there is no such field, or it is not one leaf of floats.
  """
  leaf = paths.get(steps, field)
  name = paths.name_of(field)
  if tf.nest.is_nested(leaf):
    raise ValueError(
        f'{name} must be one leaf, but has several:'
        f' {sorted(paths.leaves(leaf))}. Name one of them, or make one vector'
        ' of them with a StepMapping.'
    )
  leaf = tf.convert_to_tensor(leaf)
  if not leaf.dtype.is_floating:
    raise ValueError(
        f'{name} must be floats, but is {leaf.dtype.name}. Cast it first, for'
        ' example with the cast of a StepMapping.'
    )
  return leaf


def strings(steps: Dict[str, Any], field: paths.Path) -> tf.Tensor:
  """Returns a leaf of one string a step, `[T]`.

  Raises:
    ValueError: if there is no such leaf.
  """
  leaf = paths.get(steps, field)
  name = paths.name_of(field)
  if tf.nest.is_nested(leaf):
    raise ValueError(f'{name} must be one leaf, but has several.')
  leaf = tf.convert_to_tensor(leaf)
  if leaf.dtype != tf.string or leaf.shape.rank != 1:
    raise ValueError(
        f'{name} must be a string for each step, but is {leaf.dtype.name}'
        f' {leaf.shape}.'
    )
  return leaf


def take(
    steps: Dict[str, Any], field: paths.Path, start: int, size: int
) -> tf.Tensor:
  """Returns `size` numbers of a leaf of floats, from number `start` on.

  Raises:
    ValueError: as `floats` does; and if there are no such numbers.
  """
  leaf = floats(steps, field)
  if start < 0 or start + size > leaf.shape[-1]:
    raise ValueError(
        f'{paths.name_of(field)} has {leaf.shape[-1]} numbers, but {size} are'
        f' needed from number {start} on.'
    )
  return leaf[..., start : start + size]


def replace(
    steps: Dict[str, Any],
    field: paths.Path,
    start: int,
    size: int,
    new: tf.Tensor,
) -> Dict[str, Any]:
  """Replaces numbers of a leaf by others, which may be more or fewer.

  Args:
    steps: a dict of step fields.
    field: the path of the leaf, `[..., n]`.
    start: the first number that is replaced.
    size: how many are replaced.
    new: `[..., m]`, the numbers that replace them.

  Returns:
    The dict, in which the leaf is `[..., n - size + m]`.
  """
  return paths.map_leaves(
      lambda unused_name, leaf: tf.concat(
          [
              leaf[..., :start],
              tf.cast(new, leaf.dtype),
              leaf[..., start + size :],
          ],
          axis=-1,
      ),
      steps,
      field,
  )


def map_one(
    fn: Callable[[tf.Tensor], tf.Tensor],
    steps: Dict[str, Any],
    field: paths.Path,
    index: Optional[int],
    num_leading: Optional[int] = None,
) -> Dict[str, Any]:
  """Applies `fn` to one number of a leaf of floats.

  Args:
    fn: a function from `[...]` to the same shape.
    steps: a dict of step fields.
    field: the path of the leaf, `[..., n]`.
    index: which number, counted from the end if it is below 0; or None, if the
      leaf is `[...]`.
    num_leading: how many dimensions `[...]` must be, if that is known.

  Raises:
    ValueError: as `floats` does; and if there is no such number.
  """
  leaf = one_leaf(steps, field)
  rank = leaf.shape.rank - (index is not None)
  if num_leading is not None and rank != num_leading:
    raise ValueError(
        f'{paths.name_of(field)} has the shape {leaf.shape}, of which one'
        f' number a step cannot be taken with index={index}: it must be a'
        ' vector a step, or one number with index=None. Cut chunks later.'
    )
  if index is None:
    return paths.map_leaves(lambda _, leaf: fn(leaf), steps, field)
  width = floats(steps, field).shape[-1]
  if not -width <= index < width:
    raise ValueError(
        f'{paths.name_of(field)} has {width} numbers, but no number {index}.'
    )
  start = index % width
  number = take(steps, field, start, 1)
  return replace(steps, field, start, 1, fn(number[..., 0])[..., tf.newaxis])
