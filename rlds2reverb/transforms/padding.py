"""Pads values to a width that several data sets have in common."""

import dataclasses
from typing import Dict, Mapping, Optional

import gin
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
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

  is_step_wise = True

  field: paths.Path
  size: Optional[int] = None
  width: Optional[int] = None
  mask: Optional[paths.Path] = None

  def __post_init__(self):
    super().__post_init__()
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
    return paths.insert(steps, self._mask_keys(), mask)

  def invert(self, steps):
    if not paths.contains(steps, self.field):
      return steps
    if self.size is None:
      raise ValueError(
          f'What {paths.name_of(self.field)} was before it was padded is not'
          ' known. Make the PadField of the robot with its size.'
      )
    leaf = self._leaf(steps, self.width)
    steps = values.put(steps, self.field, leaf[..., : self.size])
    return values.drop(steps, self._mask_keys())

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
      sizes[name] = values.width_of(paths.name_of(field), spec)
    if width is None:
      width = max(sizes.values(), default=0)
    return {name: cls(field, size, width) for name, size in sizes.items()}

  def _leaf(self, steps, width):
    leaf = values.one_leaf(steps, self.field)
    name = paths.name_of(self.field)
    found = values.width_of(name, leaf)
    if found != width and (width is not None or found > self.width):
      raise ValueError(
          f'{name} must have {width or self.width} numbers'
          f'{" at most" * (width is None)}, but has {found}.'
      )
    return leaf

  def _mask_keys(self):
    if self.mask is not None:
      return paths.split(self.mask)
    *above, last = paths.split(self.field)
    return (*above, f'{last}_pad_mask')
