"""Prioritized replay by a sum tree.

The leaves of the tree are the weights of items. A draw descends from the root
to the leaf in which a random fraction of the sum lies; `kernels` has the loops.
"""

import io
from typing import Any

from etils import epy
import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.store import items as store_items
from rlds2reverb.store import memory
from rlds2reverb.store import samplers

with epy.lazy_imports():
  from rlds2reverb.store import kernels

# The largest weight and the smallest sum that are not rescaled. Sums neither
# overflow nor lose digits between them.
_MAX_WEIGHT, _MIN_SUM = 2.0**900, 2.0**-900


class Prioritized(samplers.Sampler):
  """Draws items in proportion to a power of their priorities.

  Item `i` is drawn with the probability `p_i^alpha / sum_j p_j^alpha`, as in
  prioritized experience replay (Schaul et al., 2016). An item of priority 0 is
  never drawn. Priorities may be of any size: only their ratios count. A trainer
  updates the priorities of the items that it has seen:

      buffer = EpisodesReplayBuffer(rlds_data, sampler=Prioritized(alpha=0.6))
      for frames, info in buffer.as_dataset(256):
        weights = buffer.importance_weights(info, beta=0.4)
        ...  # loss, and the errors of each item
        buffer.update_priorities(info.key, tf.abs(td_errors) + 1e-6)

  All of it works in a `tf.function`, and in concurrent threads. Batches
  are not prefetched, so an update affects the next batch. The priorities become
  part of a `tf.train.Checkpoint` of the replay buffer.

  Attributes:
    alpha: the exponent of priorities.
  """

  is_synchronous = True

  def __init__(self, alpha: float = 0.6):
    """Creates the sampler.

    Args:
      alpha: the exponent of priorities: 0 draws uniformly, 1 in proportion.

    Raises:
      ValueError: if `alpha` is not a number from 0 up.
    """
    if not 0 <= alpha < np.inf:
      raise ValueError(f'alpha must be a number from 0 up, but is {alpha}.')
    self.alpha = alpha
    self._items: Any = None
    self._tree: Any = None
    self._highest = 0.0

  def identity(self):
    return f'Prioritized({self.alpha})'

  def attach(self, items: Any, priorities: np.ndarray) -> None:
    """Starts to manage the priorities of items.

    Args:
      items: an `ItemIndex` or a `FrameRing`.
      priorities: the priority of each slot, `[num_slots]`; 0 for slots without
        an item. Item `i` has the slot `i % num_slots`.

    Raises:
      ValueError: if the sampler manages other priorities already.
    """
    if self._items is not None:
      raise ValueError(
          'A Prioritized sampler keeps the priorities of one replay buffer.'
          ' Make another one for this replay buffer.'
      )
    self._items = items
    self._tree = SumTree(np.array(priorities, np.float64), self.alpha)
    self._highest = float(priorities.max())

  def bind(self, items, shard):
    if items is not self._items:
      priorities = items.priorities
      if priorities is None:
        priorities = np.ones(items.num_slots)
      checks.check_weights(priorities, name='priorities', of='item')
      self.attach(items, priorities)
    [seed] = shard.seeds(1)

    def draw(index, batch_size, num_batches=1):
      with items.lock:
        is_drawable = self._tree.prepare()
        store_items.check_drawable(is_drawable, items.num_items)
        first = samplers.first_draw(index, batch_size)
        count = num_batches * batch_size
        slots, *drawn = self._tree.draw(seed, first, count)
        if items.changes:
          slots = items.first + (slots - items.first) % items.num_slots
      return samplers.Draws(slots, *drawn)

    return draw

  def update(self, items: np.ndarray, priorities: np.ndarray) -> None:
    """Updates the priorities of items.

    Items that were overwritten since are ignored.

    Args:
      items: the item indices, int64 `[B]`.
      priorities: numbers from 0 up, float64 `[B]`.

    Raises:
      SamplingError: if a priority is negative, NaN or infinite, or if an item
        never existed. Nothing is changed then.
    """
    with self._items.lock:
      first, count = self._items.first, self._items.num_items
      highest = self._tree.update(items, priorities, first, count)
      if highest < 0:
        is_wrong = ~((priorities >= 0) & (priorities < np.inf))
        if is_wrong.any():
          raise store_items.SamplingError(
              'A priority must be a number from 0 up, but the items'
              f' {items[is_wrong][:16].tolist()} have'
              f' {priorities[is_wrong][:16].tolist()}.'
          )
        is_alive = store_items.alive(self._items, items)
        items, priorities = items[is_alive], priorities[is_alive]
        self._tree.set(items, priorities)
        highest = priorities.max(initial=0.0)
      self._highest = max(self._highest, highest)

  def add(self, first: int, end: int) -> None:
    """Adds items with the highest priority so far, or 1 if that is 0."""
    self._highest = self._highest or 1.0
    self._tree.set(np.arange(first, end), np.full(end - first, self._highest))

  def remove(self, first: int, end: int) -> None:
    """Removes items."""
    self._tree.set(np.arange(first, end), np.zeros(end - first))

  def min_priority(self) -> float:
    """Returns the smallest priority above 0 of all items."""
    with self._items.lock:
      return self._tree.min_priority

  def serialize(self) -> bytes:
    """Returns the priorities, for a checkpoint."""
    file = io.BytesIO()
    with self._items.lock:
      np.savez(
          file,
          priorities=self._tree.priorities,
          highest=self._highest,
          scale=self._tree.scale,
      )
    return file.getvalue()

  def deserialize(self, value: bytes) -> None:
    """Restores the result of `serialize`."""
    with np.load(io.BytesIO(value)) as saved:
      priorities, highest = saved['priorities'], saved['highest']
      scale = saved.get('scale', 1.0)
    with self._items.lock:
      if priorities.shape != (self._items.num_slots,):
        raise ValueError(
            f'The checkpoint has the priorities of {len(priorities)} items, but'
            f' this replay buffer has {self._items.num_slots}.'
        )
      self._tree = SumTree(priorities, self.alpha, float(scale))
      self._highest = float(highest)


