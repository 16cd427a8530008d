"""Transforms that select, rename, clip and pad fields of the steps."""

import functools
from typing import Dict, Mapping, Optional, Sequence

import tensorflow as tf

from rlds2reverb.arrays import constants
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

# Steps without these fields are not complete, so they are always selected.
_ALWAYS = rlds.REWARD, rlds.DISCOUNT, *rlds.FLAGS, last_steps.HAS_ACTION


@base.configurable
class SelectFields(base.EpisodeTransform):
  """Keeps only the named fields of the steps, or leaves named ones out.

  Attributes:
    fields: the paths of the fields that are kept, by default all. The reward,
      the discount and the flags are kept too. Where a path leads to a part of
      one of them, only that part is kept.
    exclude: the paths of fields, or of parts of those kept, that are left out.
  """

  fields: Optional[Sequence[paths.Path]] = None
  exclude: Sequence[paths.Path] = ()

  def _check(self):
    paths.check_list('fields', self.fields or ())
    paths.check_list('exclude', self.exclude)

  def transform(self, steps):
    selected = steps
    if self.fields is not None:
      found = [paths.find(steps, path) for path in self.fields]
      named = {keys[0] for keys in found}
      others = [name for name in _ALWAYS if name not in named]
      selected = {name: steps[name] for name in others if name in steps}
      for keys in found:
        selected = paths.insert(selected, keys, paths.get(steps, keys))
    for path in self.exclude:
      selected = paths.remove(selected, paths.find(selected, path))
    return selected


@base.configurable
class RenameFields(base.EpisodeTransform):
  """Moves fields to other paths.

  All fields are taken out before the first one is put back, so that two fields
  can change places.

  Attributes:
    fields: a mapping from the path of each field to its new path, at which
      there must be no other field. A string is split at every `/`; where a key
      itself has a `/` in it, write the path as a tuple.
  """

  fields: Mapping[paths.Path, paths.Path]

  def transform(self, steps):
    return _move(steps, self.fields)

  def invert(self, steps):
    moves = {new: old for old, new in self.fields.items()}
    there = filter(lambda new: paths.contains(steps, new), moves)
    return _move(steps, {new: moves[new] for new in there})


def _move(steps, moves):
  found = [(paths.find(steps, old), new) for old, new in moves.items()]
  moved = steps
  for keys, _ in found:
    moved = paths.remove(moved, keys)
  for keys, new in found:
    moved = paths.insert(moved, new, paths.get(steps, keys))
  return moved


@base.configurable
class ClipField(base.EpisodeTransform):
  """Clips the numbers of a field to `[low, high]`. NaN stays NaN.

  Attributes:
    field: the path of a leaf, or of a field of several leaves, such as
      `action`. Leaves of strings and bools stay as they are.
    low: the least number that comes out, if there is one.
    high: the greatest number that comes out, if there is one.
    index: which number of the last dimension of a leaf of floats is clipped,
      counted from the end if it is negative; by default all are.
  """

  field: paths.Path = rlds.ACTION
  low: Optional[constants.Numbers] = None
  high: Optional[constants.Numbers] = None
  index: Optional[int] = None

  def transform(self, steps):
    def clip(name, leaf):
      if not (leaf.dtype.is_floating or leaf.dtype.is_integer):
        return leaf
      return constants.clip(leaf, self.low, self.high, name, tf)

    if self.index is None:
      return paths.map_leaves(clip, steps, self.field)
    clip_one = functools.partial(clip, paths.name_of(self.field))
    return values.change_one(clip_one, steps, self.field, self.index)


@base.configurable
class PadField(base.EpisodeTransform):
  """Pads a vector with zeros on the right, and adds a mask, as Octo does.

      action, size=2, width=4      a b 0 0
      action_pad_mask              T T F F

  The inverse cuts the zeros off, and leaves the mask out.

  Attributes:
    field: the path of the leaf, numbers `[..., size]`.
    size: how many numbers the data has. None takes any number; then there is no
      inverse.
    width: how many the result has.
    mask: the path of the mask, bool `[..., width]`, True where a number is
      real. By default the path of the field plus `_pad_mask`.
  """

  field: paths.Path
  size: Optional[int] = None
  width: Optional[int] = None
  mask: Optional[paths.Path] = None

  def _check(self):
    size = 1 if self.size is None else self.size
    if not self.width or not 0 < size <= self.width:
      raise ValueError(
          f'{paths.name_of(self.field)} cannot be padded from size={self.size}'
          f' to width={self.width}.'
      )

  def transform(self, steps):
    leaf = self._leaf(steps, self.size)
    found = leaf.shape[-1]
    ends = [[0, 0]] * (leaf.shape.rank - 1) + [[0, self.width - found]]
    padded = tf.pad(leaf, ends)
    mask = tf.broadcast_to(tf.range(self.width) < found, tf.shape(padded))
    steps = values.put(steps, self.field, padded)
    return paths.insert(steps, self._mask, mask)

  def invert(self, steps):
    if not paths.contains(steps, self.field):
      return steps
    if self.size is None:
      raise ValueError(
          f'What {paths.name_of(self.field)} was before it was padded is not'
          ' known. Make the PadField of the robot with its size.'
      )
    leaf = self._leaf(steps, self.width)[..., : self.size]
    return values.drop(values.put(steps, self.field, leaf), self._mask)

  def _leaf(self, steps, width):
    leaf = values.one_leaf(steps, self.field, values.SIZED)
    found = leaf.shape[-1]
    if found != width and (width is not None or found > self.width):
      raise ValueError(
          f'{paths.name_of(self.field)} must have {width or self.width} numbers'
          f'{" at most" * (width is None)}, but has {found}.'
      )
    return leaf

  @property
  def _mask(self):
    *above, last = paths.split(self.field)
    return (*above, f'{last}_pad_mask') if self.mask is None else self.mask

  @classmethod
  def to_common_width(
      cls,
      datasets: Mapping[str, tf.data.Dataset],
      field: paths.Path = rlds.ACTION,
      width: Optional[int] = None,
  ) -> Dict[str, 'PadField']:
    """Returns the transforms that pad a field to one width in all data sets.

    Args:
      datasets: RLDS data sets, by their names.
      field: the path of a leaf, a vector of numbers a step in each of them.
      width: the width that comes out; by default the largest that there is.

    Returns:
      A `PadField` for each data set, by its name. When the policy is deployed,
      the inverse of its robot's transform gives the robot's own numbers.

    Raises:
      ValueError: if a data set has no such field, or it is no vector of numbers
        of a known size, or is wider than `width`.
    """
    sizes = {}
    for name, dataset in datasets.items():
      spec = paths.get(steps_lib.steps_spec(dataset.element_spec).step, field)
      if not isinstance(spec, tf.TensorSpec) or spec.shape.rank != 1:
        raise ValueError(
            f'{paths.name_of(field)} of the data set {name} must be a vector,'
            f' but its spec is {spec}.'
        )
      values.check_kind(paths.name_of(field), spec, values.SIZED)
      sizes[name] = spec.shape[0]
    width = max(sizes.values(), default=0) if width is None else width
    return {name: cls(field, size, width) for name, size in sizes.items()}
