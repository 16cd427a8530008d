"""The moments of the columns of a stream of rows, merged block by block."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Moments(NamedTuple):
  """The moments of the finite numbers of each column.

  Attributes:
    count: float64 `[D]`: how many there are.
    mean: float64 `[D]`: their mean.
    squares: float64 `[D]`: the sum of their squared differences from the mean.
    min: float64 `[D]`: the least of them.
    max: float64 `[D]`: the greatest of them.
    rows: int64 `[]`: the number of all rows.
  """

  count: tf.Tensor
  mean: tf.Tensor
  squares: tf.Tensor
  min: tf.Tensor
  max: tf.Tensor
  rows: tf.Tensor


def none(width: int) -> Moments:
  """Returns the moments of no rows of `width` columns."""
  zeros = tf.zeros([width], tf.float64)
  return Moments(
      zeros,
      zeros,
      zeros,
      zeros + np.inf,
      zeros - np.inf,
      tf.constant(0, tf.int64),
  )


def merge(one: Moments, other: Moments) -> Moments:
  """Returns the moments of the rows of both.

  It is the method of Chan, Golub and LeVeque (1979), which stays exact where
  the mean is far greater than the deviation.
  """
  count = one.count + other.count
  share = tf.math.divide_no_nan(other.count, count)
  delta = other.mean - one.mean
  return Moments(
      count,
      one.mean + delta * share,
      one.squares + other.squares + delta**2 * one.count * share,
      tf.minimum(one.min, other.min),
      tf.maximum(one.max, other.max),
      one.rows + other.rows,
  )


def of_block(block: tf.Tensor) -> Moments:
  """Returns the moments of a block of rows, float64 `[B, D]`."""
  is_finite = tf.math.is_finite(block)
  count = tf.reduce_sum(tf.cast(is_finite, tf.float64), 0)
  total = tf.reduce_sum(tf.where(is_finite, block, 0.0), 0)
  mean = tf.math.divide_no_nan(total, count)
  return Moments(
      count,
      mean,
      tf.reduce_sum(tf.where(is_finite, block - mean, 0.0) ** 2, 0),
      tf.reduce_min(tf.where(is_finite, block, np.inf), 0),
      tf.reduce_max(tf.where(is_finite, block, -np.inf), 0),
      tf.shape(block, tf.int64)[0],
  )
