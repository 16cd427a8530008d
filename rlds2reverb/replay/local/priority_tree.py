"""Weights that change, of which one is drawn in proportion to its size.

The weights are the leaves of a tree. Every block of them is summed up in an
element of the level above:

    top        |     10      |      7      |
    leaves     | 1  2  3  4  | 0  7  0  0  |

To draw, one goes down from the top: into the block in which a random fraction
of the sum lies. To change weights, the sums of their blocks are computed anew,
so that errors of rounding do not add up.
"""

from typing import Tuple

import numpy as np
import tensorflow as tf

# Wider blocks make fewer levels, and more to add up on each. The top is added
# up once a batch, and a block once an item.
_BLOCK = 16
_MAX_TOP = 4096
_WITHIN = np.arange(_BLOCK)


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
    top = self._sums[-1].read_value()
    sums = tf.cumsum(top)
    found = _below(fractions * sums[-1], sums[-1])
    blocks = tf.searchsorted(sums, found, 'right', tf.int64)
    blocks = tf.minimum(blocks, top.shape[0] - 1)
    weights = tf.gather(top, blocks)
    found -= tf.gather(sums, blocks) - weights
    for level in reversed(self._sums[:-1]):
      rows = tf.gather(level, blocks[:, tf.newaxis] * _BLOCK + _WITHIN)
      sums = tf.cumsum(rows, axis=1)  # [B, _BLOCK]
      found = _below(found, sums[:, -1])
      child = tf.searchsorted(sums, found[:, tf.newaxis], 'right')[:, 0]
      child = tf.minimum(child, _BLOCK - 1)
      weights = tf.gather(rows, child, batch_dims=1)
      found -= tf.gather(sums, child, batch_dims=1) - weights
      blocks = blocks * _BLOCK + tf.cast(child, tf.int64)
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
        level.scatter_nd_update(at[:, tf.newaxis], values)
        if above is not None:
          at //= _BLOCK
          blocks = tf.gather(level, at[:, tf.newaxis] * _BLOCK + _WITHIN)
          values = reduce(blocks, axis=1)

  @property
  def total(self) -> tf.Tensor:
    """The sum of all weights, float64 `[]`."""
    return tf.reduce_sum(self._sums[-1])

  @property
  def minimum(self) -> tf.Tensor:
    """The least weight above 0, float64 `[]`; infinite if there is none."""
    return tf.reduce_min(self._minima[-1])


def _below(values, limits):
  """Returns values in `[0, limit)`; rounding may have made them larger."""
  return tf.maximum(tf.minimum(values, limits * (1 - 1e-15)), 0.0)


def _levels(values, reduce, fill):
  """Returns the levels as variables `[M]`, from the leaves to the top."""
  levels = []
  while len(values) > _MAX_TOP:
    padding = np.full(-len(values) % _BLOCK, fill)
    values = np.concatenate([values, padding])
    levels.append(tf.Variable(values, trainable=False))
    values = reduce(values.reshape([-1, _BLOCK]), axis=1)
  return [*levels, tf.Variable(values, trainable=False)]
