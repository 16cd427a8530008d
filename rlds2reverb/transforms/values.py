"""Reads and replaces leaves of steps, and numbers along their last axis."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.transforms import base

Steps = dict[str, Any]

# The kinds of leaves, as errors describe them.
FLOATS, STRINGS = 'floats', 'a string for each step'
TEXTS = 'a string, or a list of strings, for each step'
COLUMN = 'one number per step, of a vector or with index=None'
NUMBERS, COLOR_IMAGES = 'a bool or number', 'images [..., height, width, 3]'
VIDEO_REFERENCES = 'references to frames of videos, strings'
SIZED = 'numbers with a last axis of known size'
_IS_KIND: dict[str, Callable[[Any], bool]] = {
    FLOATS: lambda leaf: leaf.dtype.is_floating,
    STRINGS: lambda leaf: leaf.dtype == tf.string and leaf.shape.rank == 1,
    TEXTS: lambda leaf: leaf.dtype == tf.string and leaf.shape.rank in (1, 2),
    COLUMN: lambda leaf: leaf.shape.rank == 1,
    NUMBERS: lambda leaf: leaf.dtype != tf.string,
    COLOR_IMAGES: lambda leaf: (leaf.shape.rank or 0) >= 3
    and leaf.shape[-1] == 3,
    VIDEO_REFERENCES: lambda leaf: leaf.dtype == tf.string,
    SIZED: lambda leaf: leaf.dtype != tf.string
    and bool(leaf.shape.rank)
    and leaf.shape[-1] is not None,
}
_ADVICE = {
    FLOATS: ' Cast it first, for example with the cast of a StepMapping.',
    COLUMN: ' Chunk actions after this transform.',
}


class FieldTransform(base.EpisodeTransform):
  """The base of invertible transforms of one field of a step.

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
    """Returns the steps with the field transformed, or inverted."""
    raise NotImplementedError


def check_probability(name: str, value: float) -> None:
  """Raises a ValueError if `value` is not in [0, 1]."""
  if not 0 <= value <= 1:
    raise ValueError(f'{name} must be in [0, 1], but is {value}.')


def check_kind(name: str, leaf: Any, *kinds: str) -> None:
  """Raises a ValueError if a leaf, or its spec, is not of all kinds."""
  for kind in kinds:
    if not _IS_KIND[kind](leaf):
      raise ValueError(
          f'{name} must be {kind}, but is {leaf.dtype.name} {leaf.shape}.'
          f'{_ADVICE.get(kind, "")}'
      )


def one_leaf(steps: Steps, field: paths.Path, *kinds: str) -> tf.Tensor:
  """Returns a leaf.

  Args:
    steps: a dict of step fields.
    field: its path.
    *kinds: the kinds that it must have.

  Raises:
    ValueError: if there is no such field, it is not one leaf, or of another
      kind.
  """
  leaf, name = paths.get(steps, field), paths.name_of(field)
  if tf.nest.is_nested(leaf):
    raise ValueError(
        f'{name} must be one leaf, but has several:'
        f' {sorted(paths.leaves(leaf))}. Name one leaf, or concatenate them to'
        ' a vector with a StepMapping.'
    )
  leaf = tf.convert_to_tensor(leaf)
  check_kind(name, leaf, *kinds)
  return leaf


def map_field_leaves(
    fn: Callable[[int, str, tf.Tensor], tf.Tensor],
    nest: Any,
    paths_of_fields: Sequence[paths.Path],
) -> Any:
  """Replaces the leaves of fields by `fn(index, name, leaf)`.

  Args:
    fn: a function of the index of the field, the name of a leaf, and the leaf.
    nest: a nest of tensors or arrays.
    paths_of_fields: the paths of the fields.

  Raises:
    ValueError: if there is no such field, or the paths are a single string.
  """
  paths.check_list('fields', paths_of_fields)
  for index, path in enumerate(paths_of_fields):
    nest = paths.map_leaves(functools.partial(fn, index), nest, path)
  return nest


