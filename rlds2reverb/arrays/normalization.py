"""Normalises fields by their statistics, and undoes it.

    normalized = clip((field - offset) / scale, low, high)
    field      = normalized * scale + offset

`Scaling` works on arrays of NumPy and on tensors, `Normalizer` on nests of
arrays. `transforms.NormalizeField` is its counterpart for steps.
"""

import dataclasses
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from rlds2reverb.arrays import constants
from rlds2reverb.episodes import checks

Mask = Optional[Union[Sequence[bool], np.ndarray]]

MEAN_STD, QUANTILES, BOUNDS = 'mean_std', 'quantiles', 'bounds'
# The statistics by which each kind normalises.
_STATISTICS = {
    MEAN_STD: ('mean', 'std'),
    QUANTILES: ('low', 'high'),
    BOUNDS: ('min', 'max'),
}
KINDS = tuple(_STATISTICS)


class Scaling(NamedTuple):
  """How a field is normalised; see `transforms.NormalizeField`."""

  offset: constants.Numbers = 0.0
  scale: constants.Numbers = 1.0
  low: Optional[constants.Numbers] = None
  high: Optional[constants.Numbers] = None
  mask: Mask = None

  def apply(self, leaf: Any, name: str, xp: Any = np) -> Any:
    """Returns a leaf of floats normalised, in its own dtype.

    Args:
      leaf: an array or a tensor.
      name: its path, for the message of an error.
      xp: `numpy` or `tensorflow`.

    Raises:
      ValueError: if the leaf is not of floats, or a constant does not fit.
    """
    offset, scale = self._constants(leaf, name)
    normalized = constants.clip(
        (leaf - offset) / scale, self.low, self.high, name, xp
    )
    return self._where_masked(normalized, leaf, name, xp)

  def invert(self, leaf: Any, name: str, xp: Any = np) -> Any:
    """Undoes `apply`, except for clipping."""
    offset, scale = self._constants(leaf, name)
    return self._where_masked(leaf * scale + offset, leaf, name, xp)

  def _constants(self, leaf, name):
    if not constants.is_floating(leaf):
      raise ValueError(
          f'{name} is {leaf.dtype.name}. Only floats can be normalised: cast'
          ' it, or name the fields one by one.'
      )
    scale = constants.constant(self.scale, leaf, name)
    with np.errstate(divide='ignore', over='ignore'):
      divides = np.isfinite(np.ones_like(scale) / scale)
    scale = np.where(divides, scale, np.ones_like(scale))
    return constants.constant(self.offset, leaf, name), scale

  def _where_masked(self, new, leaf, name, xp):
    if self.mask is None:
      return new
    # This checks that the mask fits the leaf.
    mask = constants.constant(np.asarray(self.mask, np.float32), leaf, name) > 0
    return xp.where(mask, new, leaf)


def to_unit_range(low: Any, high: Any, clip: bool, mask: Mask) -> Scaling:
  """Returns the scaling of a range to [-1, 1]."""
  ends = (-1.0, 1.0) if clip else (None, None)
  return Scaling((low + high) / 2, (high - low) / 2, *ends, mask)


def scaling_of(
    kind: str, statistics: Mapping[str, Any], clip: bool, mask: Mask
) -> Scaling:
  """Returns the scaling of a kind.

  Args:
    kind: one of `KINDS`.
    statistics: the statistics of the field that the kind needs, by their names:
      `mean`, `std`, `min`, `max`, and the quantiles `low` and `high`.
    clip: whether numbers outside of a range are clipped to -1 and 1.
    mask: see `transforms.NormalizeField`.
  """
  first, second = (
      np.asarray(statistics[name], np.float64) for name in _STATISTICS[kind]
  )
  if kind == MEAN_STD:
    return Scaling(first, second, mask=mask)
  return to_unit_range(first, second, clip, mask)


@dataclasses.dataclass(frozen=True)
class Normalize:
  """Says how a field is normalised.

  Attributes:
    kind: `'mean_std'`: to a mean of 0 and a standard deviation of 1.
      `'quantiles'`: the range between the quantiles 0.01 and 0.99 to [-1, 1],
      and clipped to it. `'bounds'`: the range between the least and the
      greatest number. As `normalize_by_statistics`.
    mask: bools, one for each number of the field: numbers where it is False,
      such as a gripper's, are left unchanged.
  """

  kind: str = MEAN_STD
  mask: Optional[Sequence[bool]] = None

  def __post_init__(self):
    checks.check_choice('kind', self.kind, KINDS)


class Normalizer:
  """Normalises fields of batches, and undoes it for a policy's actions.

  It pickles, and needs no TensorFlow.

  Attributes:
    statistics: by the path of each field, its mean, standard deviation, least
      and greatest number and quantiles.
  """

  def __init__(
      self,
      fields: Mapping[str, Normalize],
      statistics: Mapping[str, Mapping[str, Any]],
  ):
    """Creates the normaliser.

    Args:
      fields: how each field is normalised, by its path.
      statistics: see the attribute.
    """
    self.statistics = dict(statistics)
    self._fields = dict(fields)

  def __call__(self, batch: Any) -> Any:
    """Returns a batch whose fields are normalised."""
    return self._map(Scaling.apply, batch)

  def invert(self, batch: Any) -> Any:
    """Undoes the normalisation of fields, except for clipping.

    Args:
      batch: a nest of some of the fields, such as `{'action': ...}`: arrays,
        lists, or tensors that are in the memory of the CPU.

    Returns:
      The same nest, with NumPy arrays in place of these fields.
    """
    return self._map(Scaling.invert, batch)

  def _map(self, change, batch):
    for path, how in self._fields.items():
      scaling = scaling_of(how.kind, self.statistics[path], True, how.mask)
      batch = _replace(
          batch,
          path.split('/'),
          # A tensor of PyTorch's or TensorFlow's is made an array, too.
          lambda leaf: change(scaling, np.asarray(leaf), path),  # pylint: disable=cell-var-from-loop
      )
    return batch

  # The state of an iterator of batches says by this what they were made with.
  def __repr__(self):
    return f'Normalizer({self._fields!r}, {self.statistics!r})'


def _replace(nest, keys, change):
  """Returns a nest in which one leaf is changed, if it is there."""
  if not keys:
    return change(nest)
  if keys[0] not in nest:
    return nest
  return {**nest, keys[0]: _replace(nest[keys[0]], keys[1:], change)}
