"""Prioritized replay: the trainer says how much can be learnt from an item.

The weights are the leaves of a tree. An element of a level is the sum of a
block of the level below:

    top        |     10      |      7      |
    leaves     | 1  2  3  4  | 0  7  0  0  |

A draw goes down from the top, into the block in which a random fraction of the
sum lies. When weights change, the sums of their blocks are computed anew, so
errors of rounding do not add up.
"""

import functools
import io
from typing import Any, Tuple

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.store import items as items_lib
from rlds2reverb.store import samplers

# Random numbers for many batches take little longer than for one.
_GROUP = 16
# With wider blocks there are fewer levels, and more weights to add up on each.
# The top is added up once for a batch, a block once for an item.
_BLOCK = 16
_MAX_TOP = 4096
# A product of rows and this matrix is their running sums. It takes a fraction
# of the time of `cumsum`.
_SUMS = np.triu(np.ones([_BLOCK, _BLOCK]))


class Prioritized(samplers.Sampler):
  """Draws items in proportion to a power of their priorities.

  Item `i` is drawn with the probability `p_i^alpha / sum_j p_j^alpha`, as in
  prioritized experience replay (Schaul et al., 2016). An item of priority 0 is
  never drawn. A trainer updates the priorities of the items that it has seen:

      buffer = EpisodesReplayBuffer(rlds_data, sampler=Prioritized(alpha=0.6))
      for frames, info in buffer.as_dataset(256):
        weights = buffer.importance_weights(info, beta=0.4)
        ...  # loss, and the errors of each item
        buffer.update_priorities(info.key, tf.abs(td_errors))

  All of it works in a `tf.function`, and in several threads at once. Every
  batch is drawn when it is asked for, after the updates before it. The
  priorities become part of a `tf.train.Checkpoint` of the replay buffer.

  Attributes:
    alpha: how much the priorities matter.
  """

  is_synchronous = True

  def __init__(self, alpha: float = 0.6):
    """Creates the sampler.

    Args:
      alpha: how much the priorities matter: 0 not at all, 1 in proportion.

    Raises:
      ValueError: if `alpha` is not a number from 0 up.
    """
    if not 0 <= alpha < np.inf:
      raise ValueError(f'alpha must be a number from 0 up, but is {alpha}.')
    self.alpha = alpha
    self._items: Any = None
    self._highest = 0.0

  def identity(self):
    return f'Prioritized({self.alpha})'

  def attach(self, items: Any, priorities: np.ndarray) -> None:
    """Starts to keep the priorities of items.

    Args:
      items: an `ItemIndex` or a `FrameRing`.
      priorities: the priority of each of its slots, `[num_slots]`; 0 for those
        without an item. Item `i` has the slot `i % num_slots`.

    Raises:
      ValueError: if it keeps the priorities of others already.
    """
    if self._items is not None:
      raise ValueError(
          'A Prioritized sampler keeps the priorities of one replay buffer.'
          ' Make another one for this replay buffer.'
      )
    self._items = items
    self._take(np.array(priorities, np.float64), priorities.max())

  def bind(self, items, process):
    if items is not self._items:
      priorities = items.priorities
      if priorities is None:
        priorities = np.ones(items.num_slots)
      checks.check_weights(priorities, name='priorities', of='item')
      self.attach(items, priorities)
    [seed] = process.seeds(1)
    places_of = functools.lru_cache(1)(
        lambda group, batch_size: samplers.fractions(
            seed, group * _GROUP, _GROUP, batch_size
        )
    )

    def draw(first, num_batches, batch_size):
      del num_batches  # Priorities may change after each batch.
      places = places_of(first // _GROUP, batch_size)[first % _GROUP]
      with items.lock:
        slots, weights, total = self._tree.find(places)
        items_lib.check_drawable(total > 0, items.num_items)
        found = items.first + (slots - items.first) % items.num_slots
        drawn = found, weights / total, self._priorities[slots]
      return samplers.Draws(*[values[np.newaxis] for values in drawn])

    return draw

  def update(self, items: np.ndarray, priorities: np.ndarray) -> None:
    """Changes the priorities of items.

    Items that were overwritten by newer ones since are left out.

    Args:
      items: the numbers of the items, int64 `[B]`.
      priorities: numbers from 0 up, float64 `[B]`.

    Raises:
      SamplingError: if a priority is negative, NaN or infinite, or if there
        never was such an item. Nothing is changed then.
    """
    highest = priorities.max(initial=0.0)
    if not (priorities.min(initial=0.0) >= 0 and highest < np.inf):
      wrong = ~(priorities >= 0) | np.isinf(priorities)
      raise items_lib.SamplingError(
          'A priority must be a number from 0 up, but those of the items'
          f' {items[wrong][:16].tolist()} are'
          f' {priorities[wrong][:16].tolist()}.'
      )
    with self._items.lock:
      alive = items_lib.alive(self._items, items)
      if not alive.all():
        items, priorities = items[alive], priorities[alive]
        highest = priorities.max(initial=0.0)
      self.set(items, priorities)
      self._highest = max(self._highest, highest)

  def add(self, items: np.ndarray) -> None:
    """Takes new items, with the highest priority so far, or 1 if that is 0."""
    self._highest = self._highest or 1.0
    self.set(items, self._highest)

  def set(self, items: np.ndarray, priorities: Any) -> None:
    """Changes the priorities of items; 0 for those that go."""
    slots = items % self._items.num_slots
    self._priorities[slots] = priorities
    self._tree.update(slots, self._weights(self._priorities[slots]))

  def min_priority(self) -> float:
    """Returns the least priority above 0 of all items."""
    with self._items.lock:
      # If alpha is 0, all weights are 1.
      return self._tree.minimum ** (1 / self.alpha) if self.alpha else 1.0

  def serialize(self) -> bytes:
    """Returns the priorities, for a checkpoint."""
    file = io.BytesIO()
    with self._items.lock:
      np.savez(file, priorities=self._priorities, highest=self._highest)
    return file.getvalue()

  def deserialize(self, value: bytes) -> None:
    """Restores what `serialize` returned."""
    with np.load(io.BytesIO(value)) as saved:
      priorities, highest = saved['priorities'], saved['highest']
    with self._items.lock:
      if priorities.shape != self._priorities.shape:
        raise ValueError(
            f'The checkpoint has the priorities of {len(priorities)} items, but'
            f' this replay buffer has {len(self._priorities)}.'
        )
      self._take(priorities, highest)

  def _take(self, priorities, highest):
    self._priorities, self._highest = priorities, float(highest)
    self._tree = PriorityTree(self._weights(priorities))

  def _weights(self, priorities):
    return priorities**self.alpha * (priorities > 0)


class PriorityTree:
  """Weights `[N]` that change, the sum of all, and their least."""

  def __init__(self, weights: np.ndarray):
    """Creates the tree.

    Args:
      weights: numbers from 0 up, `[N]`.
    """
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
    # The least weight of each block of leaves, once it has been asked for.
    self._leaves = self._levels[0] if self._levels else values[np.newaxis]
    self._minima = np.zeros(len(self._leaves))
    self._is_stale = np.ones(len(self._leaves), bool)

  def find(self, fractions: np.ndarray) -> Tuple[np.ndarray, np.ndarray, float]:
    """Finds where fractions of the sum of all weights lie.

    Args:
      fractions: numbers in [0, 1), float64 `[B]`.

    Returns:
      The numbers of the weights in which they lie, int64 `[B]`; these weights,
      float64 `[B]`, none of which is 0, unless all are; and the sum of all.
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
    return found, weights, self._top.sum()

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
    self._is_stale[numbers // self._leaves.shape[1]] = True

  @property
  def minimum(self) -> float:
    """The least weight above 0; infinite if there is none."""
    stale = np.flatnonzero(self._is_stale)
    leaves = self._leaves[stale]
    leaves = np.where(leaves > 0, leaves, np.inf)
    self._minima[stale] = leaves.min(1, initial=np.inf)
    self._is_stale[stale] = False
    return self._minima.min(initial=np.inf)


def _below(values, limits):
  """Clips values to `[0, limit)`, which rounding may have exceeded."""
  values = np.minimum(values, limits * (1 - 1e-15))
  return np.maximum(values, 0.0, out=values)
