"""Reads and replaces fields of steps, and the numbers along their last axis."""

import functools
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import tensorflow as tf

from rlds2reverb.episodes import paths

Steps = Dict[str, Any]


def check_probability(name: str, value: float) -> None:
  """Raises a ValueError if `value` is not in [0, 1]."""
  if not 0 <= value <= 1:
    raise ValueError(f'{name} must be in [0, 1], but is {value}.')


def map_each(
    fn: Callable[[int, str, tf.Tensor], tf.Tensor],
    nest: Any,
    fields: Sequence[paths.Path],
) -> Any:
  """Replaces the leaves at or below each path by `fn(number, name, leaf)`.

  Args:
    fn: a function of the place of a path in `fields`, and of the name of a leaf
      and the leaf.
    nest: a nest of tensors or arrays.
    fields: the paths.

  Raises:
    ValueError: if there is no such field, or `fields` is a single string.
  """
  paths.check_list('fields', fields)
  for number, path in enumerate(fields):
    nest = paths.map_leaves(functools.partial(fn, number), nest, path)
  return nest


def put(steps: Steps, field: paths.Path, value: Any) -> Steps:
  """Returns the steps with another value of a leaf that they have."""
  return paths.map_leaves(lambda *_: value, steps, field)


def add(steps: Steps, field: paths.Path, value: Any) -> Steps:
  """Returns the steps with a new field; see `paths.insert`."""
  return paths.insert(steps, paths.split(field), value)


def drop(steps: Steps, *fields: paths.Path) -> Steps:
  """Returns the steps without those of the fields that they have."""
  for field in fields:
    if paths.contains(steps, field):
      steps = paths.remove(steps, paths.find(steps, field))
  return steps


def rows_where(mask: tf.Tensor, leaf: tf.Tensor, other: Any) -> tf.Tensor:
  """Returns rows `[N, ...]` of a leaf where `mask` is true, or of another.

  Args:
    mask: bool `[N]`.
    leaf: `[N, ...]`.
    other: a tensor that can be broadcast to `leaf`.
  """
  mask = tf.reshape(mask, [-1] + [1] * (leaf.shape.rank - 1))
  return tf.where(mask, leaf, other)


def width_of(name: str, leaf: Any) -> int:
  """Returns how many numbers a step has along the last axis of a field.

  Args:
    name: the path of the field, for the message of an error.
    leaf: `[..., n]`, or its spec.

  Raises:
    ValueError: if the leaf is not of numbers, or `n` is not known.
  """
  if leaf.dtype == tf.string or not leaf.shape.rank or leaf.shape[-1] is None:
    raise ValueError(
        f'{name} must be numbers with a last axis of known size, but is'
        f' {leaf.dtype.name} {leaf.shape}.'
    )
  return leaf.shape[-1]


def one_leaf(steps: Steps, field: paths.Path, kind: str = '') -> tf.Tensor:
  """Returns a leaf.

  Args:
    steps: a dict of step fields.
    field: its path.
    kind: a name of `_KINDS`, of which it must be; by default of any.

  Raises:
    ValueError: if there is no such field, it is not one leaf, or of another
      kind.
  """
  leaf, name = paths.get(steps, field), paths.name_of(field)
  if tf.nest.is_nested(leaf):
    raise ValueError(
        f'{name} must be one leaf, but has several:'
        f' {sorted(paths.leaves(leaf))}. Name one of them, or make one vector'
        ' of them with a StepMapping.'
    )
  leaf = tf.convert_to_tensor(leaf)
  is_kind, advice = _KINDS.get(kind, (lambda leaf: True, ''))
  if not is_kind(leaf):
    raise ValueError(
        f'{name} must be {kind}, but is {leaf.dtype.name} {leaf.shape}.{advice}'
    )
  return leaf


FLOATS, STRINGS = 'floats', 'a string for each step'
_KINDS: Dict[str, Tuple[Callable[[tf.Tensor], bool], str]] = {
    FLOATS: (
        lambda leaf: leaf.dtype.is_floating,
        ' Cast it first, for example with the cast of a StepMapping.',
    ),
    STRINGS: (
        lambda leaf: leaf.dtype == tf.string and leaf.shape.rank == 1,
        '',
    ),
}


def vector(steps: Steps, field: paths.Path) -> tf.Tensor:
  """Returns a leaf of floats `[..., n]`, of which `n` is known.

  Raises:
    ValueError: as `one_leaf` and `width_of` do.
  """
  leaf = one_leaf(steps, field, FLOATS)
  width_of(paths.name_of(field), leaf)
  return leaf


def take(steps: Steps, field: paths.Path, start: int, size: int) -> tf.Tensor:
  """Returns `size` numbers of a leaf of floats, from number `start` on.

  Raises:
    ValueError: as `vector` does; and if there are no such numbers.
  """
  leaf = vector(steps, field)
  if start < 0 or start + size > leaf.shape[-1]:
    raise ValueError(
        f'{paths.name_of(field)} has {leaf.shape[-1]} numbers, but {size} are'
        f' needed from number {start} on.'
    )
  return leaf[..., start : start + size]


def replace(
    steps: Steps, field: paths.Path, start: int, size: int, new: tf.Tensor
) -> Steps:
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

  def join(unused_name, leaf):
    ends = leaf[..., :start], leaf[..., start + size :]
    return tf.concat([ends[0], tf.cast(new, leaf.dtype), ends[1]], -1)

  return paths.map_leaves(join, steps, field)


def map_one(
    fn: Callable[[tf.Tensor], tf.Tensor],
    steps: Steps,
    field: paths.Path,
    index: Optional[int],
    num_leading: Optional[int] = None,
) -> Steps:
  """Applies `fn` to one number of a leaf of floats.

  Args:
    fn: a function from `[...]` to the same shape.
    steps: a dict of step fields.
    field: the path of the leaf, `[..., n]`.
    index: which number, counted from the end if it is below 0; or None, if the
      leaf is `[...]`.
    num_leading: how many dimensions `[...]` must be, if that is known.

  Raises:
    ValueError: as `vector` does; and if there is no such number.
  """
  leaf = one_leaf(steps, field, FLOATS)
  rank = leaf.shape.rank - (index is not None)
  if num_leading is not None and rank != num_leading:
    raise ValueError(
        f'{paths.name_of(field)} has the shape {leaf.shape}, of which one'
        f' number a step cannot be taken with index={index}: it must be a'
        ' vector a step, or one number with index=None. Cut chunks later.'
    )
  if index is None:
    return put(steps, field, fn(leaf))
  width = vector(steps, field).shape[-1]
  if not -width <= index < width:
    raise ValueError(
        f'{paths.name_of(field)} has {width} numbers, but no number {index}.'
    )
  new = fn(leaf[..., index])[..., tf.newaxis]
  return replace(steps, field, index % width, 1, new)
