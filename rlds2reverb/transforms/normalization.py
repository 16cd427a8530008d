"""Transforms that normalise fields by their statistics, and scale rewards."""

from typing import Optional, Tuple

from absl import logging
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import constants
from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.statistics import results
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

Mask = normalization.Mask


@base.configurable
class NormalizeField(values.FieldTransform):
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

  field: paths.Path
  offset: constants.Numbers = 0.0
  scale: constants.Numbers = 1.0
  low: Optional[constants.Numbers] = None
  high: Optional[constants.Numbers] = None
  mask: Mask = None

  def _change(self, steps, undo):
    scaling = normalization.Scaling(
        self.offset, self.scale, self.low, self.high, self.mask
    )
    scale = scaling.invert if undo else scaling.apply
    fn = lambda name, leaf: scale(leaf, name, tf)
    return paths.map_leaves(fn, steps, self.field)

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
    # The sum of two small integers need not fit their dtype.
    low, high = (
        bound if bound.dtype.kind == 'f' else bound.astype(np.float64)
        for bound in map(np.asarray, (low, high))
    )
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
      raise ValueError(
          f'The bounds of {paths.name_of(field)} must be finite, but are {low}'
          f' and {high}. Normalise the field by its statistics instead.'
      )
    return cls(field, *normalization.to_unit_range(low, high, clip, mask))


def normalize_by_statistics(
    statistics: results.Statistics,
    field: paths.Path,
    kind: str = 'mean_std',
    *,
    levels: Tuple[float, float] = (0.01, 0.99),
    clip: bool = True,
    mask: Mask = None,
) -> applying.Compose:
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
  checks.check_choice('kind', kind, normalization.KINDS)

  def normalize(path, found):
    known = vars(found)
    if kind == normalization.QUANTILES:
      known = dict(zip(('low', 'high'), map(found.quantile, levels)))
    scaling = normalization.scaling_of(kind, known, clip, mask)
    return NormalizeField(path, *scaling)

  found = _floats_of(statistics, field)
  return applying.Compose([normalize(*item) for item in found.items()])


def _floats_of(statistics, field):
  """Returns the statistics of all leaves of floats at or below a path.

  Raises:
    ValueError: if there are none, or if no number was found in one.
  """
  name, known = paths.name_of(field), statistics.fields
  below = {k: v for k, v in known.items() if f'{k}/'.startswith(f'{name}/')}
  floats = {path: one for path, one in below.items() if one.is_floating}
  others = [f'{k} ({v.dtype})' for k, v in below.items() if k not in floats]
  if not below:
    raise ValueError(
        f'There are no statistics of {name}, only of {sorted(known)}.'
    )
  if not floats:
    raise ValueError(
        f'Only floats can be normalised, but there are {", ".join(others)}.'
        ' Cast them first, for example with the cast of a StepMapping.'
    )
  if others:
    logging.warning(
        'Not normalised, as they are not floats: %s.', ', '.join(others)
    )
  for path, one in floats.items():
    if one.count.size and not one.count.any():
      raise ValueError(
          f'{path} cannot be normalised, as its statistics are those of no'
          f' numbers: the data had {statistics.num_episodes} episodes, with'
          f' {statistics.num_transitions} transitions. Were they all filtered'
          ' out?'
      )
  return floats


@base.configurable
class ScaleReward(values.FieldTransform):
  """Scales, shifts and clips the reward, in its own dtype.

  The new reward is `clip(scale * reward + shift, minimum, maximum)`. The reward
  of an episode's last step, which has no meaning, is changed as well. Where the
  reward is an integer of less than 64 bits, an InvalidArgumentError is raised,
  while the episodes are read, if the reward of a step that is not marked by
  `is_last` becomes a number that its dtype cannot hold.

  Attributes:
    scale: the factor by which the reward is multiplied, not 0.
    shift: the number that is then added.
    minimum: the least reward that comes out, if there is one.
    maximum: the greatest reward that comes out, if there is one.
  """

  scale: float = 1.0
  shift: float = 0.0
  minimum: Optional[float] = None
  maximum: Optional[float] = None

  field = rlds.REWARD

  def _change(self, steps, undo):
    def change(name, leaf):
      dtype = leaf.dtype
      scale, shift = (
          constants.constant(one, leaf, name)
          for one in (self.scale, self.shift)
      )
      if undo:
        return tf.cast((leaf - shift) / scale, dtype)
      is_last = tf.cast(steps.get(rlds.IS_LAST, False), tf.bool)
      if dtype.is_integer:
        # int64 has room for the product, which is clipped before the check.
        leaf, scale, shift = (
            tf.cast(one, tf.int64) for one in (leaf, scale, shift)
        )
      made = leaf * scale + shift
      made = constants.clip(made, self.minimum, self.maximum, name, tf)
      return _narrow(made, dtype, name, is_last) if dtype.is_integer else made

    return paths.map_leaves(change, steps, self.field)


def _narrow(made, dtype, name, is_last):
  """Casts integers to a narrower dtype, and checks all but the last step's.

  Raises:
    InvalidArgumentError: if the dtype cannot hold a number of another step.
  """
  if is_last.shape.rank > made.shape.rank:  # of shape (1,) in a step
    is_last = is_last[..., 0]
  used = tf.reshape(gathering.fill_unless(~is_last, made), [-1])
  outside = tf.boolean_mask(used, (used < dtype.min) | (used > dtype.max))
  message = (
      f'A scaled {name} must fit {dtype.name}, which holds {dtype.min} to'
      f' {dtype.max}. Clip it, or cast the field to a wider dtype first. It is:'
  )
  made = graphs.asserted(made, tf.size(outside) == 0, message, outside)
  return tf.cast(made, dtype)
