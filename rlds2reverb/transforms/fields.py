"""Transforms that select, rename, clip and pad fields of steps."""

from collections.abc import Mapping
from collections.abc import Sequence
import functools

import tensorflow as tf

from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

# The fields that complete steps have, so they are always selected.
_REQUIRED = rlds.REWARD, rlds.DISCOUNT, *rlds.FLAGS, batch_lib.HAS_ACTION


@base.configurable
class SelectFields(base.EpisodeTransform):
  """Keeps only the named fields of steps, or drops named fields.

  Attributes:
    fields: the paths of the fields to keep, by default all. The reward, the
      discount and the flags are always kept; only if a path leads to a part
      of such a field, only that part is kept.
    exclude: the paths of fields, or of parts of kept fields, to drop.
  """

  fields: Sequence[paths.Path] | None = None
  exclude: Sequence[paths.Path] = ()

  def _check(self):
    paths.check_list('fields', self.fields or ())
    paths.check_list('exclude', self.exclude)

  def transform(self, steps):
    selected = steps
    if self.fields is not None:
      field_keys = [paths.find(steps, path) for path in self.fields]
      named = {keys[0] for keys in field_keys}
      selected = {
          name: steps[name]
          for name in _REQUIRED
          if name in steps and name not in named
      }
      for keys in field_keys:
        selected = paths.insert(selected, keys, paths.get(steps, keys))
    for path in self.exclude:
      selected = paths.remove(selected, paths.find(selected, path))
    return selected


@base.configurable
class RenameFields(base.EpisodeTransform):
  """Moves fields to other paths.

  All fields are removed before they are inserted at their new paths, so two
  fields can be swapped.

  Attributes:
    fields: a mapping from the path of each field to its new path, at which
      there must be no other field. A string is split at every `/`; for a key
      that contains a `/`, write the path as a tuple.
  """

  fields: Mapping[paths.Path, paths.Path]

  def transform(self, steps):
    return _move(steps, self.fields)

  def invert(self, steps):
    return _move(
        steps,
        {
            new: old
            for old, new in self.fields.items()
            if paths.contains(steps, new)
        },
    )


def _move(steps, moves):
  keys_and_targets = [
      (paths.find(steps, old), new) for old, new in moves.items()
  ]
  moved = steps
  for keys, _ in keys_and_targets:
    moved = paths.remove(moved, keys)
  for keys, new in keys_and_targets:
    moved = paths.insert(moved, new, paths.get(steps, keys))
  return moved


@base.configurable
class ClipField(base.EpisodeTransform):
  """Clips the numbers of a field to `[low, high]`. NaN stays NaN.

  Attributes:
    field: the path of a leaf, or of a field of several leaves, such as
      `action`. Leaves of strings and bools are not changed.
    low: the minimum, if there is one.
    high: the maximum, if there is one.
    index: the index of the number of the last dimension of a leaf of floats to
      clip, counted from the end if negative; by default all numbers.
  """

  field: paths.Path = rlds.ACTION
  low: normalization.Numbers | None = None
  high: normalization.Numbers | None = None
  index: int | None = None

  def transform(self, steps):
    def clip(name, leaf):
      if not (leaf.dtype.is_floating or leaf.dtype.is_integer):
        return leaf
      return normalization.clip(leaf, self.low, self.high, name, tf)

    if self.index is None:
      return paths.map_leaves(clip, steps, self.field)
    clip_number = functools.partial(clip, paths.name_of(self.field))
    return values.map_number(clip_number, steps, self.field, self.index)


@base.configurable
class PadField(base.EpisodeTransform):
  """Pads a vector with zeros on the right, and adds a mask, as Octo does.

      action, size=2, width=4      a b 0 0
      action_pad_mask              T T F F

  The inverse removes the padding and the mask.

  Attributes:
    field: the path of the leaf, numbers `[..., size]`.
    size: the number of numbers in the data. None for any number; then there is
      no inverse.
    width: the number of numbers after padding.
    mask: the path of the mask, bool `[..., width]`, False for padding. By
      default the path of the field plus `_pad_mask`.
  """

  field: paths.Path
  size: int | None = None
  width: int | None = None
  mask: paths.Path | None = None

  def _check(self):
    size = 1 if self.size is None else self.size
    if not self.width or not 0 < size <= self.width:
      raise ValueError(
          f'{paths.name_of(self.field)} cannot be padded from size={self.size}'
          f' to width={self.width}.'
      )

  def transform(self, steps):
    leaf = self._get_leaf(steps, self.size)
    size = leaf.shape[-1]
    padding = [[0, 0]] * (leaf.shape.rank - 1) + [[0, self.width - size]]
    padded = tf.pad(leaf, padding)
    mask = tf.broadcast_to(tf.range(self.width) < size, tf.shape(padded))
    steps = values.put(steps, self.field, padded)
    return paths.insert(steps, self._mask, mask)

  def invert(self, steps):
    if not paths.contains(steps, self.field):
      return steps
    if self.size is None:
      raise ValueError(
          f'The padding of {paths.name_of(self.field)} cannot be removed,'
          ' because the size of the data is not known. Use a PadField with the'
          ' size of the robot.'
      )
    leaf = self._get_leaf(steps, self.width)[..., : self.size]
    return values.drop(values.put(steps, self.field, leaf), self._mask)

  def _get_leaf(self, steps, width):
    leaf = values.one_leaf(steps, self.field, values.SIZED)
    size = leaf.shape[-1]
    if size != width and (width is not None or size > self.width):
      raise ValueError(
          f'{paths.name_of(self.field)} must have {width or self.width} numbers'
          f'{" at most" if width is None else ""}, but has {size}.'
      )
    return leaf

  @property
  def _mask(self):
    *parents, name = paths.split(self.field)
    return (*parents, f'{name}_pad_mask') if self.mask is None else self.mask

  @classmethod
  def to_common_width(
      cls,
      datasets: Mapping[str, tf.data.Dataset],
      field: paths.Path = rlds.ACTION,
      width: int | None = None,
  ) -> dict[str, 'PadField']:
    """Returns transforms that pad a field to one width in all data sets.

    Args:
      datasets: RLDS data sets, by their names.
      field: the path of a leaf, a vector of numbers per step in each data set.
      width: the width after padding; by default the maximum width.

    Returns:
      A `PadField` for each data set, by its name. For deployment, the inverse
      of a robot's transform returns actions of the robot's own size.

    Raises:
      ValueError: if a data set has no such field, or the field is not a vector
        of numbers of known size, or exceeds `width`.
    """
    sizes = {}
    for name, dataset in datasets.items():
      spec = paths.get(
          steps_lib.get_steps_spec(dataset.element_spec).step, field
      )
      if not isinstance(spec, tf.TensorSpec) or spec.shape.rank != 1:
        raise ValueError(
            f'{paths.name_of(field)} of the data set {name} must be a vector,'
            f' but its spec is {spec}.'
        )
      values.check_kind(paths.name_of(field), spec, values.SIZED)
      sizes[name] = spec.shape[0]
    width = max(sizes.values(), default=0) if width is None else width
    return {name: cls(field, size, width) for name, size in sizes.items()}
