"""Converts numbers that a user gives to the dtype of a field.

A field is an array of NumPy, or a tensor. What is called `xp` is the module
that works on it, `numpy` or `tensorflow`; the functions that are used have the
same names in both.
"""

from typing import Any, Optional, Sequence, Union

import numpy as np

# One number for the whole field, or an array that fits its last dimensions.
Numbers = Union[float, Sequence[float], np.ndarray]


def is_floating(leaf: Any) -> bool:
  """Returns whether an array or a tensor is of floats."""
  if hasattr(leaf.dtype, 'is_floating'):
    return leaf.dtype.is_floating
  return np.issubdtype(leaf.dtype, np.floating)


def clip(
    leaf: Any,
    low: Optional[Numbers],
    high: Optional[Numbers],
    name: str,
    xp: Any,
) -> Any:
  """Clips a leaf to `[low, high]`, in its own dtype.

  Args:
    leaf: numbers, with any leading dimensions.
    low: the least number that comes out, if there is one.
    high: the greatest number that comes out, if there is one.
    name: the path of the leaf, for the message of an error.
    xp: `numpy` or `tensorflow`.

  Raises:
    ValueError: as `constant` does.
  """
  if low is not None:
    leaf = xp.maximum(leaf, constant(low, leaf, name))
  if high is not None:
    leaf = xp.minimum(leaf, constant(high, leaf, name))
  return leaf


def constant(numbers: Numbers, leaf: Any, name: str) -> np.ndarray:
  """Returns `numbers` in the dtype of `leaf`.

  Args:
    numbers: one number, or an array that fits the last dimensions of `leaf`.
    leaf: the array or tensor with which they will be combined.
    name: the path of the leaf, for the message of an error.

  Raises:
    ValueError: if the leaf is of strings, if its dtype cannot hold the numbers,
      or if they do not fit its last dimensions.
  """
  array = np.asarray(numbers)
  dtype = np.dtype(getattr(leaf.dtype, 'as_numpy_dtype', leaf.dtype))
  if dtype.kind == 'O':
    raise ValueError(f'{name} must be numbers, but is {leaf.dtype.name}.')
  is_float = is_floating(leaf)
  with np.errstate(over='ignore', invalid='ignore'):
    held = array.astype(dtype)
  # A float may be rounded, but it must not become infinite.
  lost = np.isfinite(array) & ~np.isfinite(held) if is_float else array != held
  if lost.any():
    raise ValueError(
        f'{name} is {leaf.dtype.name}, which cannot hold {numbers}. Cast the'
        f' field to {"a wider dtype" if is_float else "float"} first.'
    )
  rank = len(leaf.shape)
  if array.ndim > rank or not all(
      size == 1 or dim is None or size == dim
      for size, dim in zip(array.shape, leaf.shape[rank - array.ndim :])
  ):
    raise ValueError(
        f'{name} has the shape {leaf.shape}, which numbers of the shape'
        f' {array.shape} do not fit.'
    )
  return held
