"""Normalizes fields by their statistics, and inverts it.

    normalized = clip((field - offset) / scale, low, high)
    field      = normalized * scale + offset

`Scaling` works on NumPy arrays and tensors, `Normalizer` on nests of arrays.
`transforms.NormalizeField` does the same for steps.

A field is an array or a tensor. The argument `xp` is the module that works on
it, `numpy` or `tensorflow`; the functions used have the same names in both.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds2reverb.episodes import checks

# One number for the entire field, or an array that broadcasts to its last
# dimensions.
Numbers: TypeAlias = float | Sequence[float] | np.ndarray
Mask: TypeAlias = Sequence[bool] | np.ndarray | None

MEAN_STD, QUANTILES, BOUNDS = 'mean_std', 'quantiles', 'bounds'
# The statistics that each kind uses.
_STATISTICS = {
    MEAN_STD: ('mean', 'std'),
    QUANTILES: ('low', 'high'),
    BOUNDS: ('min', 'max'),
}
KINDS = tuple(_STATISTICS)


def is_floating(leaf: Any) -> bool:
  """Returns whether an array or a tensor has floats."""
  if hasattr(leaf.dtype, 'is_floating'):
    return leaf.dtype.is_floating
  return np.issubdtype(leaf.dtype, np.floating)


def to_dtype_of(leaf: Any, numbers: Numbers, name: str) -> np.ndarray:
  """Converts numbers from a user to the dtype of a leaf.

  Args:
    leaf: the array or tensor that is combined with the numbers.
    numbers: one number, or an array that broadcasts to the last dimensions.
    name: the path of the leaf, for errors.

  Raises:
    ValueError: if the leaf has strings, its dtype cannot represent the numbers,
      or they do not broadcast to its last dimensions.
  """
  array = np.asarray(numbers)
  dtype = np.dtype(getattr(leaf.dtype, 'as_numpy_dtype', leaf.dtype))
  if dtype.kind == 'O':
    raise ValueError(f'{name} must be numbers, but is {leaf.dtype.name}.')
  is_float = is_floating(leaf)
  with np.errstate(over='ignore', invalid='ignore'):
    cast = array.astype(dtype)
  # A float may be rounded, but must not become infinite.
  is_lost = (
      np.isfinite(array) & ~np.isfinite(cast) if is_float else array != cast
  )
  if is_lost.any():
    raise ValueError(
        f'{name} is {leaf.dtype.name}, which cannot represent {numbers}. Cast'
        f' the field to {"a wider dtype" if is_float else "float"} first.'
    )
  rank = len(leaf.shape)
  if array.ndim > rank or not all(
      size == 1 or dim is None or size == dim
      for size, dim in zip(array.shape, leaf.shape[rank - array.ndim :])
  ):
    raise ValueError(
        f'{name} has the shape {leaf.shape}, to which numbers of the shape'
        f' {array.shape} do not broadcast.'
    )
  return cast


def clip(
    leaf: Any,
    low: Numbers | None,
    high: Numbers | None,
    name: str,
    xp: Any,
) -> Any:
  """Clips a leaf to `[low, high]`, in its own dtype.

  Args:
    leaf: numbers, with any leading dimensions.
    low: the minimum, if there is one.
    high: the maximum, if there is one.
    name: the path of the leaf, for errors.
    xp: `numpy` or `tensorflow`.

  Raises:
    ValueError: as `to_dtype_of` does.
  """
  if low is not None:
    leaf = xp.maximum(leaf, to_dtype_of(leaf, low, name))
  if high is not None:
    leaf = xp.minimum(leaf, to_dtype_of(leaf, high, name))
  return leaf


class Scaling(NamedTuple):
  """The constants of a normalization; see `transforms.NormalizeField`."""

  offset: Numbers = 0.0
  scale: Numbers = 1.0
  low: Numbers | None = None
  high: Numbers | None = None
  mask: Mask = None

  def apply(self, leaf: Any, name: str, xp: Any = np) -> Any:
    """Normalizes a leaf of floats, in its own dtype.

    Args:
      leaf: an array or a tensor.
      name: its path, for errors.
      xp: `numpy` or `tensorflow`.

    Raises:
      ValueError: if the leaf does not have floats, or a constant does not fit.
    """
    offset, scale = self._get_constants(leaf, name)
    normalized = clip((leaf - offset) / scale, self.low, self.high, name, xp)
    return self._where_masked(normalized, leaf, name, xp)

  def invert(self, leaf: Any, name: str, xp: Any = np) -> Any:
    """Inverts `apply`, except for clipping."""
    offset, scale = self._get_constants(leaf, name)
    return self._where_masked(leaf * scale + offset, leaf, name, xp)

  def _get_constants(self, leaf, name):
    """Returns offset and scale; a scale of 0 or near it becomes 1."""
    if not is_floating(leaf):
      raise ValueError(
          f'{name} is {leaf.dtype.name}, but only floats can be normalized.'
          ' Cast it, or name the fields to normalize.'
      )
    scale = to_dtype_of(leaf, self.scale, name)
    with np.errstate(divide='ignore', over='ignore'):
      is_divisor = np.isfinite(np.ones_like(scale) / scale)
    scale = np.where(is_divisor, scale, np.ones_like(scale))
    return to_dtype_of(leaf, self.offset, name), scale

  def _where_masked(self, scaled, leaf, name, xp):
    if self.mask is None:
      return scaled
    # to_dtype_of checks that the mask broadcasts to the leaf.
    mask = to_dtype_of(leaf, np.asarray(self.mask, np.float32), name) > 0
    return xp.where(mask, scaled, leaf)


def to_unit_range(low: Any, high: Any, clip: bool, mask: Mask) -> Scaling:
  """Returns the scaling of the range from `low` to `high` to [-1, 1]."""
  bound = 1.0 if clip else None
  return Scaling(
      offset=(low + high) / 2,
      scale=(high - low) / 2,
      low=-bound if bound else None,
      high=bound,
      mask=mask,
  )


def make_scaling(
    kind: str, statistics: Mapping[str, Any], clip: bool, mask: Mask
) -> Scaling:
  """Returns the scaling of a kind of normalization.

  Args:
    kind: one of `KINDS`.
    statistics: the statistics of the field that the kind uses: `mean` and
      `std`, `min` and `max`, or the quantiles `low` and `high`.
    clip: whether to clip ranges to [-1, 1].
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
  """How to normalize a field, as `normalize_by_statistics` does.

  Attributes:
    kind: `'mean_std'`: to a mean of 0 and a standard deviation of 1.
      `'quantiles'`: the range between the quantiles 0.01 and 0.99 to [-1, 1],
      with clipping. `'bounds'`: the range between minimum and maximum.
    mask: one bool per number of the field; numbers where it is False, such as
      the gripper, are not normalized.
  """

  kind: str = MEAN_STD
  mask: Sequence[bool] | None = None

  def __post_init__(self):
    checks.check_choice('kind', self.kind, KINDS)


