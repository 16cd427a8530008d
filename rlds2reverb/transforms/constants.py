"""Converts numbers that a user gives to the dtype of the field."""

from typing import Optional, Sequence, Union

import numpy as np
import tensorflow as tf

# One number for the whole field, or an array that fits its last dimensions.
Numbers = Union[float, Sequence[float], np.ndarray]


def clip(
    leaf: tf.Tensor, low: Optional[Numbers], high: Optional[Numbers], name: str
) -> tf.Tensor:
  """Clips a leaf to `[low, high]`, in its own dtype.

  Args:
    leaf: numbers, with any leading dimensions.
    low: the least number that comes out, if there is one.
    high: the greatest number that comes out, if there is one.
    name: the path of the leaf, for the message of an error.

  Returns:
    The clipped leaf.

  Raises:
    ValueError: as `constant` does.
  """
  if low is not None:
    leaf = tf.maximum(leaf, constant(low, leaf, name))
  if high is not None:
    leaf = tf.minimum(leaf, constant(high, leaf, name))
  return leaf


def constant(numbers: Numbers, leaf: tf.Tensor, name: str) -> tf.Tensor:
  """Returns `numbers` as a tensor of the dtype of `leaf`.

  Args:
    numbers: one number, or an array that fits the last dimensions of `leaf`.
    leaf: the leaf with which they will be combined.
    name: the path of the leaf, for the message of an error.

  Raises:
    ValueError: if the leaf is of strings, if its dtype cannot hold the numbers,
      or if they do not fit its last dimensions.
  """
  array = np.asarray(numbers)
  if leaf.dtype == tf.string:
    raise ValueError(f'{name} must be numbers, but is {leaf.dtype.name}.')
  with np.errstate(over='ignore', invalid='ignore'):
    held = array.astype(leaf.dtype.as_numpy_dtype)
  # A float may be rounded, but it must not become infinite.
  wrong = (
      np.isfinite(array) & ~np.isfinite(held)
      if leaf.dtype.is_floating
      else array != held
  )
  if wrong.any():
    raise ValueError(
        f'{name} is {leaf.dtype.name}, which cannot hold {numbers}. Cast the'
        ' field to '
        + ('a wider dtype first.' if leaf.dtype.is_floating else 'float first.')
    )
  last = leaf.shape[leaf.shape.rank - array.ndim :]
  if array.ndim > leaf.shape.rank or not all(
      size == 1 or dim is None or size == dim
      for size, dim in zip(array.shape, last)
  ):
    raise ValueError(
        f'{name} has the shape {leaf.shape}, which numbers of the shape'
        f' {array.shape} do not fit.'
    )
  return tf.constant(held)
