"""Weights that change; draws one in proportion to its size.

The weights are the leaves of a tree. An element of a level is the sum of a
block of the level below:

    top        |     10      |      7      |
    leaves     | 1  2  3  4  | 0  7  0  0  |

A draw goes down from the top, into the block in which a random fraction of the
sum lies. When weights change, the sums of their blocks are computed anew, so
errors of rounding do not add up.
"""

from typing import Optional, Tuple

import numpy as np

# With wider blocks there are fewer levels, and more weights to add up on each.
# The top is added up once for a batch, a block once for an item.
_BLOCK = 16
_MAX_TOP = 4096
# A product of rows and this matrix is their running sums. It takes a fraction
# of the time of `cumsum`.
_SUMS = np.triu(np.ones([_BLOCK, _BLOCK]))


class PriorityTree:
  """Weights `[N]` that change, the sum of all, and their least.

  Attributes:
    size: how many weights there are.
  """

  def __init__(self, weights: np.ndarray):
    """Creates the tree.

    Args:
      weights: numbers from 0 up, `[N]`.
    """
    self.size = len(weights)
    # The levels, from the leaves to the top. All but the top are in blocks,
    # `[M, _BLOCK]`.
    self._levels = []
    values = np.array(weights, np.float64)
    while len(values) > _MAX_TOP:
      padding = np.zeros(-len(values) % _BLOCK)
      blocks = np.concatenate([values, padding]).reshape([-1, _BLOCK])
      self._levels.append(blocks)
      values = blocks.sum(1)
    self._top = values
    # The least weight above 0 of each block of leaves. It is computed when it
    # is first asked for.
    self._minima: Optional[np.ndarray] = None

  def find(self, fractions: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Finds where fractions of the sum of all weights lie.

    Args:
      fractions: numbers in [0, 1), float64 `[B]`.

    Returns:
      The numbers of the weights in which they lie, int64 `[B]`, and these
      weights, float64 `[B]`. None of them is 0, unless all are.
    """
    sums = self._top.cumsum()
    left = _below(fractions * sums[-1], sums[-1])
    found = np.minimum(sums.searchsorted(left, 'right'), len(sums) - 1)
    weights = self._top.take(found)
    left += weights - sums.take(found)
    each = np.arange(0, len(found) * _BLOCK, _BLOCK)
    for level in reversed(self._levels):
      rows = level.take(found, axis=0, mode='clip')  # "raise" copies twice.
      sums = rows @ _SUMS  # [B, _BLOCK]
      left = _below(left, sums[:, -1])
      child = (sums > left[:, np.newaxis]).argmax(1)
      at = each + child
      weights = rows.take(at)
      left += weights - sums.take(at)
      found = found * _BLOCK + child
    return found, weights

  def update(self, numbers: np.ndarray, weights: np.ndarray) -> None:
    """Changes weights. The last one counts where a number is given twice.

    Args:
      numbers: which ones, int64 `[B]`.
      weights: the new weights, numbers from 0 up, float64 `[B]`.
    """
    at, values = numbers, weights
    for level in self._levels:
      level.reshape(-1)[at] = values
      at = at // _BLOCK
      values = level.take(at, axis=0, mode='clip') @ _SUMS[:, -1]
    self._top[at] = values
    if self._minima is not None and self._levels:
      at = numbers // _BLOCK
      self._minima[at] = _least(self._levels[0][at])

  @property
  def total(self) -> float:
    """The sum of all weights."""
    return self._top.sum()

  @property
  def minimum(self) -> float:
    """The least weight above 0; infinite if there is none."""
    if not self._levels:
      return _least(self._top[np.newaxis])[0]
    if self._minima is None:
      self._minima = _least(self._levels[0])
    return self._minima.min()


def _least(blocks):
  """Returns the least weight above 0 of each block."""
  return np.where(blocks > 0, blocks, np.inf).min(1)


def _below(values, limits):
  """Clips values to `[0, limit)`, which rounding may have exceeded."""
  values = np.minimum(values, limits * (1 - 1e-15))
  return np.maximum(values, 0.0, out=values)
