"""Transforms that normalize fields by their statistics, and scale rewards."""

from absl import logging
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.statistics import results
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values


@base.configurable
class NormalizeField(values.FieldTransform):
  """Normalizes a field to `(field - offset) / scale`, in its own dtype.

  Numbers that are constant in the data have a scale of 0: only the offset is
  subtracted, without a division. The same holds for a scale that is too small
  for the dtype to divide by.

  The inverse is `field * scale + offset`, without clipping.

  Attributes:
    field: the path of a leaf of floats, or of a field of several such leaves.
    offset: one number, or an array that broadcasts to the last dimensions.
    scale: one number, or an array that broadcasts to the last dimensions.
    low: the minimum after normalization. By default there is no clipping.
    high: the maximum after normalization.
    mask: bools that broadcast to the last dimensions: numbers where it is
      False, such as the gripper, are not normalized. By default all are.
  """

  field: paths.Path
  offset: normalization.Numbers = 0.0
  scale: normalization.Numbers = 1.0
  low: normalization.Numbers | None = None
  high: normalization.Numbers | None = None
  mask: normalization.Mask = None

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
      low: normalization.Numbers,
      high: normalization.Numbers,
      *,
      clip: bool = True,
      mask: normalization.Mask = None,
  ) -> 'NormalizeField':
    """Normalizes the range between two bounds of a field to [-1, 1].

    Use it for fields with known bounds, such as the actions of a robot.

    Args:
      field: the path of a leaf of floats.
      low: the number that becomes -1, or an array that broadcasts to the leaf.
      high: the number that becomes 1, or an array that broadcasts to the leaf.
      clip: whether to clip numbers to [-1, 1].
      mask: which numbers to normalize; see `NormalizeField`.

    Returns:
      The transform.

    Raises:
      ValueError: if a bound is not finite.
    """
    # Floats, because the sum of two small integers may overflow their dtype.
    low, high = (
        bound if bound.dtype.kind == 'f' else bound.astype(np.float64)
        for bound in map(np.asarray, (low, high))
    )
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
      raise ValueError(
          f'The bounds of {paths.name_of(field)} must be finite, but are {low}'
          f' and {high}. Normalize the field by its statistics instead.'
      )
    return cls(field, *normalization.to_unit_range(low, high, clip, mask))


def normalize_by_statistics(
    statistics: results.Statistics,
    field: paths.Path,
    kind: str = 'mean_std',
    *,
    levels: tuple[float, float] = (0.01, 0.99),
    clip: bool = True,
    mask: normalization.Mask = None,
) -> applying.Compose:
  """Normalizes a field by the statistics of a data set.

  Args:
    statistics: the statistics of the data, from `compute_statistics`.
    field: the path of the field. All leaves of floats at or below it are
      normalized. Other leaves are not changed, with a warning.
    kind: `"mean_std"`, to a mean of 0 and a standard deviation of 1;
      `"quantiles"`, the range between two quantiles to [-1, 1]; or `"bounds"`,
      the range between minimum and maximum of the data to [-1, 1].
    levels: the quantiles that become -1 and 1, two of those in `statistics`.
    clip: whether to clip ranges to [-1, 1].
    mask: which numbers to normalize; see `NormalizeField`.

  Returns:
    The transform.

  Raises:
    ValueError: if there is no such `kind`; if `statistics` has no such field,
      no number of it, or no such quantile; or if no leaf of the field has
      floats.
  """
  checks.check_choice('kind', kind, normalization.KINDS)

  def normalize(path, field_statistics):
    numbers = vars(field_statistics)
    if kind == normalization.QUANTILES:
      quantiles = map(field_statistics.quantile, levels)
      numbers = dict(zip(('low', 'high'), quantiles))
    scaling = normalization.make_scaling(kind, numbers, clip, mask)
    return NormalizeField(path, *scaling)

  floats = _find_floats(statistics, field)
  return applying.Compose([normalize(*item) for item in floats.items()])


