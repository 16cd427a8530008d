"""Prioritized replay: the trainer says how much can be learnt from an item."""

import functools
import io
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import priority_tree
from rlds2reverb.replay.local import samplers

_GROUP = 16


class Prioritized(samplers.Sampler, tf.train.experimental.PythonState):
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
    self._population: Any = None
    self._highest = 0.0

  def identity(self):
    return f'Prioritized({self.alpha})'

  def attach(self, population: Any, priorities: np.ndarray) -> None:
    """Starts to keep the priorities of the items of a population.

    Args:
      population: a `Population` or a `FrameRing`.
      priorities: the priority of each of its slots, `[num_slots]`; 0 for those
        without an item.

    Raises:
      ValueError: if it keeps the priorities of another population already.
    """
    if self._population is not None:
      raise ValueError(
          'A Prioritized sampler keeps the priorities of one replay buffer.'
          ' Make another one for this replay buffer.'
      )
    self._population = population
    self._take(np.array(priorities, np.float64), priorities.max())

  def bind(self, population, process):
    if population is not self._population:
      priorities = population.priorities
      if priorities is None:
        priorities = np.ones(population.num_slots)
      checks.check_weights(priorities, name='priorities', of='item')
      self.attach(population, priorities)
    [seed] = process.seeds(1)
    # Random numbers for many batches take little longer than for one.
    places_of = functools.lru_cache(1)(
        lambda group, batch_size: samplers.fractions(
            seed, group * _GROUP, _GROUP, batch_size
        )
    )

    def draw(first, num_batches, batch_size):
      del num_batches  # Priorities may change after each batch.
      places = places_of(first // _GROUP, batch_size)[first % _GROUP]
      with population.lock:
        population.check_not_empty()
        total = self._tree.total
        if not total > 0:
          raise population_lib.SamplingError(
              'All priorities are 0, so that no item can be drawn.'
          )
        slots, weights = self._tree.find(places)
        items, priorities = population.items_in(slots), self._priorities[slots]
      return samplers.Draws(
          *[
              values[np.newaxis]
              for values in (items, weights / total, priorities)
          ]
      )

    return draw

  def update_keys(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Changes priorities; see `update`.

    Args:
      keys: the keys of items, uint64 `[B, L]` or `[B]`.
      priorities: their new priorities, `[B]`.
    """
    items = keys[:, 0] if keys.ndim == 2 else keys
    self.update(items.astype(np.int64), priorities.astype(np.float64))

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
      raise population_lib.SamplingError(
          'A priority must be a number from 0 up, but those of the items'
          f' {items[wrong][:16].tolist()} are'
          f' {priorities[wrong][:16].tolist()}.'
      )
    with self._population.lock:
      alive = self._population.alive(items)
      if not alive.all():
        items, priorities = items[alive], priorities[alive]
        highest = priorities.max(initial=0.0)
      self._set(self._population.slots(items), priorities)
      self._highest = max(self._highest, highest)

  def add(self, items: np.ndarray, priorities: Optional[np.ndarray]) -> None:
    """Takes new items.

    Args:
      items: the numbers of the items.
      priorities: their priorities. By default, the highest so far, or 1 if
        there was none above 0.
    """
    if priorities is None:
      priorities = np.full(len(items), self._highest or 1.0)
    self._highest = max(self._highest, priorities.max(initial=0.0))
    self._set(self._population.slots(items), priorities)

  def remove(self, items: np.ndarray) -> None:
    """Forgets items."""
    self._set(self._population.slots(items), np.zeros(len(items)))

  def min_priority(self) -> float:
    """Returns the least priority above 0 of all items."""
    with self._population.lock:
      if not self.alpha:
        return 1.0  # All weights are 1.
      return self._tree.minimum ** (1 / self.alpha)

  def serialize(self) -> bytes:
    """Returns the priorities, for a checkpoint."""
    file = io.BytesIO()
    with self._population.lock:
      np.savez(file, priorities=self._priorities, highest=self._highest)
    return file.getvalue()

  def deserialize(self, value: bytes) -> None:
    """Restores what `serialize` returned."""
    with np.load(io.BytesIO(value)) as saved:
      priorities, highest = saved['priorities'], saved['highest']
    with self._population.lock:
      if priorities.shape != self._priorities.shape:
        raise ValueError(
            f'The checkpoint has the priorities of {len(priorities)} items, but'
            f' this replay buffer has {len(self._priorities)}.'
        )
      self._take(priorities, highest)

  def _take(self, priorities, highest):
    self._priorities = priorities
    self._highest = float(highest)
    self._tree = priority_tree.PriorityTree(self._weights(priorities))

  def _weights(self, priorities):
    if self.alpha:
      return priorities**self.alpha
    return (priorities > 0).astype(np.float64)  # 0 to the power of 0 is 1.

  def _set(self, slots, priorities):
    self._priorities[slots] = priorities
    self._tree.update(slots, self._weights(priorities))
