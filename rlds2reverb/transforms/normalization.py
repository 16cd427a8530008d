"""Transforms that normalise fields by their statistics or bounds."""

import dataclasses
from typing import Optional, Sequence, Tuple, Union

from absl import logging
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.statistics import results
from rlds2reverb.transforms import base
from rlds2reverb.transforms import composing
from rlds2reverb.transforms import constants

# The ways to normalise by statistics, the same as in `random_access.Normalize`.
MEAN_STD, QUANTILES, BOUNDS = KINDS = ('mean_std', 'quantiles', 'bounds')
Mask = Optional[Union[Sequence[bool], np.ndarray]]


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class NormalizeField(base.EpisodeTransform):
  """Normalises a field to `(field - offset) / scale`, in its own dtype.

  Numbers that never vary in the data have a scale of 0. They are not divided,
  only shifted by the offset; the same holds for a scale that is too small for
  the dtype to divide by.

  The inverse is `field * scale + offset`, without any clipping.

  Attributes:
    field: the path of a leaf of floats, or of a field of several such leaves.
    offset: one number, or an array that fits the leaf's last dimensions.
    scale: one number, or an array that fits the leaf's last dimensions.
    low: the least number that comes out. By default nothing is clipped.
    high: the greatest number that comes out.
    mask: bools that fit the leaf's last dimensions: the numbers where it is
      False, such as a gripper's, stay as they are. By default all are
      normalised.
  """

  is_step_wise = True

  field: paths.Path
  offset: constants.Numbers = 0.0
  scale: constants.Numbers = 1.0
  low: Optional[constants.Numbers] = None
  high: Optional[constants.Numbers] = None
  mask: Mask = None

  def __post_init__(self):
    super().__post_init__()
    if self.mask is not None and np.asarray(self.mask).dtype != bool:
      raise ValueError(
          f'The mask of {paths.name_of(self.field)} must be bools, True where a'
          f' number is normalised, but is {self.mask}.'
      )

  def transform(self, steps):
    def normalize(name, leaf):
      offset, scale = self._constants(name, leaf)
      normalized = constants.clip(
          (leaf - offset) / scale, self.low, self.high, name
      )
      return self._where_masked(name, normalized, leaf)

    return paths.map_leaves(normalize, steps, self.field)

  def invert(self, steps):
    if not paths.contains(steps, self.field):
      return steps

    def unnormalize(name, leaf):
      offset, scale = self._constants(name, leaf)
      return self._where_masked(name, leaf * scale + offset, leaf)

    return paths.map_leaves(unnormalize, steps, self.field)

  def _where_masked(self, name, new, leaf):
    if self.mask is None:
      return new
    # This checks that the mask fits the leaf.
    mask = constants.constant(np.asarray(self.mask, np.float32), leaf, name) > 0
    return tf.where(mask, new, leaf)

  def _constants(self, name, leaf):
    if not leaf.dtype.is_floating:
      raise ValueError(
          f'{name} is {leaf.dtype.name}. Only floats can be normalised: cast'
          ' it, or name the fields one by one.'
      )
    scale = constants.constant(self.scale, leaf, name)
    return (
        constants.constant(self.offset, leaf, name),
        tf.where(tf.math.is_finite(1 / scale), scale, tf.ones_like(scale)),
    )

  @classmethod
  def between(
      cls,
      field: paths.Path,
      low: constants.Numbers,
      high: constants.Numbers,
      *,
      clip: bool = True,
      mask: Mask = None,
  ) -> 'NormalizeField':
    """Normalises the range between two bounds of a field to [-1, 1].

    Use it for fields whose bounds are known, such as the actions of a robot.

    Args:
      field: the path of a leaf of floats.
      low: the number that becomes -1, or an array that fits the leaf.
      high: the number that becomes 1, or an array that fits the leaf.
      clip: whether numbers outside of the range are clipped to -1 and 1.
      mask: which numbers are normalised; see `NormalizeField`.

    Returns:
      The transform.

    Raises:
      ValueError: if a bound is not finite.
    """
    bounds = []
    for bound in (low, high):
      bound = np.asarray(bound)
      if not np.isfinite(bound).all():
        raise ValueError(
            f'The bounds of {paths.name_of(field)} must be finite, but are'
            f' {low} and {high}. Normalise the field by its statistics instead.'
        )
      # The sum of two small integers need not fit their dtype.
      is_float = np.issubdtype(bound.dtype, np.floating)
      bounds.append(bound if is_float else bound.astype(np.float64))
    return _to_unit_range(field, bounds[0], bounds[1], clip, mask)


def normalize_by_statistics(
    statistics: results.Statistics,
    field: paths.Path,
    kind: str = 'mean_std',
    *,
    levels: Tuple[float, float] = (0.01, 0.99),
    clip: bool = True,
    mask: Mask = None,
) -> composing.Compose:
  """Normalises a field by the statistics of a data set.

  Args:
    statistics: the statistics of the data, from `compute_statistics`.
    field: the path of the field. All leaves of floats at or below it are
      normalised. Others stay as they are, with a warning.
    kind: `"mean_std"`, to a mean of 0 and a standard deviation of 1;
      `"quantiles"`, the range between two quantiles to [-1, 1]; or `"bounds"`,
      that from the least number of the data to the greatest one.
    levels: the quantiles that become -1 and 1, two of those in `statistics`.
    clip: whether numbers outside of a range are clipped to -1 and 1.
    mask: which numbers are normalised; see `NormalizeField`.

  Returns:
    The transform.

  Raises:
    ValueError: if `kind` is not one of these; if `statistics` has no such
      field or found no number in it, or has no such quantile; or if no leaf of
      the field is of floats.
  """
  checks.check_choice('kind', kind, KINDS)
  low, high = levels if kind == QUANTILES else (0.0, 1.0)

  def normalize(path, found):
    if kind == MEAN_STD:
      return NormalizeField(path, offset=found.mean, scale=found.std, mask=mask)
    return _to_unit_range(
        path, found.quantile(low), found.quantile(high), clip, mask
    )

  return composing.Compose(
      [normalize(*item) for item in _select(statistics, field).items()]
  )


def _to_unit_range(field, low, high, clip, mask):
  return NormalizeField(
      field,
      offset=(low + high) / 2,
      scale=(high - low) / 2,
      low=-1.0 if clip else None,
      high=1.0 if clip else None,
      mask=mask,
  )


def _select(statistics, field):
  """Returns the statistics of all leaves of floats at or below a path.

  Raises:
    ValueError: if there are none, or if no number was found in one.
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
  selected = {
      path: found for path, found in selected.items() if found.is_floating
  }
  for path, found in selected.items():
    if found.count.size and not found.count.any():
      raise ValueError(
          f'{path} cannot be normalised, as its statistics are those of no'
          f' numbers: the data had {statistics.num_episodes} episodes, with'
          f' {statistics.num_transitions} transitions. Were they all filtered'
          ' out?'
      )
  return selected
