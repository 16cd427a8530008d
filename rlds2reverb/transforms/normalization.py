"""Normalisation of fields by their statistics or bounds, and its inverse."""

import dataclasses

from absl import logging
import gin
import numpy as np
import rlds
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.statistics import statistics as statistics_lib
from rlds2reverb.transforms import transforms


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class NormalizeField(transforms.StepsTransform):
  """`(field - offset) / scale`, in the dtype of the field; and its inverse.

  Where `scale` is 0, or too small for that dtype to divide by, the number is
  only shifted: what never varies in the data has nothing to be divided by.

  Attributes:
    field: the path of a floating-point leaf.
    offset: one number, or an array that fits the leaf's last dimensions.
    scale: likewise.
    low: the least value that comes out, if there is one. The inverse does not
      clip.
    high: the greatest.
  """

  field: paths.Path
  offset: transforms.Numbers = 0.0
  scale: transforms.Numbers = 1.0
  low: transforms.Numbers = -np.inf
  high: transforms.Numbers = np.inf

  def transform(self, steps):
    def normalize(name, leaf):
      offset, scale = self._constants(name, leaf)
      return transforms.clip((leaf - offset) / scale, self.low, self.high, name)

    return paths.map_leaves(normalize, steps, self.field)

  def invert(self, steps):
    if not paths.contains(steps, self.field):
      return steps

    def unnormalize(name, leaf):
      offset, scale = self._constants(name, leaf)
      return leaf * scale + offset

    return paths.map_leaves(unnormalize, steps, self.field)

  def _constants(self, name, leaf):
    if not leaf.dtype.is_floating:
      raise ValueError(
          f'{name} is {leaf.dtype.name}. Only floats can be normalised: cast'
          ' it, or name the fields one by one.'
      )
    scale = transforms.constant(self.scale, leaf, name)
    return (
        transforms.constant(self.offset, leaf, name),
        tf.where(tf.math.is_finite(1 / scale), scale, tf.ones_like(scale)),
    )


def normalize_by_mean_std(
    statistics: statistics_lib.Statistics, field: paths.Path = rlds.OBSERVATION
) -> transforms.Compose:
  """Normalises to a mean of 0 and a standard deviation of 1.

  Args:
    statistics: of the data, from `compute_statistics`.
    field: the path of a leaf, or of several, all of which are normalised that
      `statistics` has and that are floats. Those that are not stay as they are,
      which is logged.

  Returns:
    A transform.

  Raises:
    ValueError: if `statistics` has no such field, or none of floats.
  """
  return transforms.Compose([
      NormalizeField(path, offset=found.mean, scale=found.std)
      for path, found in _select(statistics, field).items()
  ])


def normalize_by_quantiles(
    statistics: statistics_lib.Statistics,
    field: paths.Path = rlds.ACTION,
    *,
    low: float = 0.01,
    high: float = 0.99,
    clip: bool = True,
) -> transforms.Compose:
  """Normalises the range between two quantiles to [-1, 1].

  Args:
    statistics: of the data, from `compute_statistics`.
    field: see `normalize_by_mean_std`.
    low: the quantile that becomes -1; one of those in `statistics`. 0 is the
      minimum, which is exact.
    high: the quantile that becomes 1. 1 is the maximum.
    clip: whether what lies outside is clipped.

  Returns:
    A transform.

  Raises:
    ValueError: if `statistics` has no such field, none of floats, or no such
      quantile.
  """
  return transforms.Compose([
      _to_unit_range(path, found.quantile(low), found.quantile(high), clip)
      for path, found in _select(statistics, field).items()
  ])


def normalize_by_bounds(
    field: paths.Path,
    low: transforms.Numbers,
    high: transforms.Numbers,
    *,
    clip: bool = False,
) -> NormalizeField:
  """Normalises known bounds, for example of an action, to [-1, 1].

  Args:
    field: the path of a leaf.
    low: what becomes -1: one number, or an array that fits the leaf.
    high: what becomes 1.
    clip: whether what lies outside is clipped.

  Returns:
    A transform.
  """
  return _to_unit_range(field, np.asarray(low), np.asarray(high), clip)


def _to_unit_range(field, low, high, clip):
  return NormalizeField(
      field,
      offset=(low + high) / 2,
      scale=(high - low) / 2,
      low=-1.0 if clip else -np.inf,
      high=1.0 if clip else np.inf,
  )


def _select(statistics, field):
  """Returns the statistics of all float leaves at or below a path.

  Raises:
    ValueError: if there is none.
  """
  name = paths.name_of(field)
  selected = {
      path: found
      for path, found in statistics.fields.items()
      if path == name or path.startswith(f'{name}/')
  }
  if not selected:
    raise ValueError(
        f'There are no statistics of {name}, only of'
        f' {sorted(statistics.fields)}.'
    )
  others = [
      f'{path} ({found.dtype})'
      for path, found in selected.items()
      if not found.is_floating
  ]
  if len(others) == len(selected):
    raise ValueError(
        f'Only floats can be normalised, but there are {", ".join(others)}.'
        ' Cast them first, for example with the cast of a StepMapping.'
    )
  if others:
    logging.warning(
        'Not normalised, as they are not floats: %s.', ', '.join(others)
    )
  return {path: found for path, found in selected.items() if found.is_floating}
