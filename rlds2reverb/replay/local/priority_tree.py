"""Weights that change, of which one is drawn in proportion to its size.

The weights are the leaves of a tree. Every block of them is summed up in an
element of the level above:

    level 1    |     10      |      7      |  0   0
    level 0    | 1  2  3  4  | 0  7  0  0  |

To draw, one goes down from the top: into the block in which a random fraction
of the sum lies. To change weights, the sums of their blocks are computed anew,
so that errors of rounding do not add up.
"""

from typing import Tuple

import numpy as np
import tensorflow as tf

# Wider blocks make fewer levels, and more to add up on each.
_BLOCK = 64


class PriorityTree(tf.Module):
  """Weights `[N]` that change, the sum of all, and their least.

  Attributes:
    size: how many weights there are.
  """

  def __init__(self, weights: np.ndarray):
    """Creates the tree.

    Args:
      weights: numbers from 0 up, `[N]`.
    """
    super().__init__()
    self.size = len(weights)
    self._sums = _levels(np.asarray(weights, np.float64), np.sum, 0.0)
    self._minima = _levels(
        np.where(weights > 0, weights, np.inf), np.min, np.inf
    )

  def find(self, fractions: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Finds where fractions of the sum of all weights lie.

    Args:
      fractions: numbers in [0, 1), float64 `[B]`.

    Returns:
      The numbers of the weights in which they lie, int64 `[B]`, and these
      weights, float64 `[B]`. None of them is 0, unless all are.
    """
    blocks = tf.zeros_like(fractions, tf.int64)
    weights = tf.zeros_like(fractions)
    for level in reversed(self._sums):
      rows = level.sparse_read(blocks)  # [B, _BLOCK]
      sums = tf.cumsum(rows, axis=1)
      total = sums[:, -1]
      # A product may be rounded up to the sum itself, in which nothing lies.
      found = tf.minimum(fractions * total, total * (1 - 1e-15))
      child = tf.math.count_nonzero(
          sums <= found[:, tf.newaxis], axis=1, dtype=tf.int64
      )
      child = tf.minimum(child, _BLOCK - 1)
      weights = tf.gather(rows, child, batch_dims=1)
      before = tf.gather(sums, child, batch_dims=1) - weights
      fractions = tf.math.divide_no_nan(found - before, weights)
      fractions = tf.clip_by_value(fractions, 0.0, 1.0)
      blocks = blocks * _BLOCK + child
    return tf.minimum(blocks, self.size - 1), weights

  def update(self, numbers: tf.Tensor, weights: tf.Tensor) -> None:
    """Changes weights.

    Args:
      numbers: which ones, int64 `[B]`.
      weights: the new weights, numbers from 0 up, float64 `[B]`.
    """
    positive = tf.where(weights > 0, weights, np.inf)
    for levels, values, reduce in (
        (self._sums, weights, tf.reduce_sum),
        (self._minima, positive, tf.reduce_min),
    ):
      at = numbers
      for level, above in zip(levels, [*levels[1:], None]):
        blocks = at // _BLOCK
        level.scatter_nd_update(
            tf.stack([blocks, at % _BLOCK], 1), values
        )
        if above is not None:
          at, values = blocks, reduce(level.sparse_read(blocks), axis=1)

  @property
  def total(self) -> tf.Tensor:
    """The sum of all weights, float64 `[]`."""
    return tf.reduce_sum(self._sums[-1])

  @property
  def minimum(self) -> tf.Tensor:
    """The least weight above 0, float64 `[]`; infinite if there is none."""
    return tf.reduce_min(self._minima[-1])


def _levels(values, reduce, fill):
  """Returns the levels, variables `[M, _BLOCK]`, from the leaves to the top."""
  levels = []
  while True:
    padding = -len(values) % _BLOCK
    blocks = np.concatenate([values, np.full(padding, fill)]).reshape(
        [-1, _BLOCK]
    )
    levels.append(tf.Variable(blocks, trainable=False))
    if len(blocks) <= 1:
      return levels
    values = reduce(blocks, axis=1)