class Normalizer:
  """Normalizes fields of batches, and inverts it for the actions of a policy.

  It can be pickled, and does not need TensorFlow.

  Attributes:
    statistics: a dict from the path of each field to its mean, standard
      deviation, minimum, maximum and quantiles.
  """

  def __init__(
      self,
      fields: Mapping[str, Normalize],
      statistics: Mapping[str, Mapping[str, Any]],
  ):
    """Creates the normalizer.

    Args:
      fields: how to normalize each field, by its path.
      statistics: see the attribute.
    """
    self.statistics = dict(statistics)
    self._fields = dict(fields)

  def __call__(self, batch: Any) -> Any:
    """Returns the batch with normalized fields."""
    return self._map(Scaling.apply, batch)

  def invert(self, batch: Any) -> Any:
    """Inverts the normalization of fields, except for clipping.

    Args:
      batch: a nest with some of the fields, such as `{'action': ...}`: arrays,
        lists, or tensors in CPU memory.

    Returns:
      The same nest, with these fields as NumPy arrays.
    """
    return self._map(Scaling.invert, batch)

  def _map(self, scale, batch):
    for path, how in self._fields.items():
      scaling = make_scaling(how.kind, self.statistics[path], True, how.mask)

      def scale_leaf(leaf, path=path, scaling=scaling):
        # np.asarray also converts tensors of PyTorch and TensorFlow.
        return scale(scaling, np.asarray(leaf), path)

      batch = _map_leaf(scale_leaf, batch, path.split('/'))
    return batch

  # Checkpoints of iterators identify the normalizer by its repr.
  def __repr__(self):
    return f'Normalizer({self._fields!r}, {self.statistics!r})'


def _map_leaf(fn, nest, keys):
  """Returns the nest with `fn` applied to one leaf, if it exists."""
  if not keys:
    return fn(nest)
  if keys[0] not in nest:
    return nest
  return {**nest, keys[0]: _map_leaf(fn, nest[keys[0]], keys[1:])}