def put(steps: Steps, field: paths.Path, value: Any) -> Steps:
  """Returns the steps with another value of an existing leaf."""
  return paths.map_leaves(lambda *_: value, steps, field)


def drop(steps: Steps, *fields: paths.Path) -> Steps:
  """Returns the steps without the fields, if they exist."""
  for field in fields:
    if paths.contains(steps, field):
      steps = paths.remove(steps, paths.find(steps, field))
  return steps


def put_where(
    mask: tf.Tensor, steps: Steps, field: paths.Path, value: Any = None
) -> Steps:
  """Replaces some rows of the leaves of a field.

  Args:
    mask: bool `[N]`: the rows to replace.
    steps: a dict of step fields, `[N, ...]`.
    field: the path of a field of one or several leaves.
    value: numbers `[N]`; by default zeros, and empty strings.
  """

  def replace(unused_name, leaf):
    new = tf.zeros_like(leaf) if value is None else tf.cast(value, leaf.dtype)
    return where_rows(mask, new, leaf)

  return paths.map_leaves(replace, steps, field)


def where_rows(mask: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Returns the rows of `x` where `mask` is true, and of `y` elsewhere.

  Args:
    mask: bool `[N]`.
    x: `[N, ...]`.
    y: `[N, ...]`.
  """
  return tf.where(rows_lib.expand_to_rank(mask, y), x, y)


def take(
    steps: Steps, field: paths.Path, start: int, size: int | None
) -> tf.Tensor:
  """Returns `size` numbers of a leaf of floats, or all, from `start` on.

  Raises:
    ValueError: as `one_leaf` does; and if the leaf has fewer numbers.
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


def map_slice(
    fn: Callable[[tf.Tensor], tf.Tensor],
    steps: Steps,
    field: paths.Path,
    start: int,
    size: int,
) -> Steps:
  """Replaces numbers of a leaf of floats by others, which may be more or fewer.

  Args:
    fn: a function from the numbers, `[..., size]`, to new ones, `[..., m]`.
    steps: a dict of step fields.
    field: the path of the leaf, `[..., n]`.
    start: the index of the first number to replace.
    size: the number of numbers to replace.

  Returns:
    The dict, with a leaf `[..., n - size + m]` of the same dtype.

  Raises:
    ValueError: as `take` does.
  """
  new = fn(take(steps, field, start, size))
  leaf = tf.convert_to_tensor(paths.get(steps, field))
  parts = leaf[..., :start], tf.cast(new, leaf.dtype), leaf[..., start + size :]
  return put(steps, field, tf.concat(parts, -1))


def map_number(
    fn: Callable[[tf.Tensor], tf.Tensor],
    steps: Steps,
    field: paths.Path,
    index: int | None,
) -> Steps:
  """Replaces one number of a leaf of floats.

  Args:
    fn: a function from `[...]` to the same shape.
    steps: a dict of step fields.
    field: the path of the leaf, `[..., n]`.
    index: the index of the number, counted from the end if negative; or None if
      the leaf is `[...]`.

  Raises:
    ValueError: as `one_leaf` and `take` do.
  """
  if index is None:
    return put(steps, field, fn(one_leaf(steps, field, FLOATS)))
  if index < 0:
    index += one_leaf(steps, field, FLOATS, SIZED).shape[-1]
  map_last = lambda numbers: fn(numbers[..., 0])[..., tf.newaxis]
  return map_slice(map_last, steps, field, index, 1)


def to_index(fraction: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """Converts random fractions in [0, 1) to uniform integers in `[0, count)`.

  Args:
    fraction: float64 of any shape.
    count: int64 of a shape that broadcasts; where it is 0, the result is -1.

  Returns:
    int64, with equal probabilities.
  """
  index = tf.cast(fraction * tf.cast(count, tf.float64), tf.int64)
  return tf.minimum(index, count - 1)  # The product may be rounded up.
