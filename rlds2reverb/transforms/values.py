"""Reads and replaces fields of steps, and the numbers along their last axis."""

import functools
from typing import Any, Callable, Dict, Optional, Sequence

import tensorflow as tf

from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.transforms import base

Steps = Dict[str, Any]

# What a leaf can be asked to be.
FLOATS, STRINGS = 'floats', 'a string for each step'
TEXTS = 'a string, or a list of strings, for each step'
COLUMN = 'one number a step, of a vector or with index=None'
NUMBERS, COLOURS = 'a bool or number', 'images [..., height, width, 3]'
REFERENCES = 'references to the frames of videos, strings'
SIZED = 'numbers with a last axis of known size'
_KINDS: Dict[str, Callable[[Any], bool]] = {
    FLOATS: lambda leaf: leaf.dtype.is_floating,
    STRINGS: lambda leaf: leaf.dtype == tf.string and leaf.shape.rank == 1,
    TEXTS: lambda leaf: leaf.dtype == tf.string and leaf.shape.rank in (1, 2),
    COLUMN: lambda leaf: leaf.shape.rank == 1,
    NUMBERS: lambda leaf: leaf.dtype != tf.string,
    COLOURS: lambda leaf: (leaf.shape.rank or 0) >= 3 and leaf.shape[-1] == 3,
    REFERENCES: lambda leaf: leaf.dtype == tf.string,
    SIZED: lambda leaf: leaf.dtype != tf.string
    and bool(leaf.shape.rank)
    and leaf.shape[-1] is not None,
}
_ADVICE = {
    FLOATS: ' Cast it first, for example with the cast of a StepMapping.',
    COLUMN: ' Cut chunks later.',
}


class FieldTransform(base.EpisodeTransform):
  """A change of one field of a step that can be undone.

  Attributes:
    field: the path of the field.
  """

  field: paths.Path

  def transform(self, steps):
    return self._change(steps, undo=False)

  def invert(self, steps):
    has_field = paths.contains(steps, self.field)
    return self._change(steps, undo=True) if has_field else steps

  def _change(self, steps: Steps, undo: bool) -> Steps:
    """Returns steps with the field changed, or as it was before."""
    raise NotImplementedError


def check_probability(name: str, value: float) -> None:
  """Raises a ValueError if `value` is not in [0, 1]."""
  if not 0 <= value <= 1:
    raise ValueError(f'{name} must be in [0, 1], but is {value}.')


def check_kind(name: str, leaf: Any, *kinds: str) -> None:
  """Raises a ValueError if a leaf, or its spec, is not of all kinds."""
  for kind in kinds:
    if not _KINDS[kind](leaf):
      raise ValueError(
          f'{name} must be {kind}, but is {leaf.dtype.name} {leaf.shape}.'
          f'{_ADVICE.get(kind, "")}'
      )


def one_leaf(steps: Steps, field: paths.Path, *kinds: str) -> tf.Tensor:
  """Returns a leaf.

  Args:
    steps: a dict of step fields.
    field: its path.
    *kinds: what it must be: one or several of the kinds above.

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
  check_kind(name, leaf, *kinds)
  return leaf


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


def drop(steps: Steps, *fields: paths.Path) -> Steps:
  """Returns the steps without those of the fields that they have."""
  for field in fields:
    if paths.contains(steps, field):
      steps = paths.remove(steps, paths.find(steps, field))
  return steps


def put_where(
    mask: tf.Tensor, steps: Steps, field: paths.Path, other: Any = None
) -> Steps:
  """Replaces some rows of the leaves of a field.

  Args:
    mask: bool `[N]`: which rows are replaced.
    steps: a dict of step fields, `[N, ...]`.
    field: the path of a field of one or several leaves.
    other: numbers `[N]`; by default zeros, and empty strings.
  """

  def change(unused_name, leaf):
    new = tf.zeros_like(leaf) if other is None else tf.cast(other, leaf.dtype)
    return rows_where(mask, new, leaf)

  return paths.map_leaves(change, steps, field)


def rows_where(mask: tf.Tensor, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  """Returns the rows of one leaf where `mask` is true, and else of another.

  Args:
    mask: bool `[N]`.
    one: `[N, ...]`.
    other: the same.
  """
  return tf.where(gathering.with_rank_of(mask, other), one, other)


def take(
    steps: Steps, field: paths.Path, start: int, size: Optional[int]
) -> tf.Tensor:
  """Returns `size` numbers of a leaf of floats, or all, from `start` on.

  Raises:
    ValueError: as `one_leaf` does; and if there are no such numbers.
  """
  leaf = one_leaf(steps, field, FLOATS, SIZED)
  width = leaf.shape[-1]
  size = width - start if size is None else size
  if start < 0 or start + size > width:
    raise ValueError(
        f'{paths.name_of(field)} has {width} numbers, but {size} are needed'
        f' from number {start} on.'
    )
  return leaf[..., start : start + size]


def change(
    fn: Callable[[tf.Tensor], tf.Tensor],
    steps: Steps,
    field: paths.Path,
    start: int,
    size: int,
) -> Steps:
  """Replaces numbers of a leaf of floats by others, which may be more or fewer.

  Args:
    fn: a function from the numbers, `[..., size]`, to the new ones, `[..., m]`.
    steps: a dict of step fields.
    field: the path of the leaf, `[..., n]`.
    start: the first number that is replaced.
    size: how many are replaced.

  Returns:
    The dict, in which the leaf is `[..., n - size + m]`, of the same dtype.

  Raises:
    ValueError: as `take` does.
  """
  new = fn(take(steps, field, start, size))
  leaf = tf.convert_to_tensor(paths.get(steps, field))
  parts = leaf[..., :start], tf.cast(new, leaf.dtype), leaf[..., start + size :]
  return put(steps, field, tf.concat(parts, -1))


def change_one(
    fn: Callable[[tf.Tensor], tf.Tensor],
    steps: Steps,
    field: paths.Path,
    index: Optional[int],
) -> Steps:
  """Replaces one number of a leaf of floats by another.

  Args:
    fn: a function from `[...]` to the same shape.
    steps: a dict of step fields.
    field: the path of the leaf, `[..., n]`.
    index: which number, counted from the end if it is below 0; or None, if the
      leaf is `[...]`.

  Raises:
    ValueError: as `one_leaf` and `take` do.
  """
  if index is None:
    return put(steps, field, fn(one_leaf(steps, field, FLOATS)))
  if index < 0:
    index += one_leaf(steps, field, FLOATS, SIZED).shape[-1]
  fn_of_all = lambda numbers: fn(numbers[..., 0])[..., tf.newaxis]
  return change(fn_of_all, steps, field, index, 1)


def below(fraction: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """Returns the integers in `[0, count)` that fractions in [0, 1) stand for.

  Args:
    fraction: float64 of any shape.
    count: int64 of a shape that fits; where it is 0, the result is -1.

  Returns:
    int64, each number as likely as any other.
  """
  index = tf.cast(fraction * tf.cast(count, tf.float64), tf.int64)
  return tf.minimum(index, count - 1)  # A product may be rounded up.