class SumTree:
  """Priorities `[N]` that change, and the sums of their weights.

  A weight is `(priority / scale) ** alpha`. See `kernels.build_tree`.

  Attributes:
    scale: the divisor of priorities: 1, or the largest priority if weights
      would overflow or become too small.
  """

  def __init__(self, priorities: np.ndarray, alpha: float, scale: float = 1.0):
    """Builds the tree; see the attributes."""
    self.scale = scale
    self._alpha = alpha
    self._num_slots = len(priorities)
    # The levels above the leaves have 1, 1, 4, 16, ... groups of nodes.
    num_leaf_groups = max(-(-len(priorities) // 4), 1)
    first_leaf_group, size = 1, 1
    while size < num_leaf_groups:
      first_leaf_group, size = first_leaf_group + size, 4 * size
    # It is page-aligned, so a group is a cache line.
    self._nodes = memory.zeros(
        [first_leaf_group + num_leaf_groups, 2, 4], np.float64
    )
    self._leaves = self._nodes[first_leaf_group:, 1]
    self._leaves.flat[: len(priorities)] = priorities
    self._draw = kernels.draw_from_tree
    self._update = kernels.update_tree
    if self._build() > _MAX_WEIGHT:
      self._rescale()

  @property
  def priorities(self) -> np.ndarray:
    """A copy of the priorities, float64 `[N]`."""
    return self._leaves.flat[: self._num_slots]

  @property
  def total(self) -> float:
    """The sum of all weights."""
    return self._nodes.item(0, 0, 3)

  @property
  def min_priority(self) -> float:
    """The smallest priority with a weight above 0; infinite without any."""
    return self._nodes.item(0, 1, 3)

  def prepare(self) -> bool:
    """Returns whether anything can be drawn, and scales tiny weights up."""
    if self.total < _MIN_SUM and self._leaves.any():
      self._rescale()
    return self.total > 0

  def draw(
      self, seed: np.uint64, first: int, count: int
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws priorities in proportion to their weights.

    Args:
      seed: the start of a random stream.
      first: the position in the stream of the first draw.
      count: the number of draws.

    Returns:
      The indices of the priorities, int64 `[count]`; their probabilities and
      the priorities, float64 `[count]`. No priority is 0.
    """
    indices = np.empty(count, np.int64)
    probability, priority = np.empty(count), np.empty(count)
    self._draw(self._nodes, seed, first, indices, probability, priority)
    return indices, probability, priority

  def update(
      self, items: np.ndarray, priorities: np.ndarray, first: int, count: int
  ) -> float:
    """Changes priorities of items; see `kernels.update_tree`."""
    return self._update(
        self._nodes, self._num_slots, self._alpha, self.scale,
        _MAX_WEIGHT, items, priorities, first, count,
    )  # fmt: skip

  def set(self, items: np.ndarray, priorities: np.ndarray) -> None:
    """Sets valid priorities of items, whatever their weights."""
    if not len(items):
      return
    first, last = items.min(), items.max()
    if self.update(items, priorities, first, last - first + 1) < 0:
      self._leaves.flat[items % self._num_slots] = priorities
      self._rescale()

  def _build(self) -> float:
    """Computes all weights and sums, and returns the largest weight."""
    return kernels.build_tree(self._nodes, self._alpha, self.scale)

  def _rescale(self) -> None:
    """Builds the tree again so that the largest weight is 1."""
    self.scale = float(self._leaves.max(initial=0.0)) or 1.0
    self._build()