def _find_floats(statistics, field):
  """Returns the statistics of all leaves of floats at or below a path.

  Raises:
    ValueError: if there are none, or one has no number.
  """
  name, all_fields = paths.name_of(field), statistics.fields
  leaves = {
      k: v for k, v in all_fields.items() if f'{k}/'.startswith(f'{name}/')
  }
  floats = {path: leaf for path, leaf in leaves.items() if leaf.is_floating}
  skipped = [f'{k} ({v.dtype})' for k, v in leaves.items() if k not in floats]
  if not leaves:
    raise ValueError(
        f'There are no statistics of {name}, only of {sorted(all_fields)}.'
    )
  if not floats:
    raise ValueError(
        f'Only floats can be normalized, not {", ".join(skipped)}. Cast the'
        ' field first, for example with the cast of a StepMapping.'
    )
  if skipped:
    logging.warning(
        'Not normalized, because they are not floats: %s.', ', '.join(skipped)
    )
  for path, leaf in floats.items():
    if leaf.count.size and not leaf.count.any():
      raise ValueError(
          f'{path} cannot be normalized, because its statistics have no'
          f' numbers: the data had {statistics.num_episodes} episodes with'
          f' {statistics.num_transitions} transitions. Check whether a filter'
          ' dropped them.'
      )
  return floats


@base.configurable
class ScaleReward(values.FieldTransform):
  """Scales, shifts and clips the reward, in its own dtype.

  The new reward is `clip(scale * reward + shift, minimum, maximum)`, also for
  the meaningless reward of an episode's last step. If the reward is an integer
  of less than 64 bits and a new reward exceeds its dtype, in a step that is not
  marked by `is_last`, an InvalidArgumentError is raised while the episodes are
  read.

  Attributes:
    scale: the factor, not 0.
    shift: the number to add after scaling.
    minimum: the minimum of the new reward, if there is one.
    maximum: the maximum of the new reward, if there is one.
  """

  scale: float = 1.0
  shift: float = 0.0
  minimum: float | None = None
  maximum: float | None = None

  field = rlds.REWARD

  def _change(self, steps, undo):
    def change(name, leaf):
      dtype = leaf.dtype
      scale = normalization.to_dtype_of(leaf, self.scale, name)
      shift = normalization.to_dtype_of(leaf, self.shift, name)
      if undo:
        return tf.cast((leaf - shift) / scale, dtype)
      is_last = tf.cast(steps.get(rlds.IS_LAST, False), tf.bool)
      if dtype.is_integer:
        # In int64, so that the product is clipped before it can overflow.
        leaf, scale, shift = (
            tf.cast(x, tf.int64) for x in (leaf, scale, shift)
        )
      scaled = normalization.clip(
          leaf * scale + shift, self.minimum, self.maximum, name, tf
      )
      if not dtype.is_integer:
        return scaled
      return _cast_integers(scaled, dtype, name, is_last)

    return paths.map_leaves(change, steps, self.field)


def _cast_integers(numbers, dtype, name, is_last):
  """Casts integers to a narrower dtype, and checks all but the last step.

  Raises:
    InvalidArgumentError: if a number of another step exceeds the dtype.
  """
  if is_last.shape.rank > numbers.shape.rank:  # of shape (1,) in a step
    is_last = is_last[..., 0]
  checked = tf.reshape(rows_lib.fill_unless(~is_last, numbers), [-1])
  outside = tf.boolean_mask(
      checked, (checked < dtype.min) | (checked > dtype.max)
  )
  message = (
      f'A scaled {name} must fit {dtype.name}, from {dtype.min} to {dtype.max}.'
      ' Clip it, or cast the field to a wider dtype first. It is:'
  )
  numbers = errors.assert_true(numbers, tf.size(outside) == 0, message, outside)
  return tf.cast(numbers, dtype)
