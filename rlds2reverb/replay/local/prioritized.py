"""Prioritized replay: the trainer says how much can be learnt from an item."""

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.replay.local import priority_tree
from rlds2reverb.replay.local import samplers


class Prioritized(samplers.Sampler, tf.Module):
  """Draws items in proportion to a power of their priorities.

  Item `i` is drawn with the probability `p_i^alpha / sum_j p_j^alpha`, as in
  prioritized experience replay (Schaul et al., 2016). An item of priority 0 is
  never drawn. A trainer updates the priorities of the items that it has seen:

      buffer = EpisodesReplayBuffer(rlds_data, sampler=Prioritized(alpha=0.6))
      for frames, info in buffer.as_dataset(256):
        weights = buffer.importance_weights(info.key, beta=0.4)
        ...  # loss, and the errors of each item
        buffer.update_priorities(info.key, tf.abs(td_errors))

  All of it works in a `tf.function`. Every batch is drawn when it is asked for,
  after the updates before it.
  """

  is_synchronous = True

  def __init__(self, alpha: float = 0.6):
    """Creates the sampler.

    Args:
      alpha: how much the priorities matter: 0 not at all, 1 in proportion.

    Raises:
      ValueError: if `alpha` is not a number from 0 up.
    """
    super().__init__()
    if not 0 <= alpha < np.inf:
      raise ValueError(f'alpha must be a number from 0 up, but is {alpha}.')
    self.alpha = alpha
    self._population: Any = None
    self._tree: Optional[priority_tree.PriorityTree] = None
    self._priorities: Optional[tf.Variable] = None
    self._highest: Optional[tf.Variable] = None

  def attach(self, population: Any, priorities: np.ndarray) -> None:
    """Takes the items whose priorities it keeps from now on.

    Args:
      population: a `Population` or a `FrameRing`.
      priorities: the priority of each of its slots, `[num_slots]`; 0 for those
        without an item.

    Raises:
      ValueError: if it keeps the priorities of other items already.
    """
    if self._population is not None:
      raise ValueError(
          'A Prioritized sampler keeps the priorities of one replay buffer.'
          ' Make another one for this replay buffer.'
      )
    self._population = population
    self._priorities = tf.Variable(priorities, trainable=False)
    self._highest = tf.Variable(
        priorities.max(), dtype=tf.float64, trainable=False
    )
    self._tree = priority_tree.PriorityTree(
        np.where(priorities > 0, priorities**self.alpha, 0.0)
    )

  def bind(self, population, share):
    if population is not self._population:
      priorities = population.priorities
      if priorities is None:
        priorities = np.ones(population.num_slots)
      samplers.check_weights(priorities, 'priorities', 'item')
      self.attach(population, priorities)
    seed = share.seeds(1)[0]

    def draw(group, num_batches, batch_size):
      fractions = samplers.fractions([num_batches * batch_size], seed, group)
      with tf.control_dependencies([population.size()]):
        total = self._tree.total
      check = tf.debugging.Assert(
          total > 0,
          ['All priorities are 0, so that no item can be drawn.'],
      )
      with tf.control_dependencies([check]):
        slots, weights = self._tree.find(fractions)
      shape = [num_batches, batch_size]
      return samplers.Draws(
          tf.reshape(population.items_in(slots), shape),
          tf.reshape(weights / total, shape),
          tf.reshape(self._priorities.sparse_read(slots), shape),
      )

    return draw

  def update(self, items: tf.Tensor, priorities: tf.Tensor) -> None:
    """Changes the priorities of items.

    Items that have made room for newer ones since are left out.

    Args:
      items: the numbers of the items, int64 `[B]`.
      priorities: numbers from 0 up, float64 `[B]`.

    Raises:
      InvalidArgumentError: if a priority is negative, NaN or infinite, or if
        there never was such an item. Nothing is changed then.
    """
    check = tf.debugging.Assert(
        tf.reduce_all((priorities >= 0) & tf.math.is_finite(priorities)),
        [
            'A priority must be a number from 0 up. Items and priorities:',
            items,
            priorities,
        ],
        summarize=16,
    )
    with tf.control_dependencies([check]):
      known = self._population.known(items)
    items = tf.boolean_mask(items, known)
    priorities = tf.boolean_mask(priorities, known)
    self._highest.assign(tf.maximum(self._highest, tf.reduce_max(priorities)))
    self._set(self._population.slots(items), priorities)

  def add(self, items: np.ndarray, priorities: Optional[np.ndarray]) -> None:
    """Takes new items.

    Args:
      items: the numbers of the items.
      priorities: their priorities. By default, the highest so far, or 1 if
        there was none above 0.
    """
    if priorities is None:
      priorities = np.full(len(items), self._highest.numpy() or 1.0)
    elif len(items):
      self._highest.assign(max(self._highest.numpy(), priorities.max()))
    slots = self._population.slots(tf.constant(items, tf.int64))
    self._set(slots, tf.constant(priorities, tf.float64))

  def remove(self, items: np.ndarray) -> None:
    """Forgets items."""
    slots = self._population.slots(tf.constant(items, tf.int64))
    self._set(slots, tf.zeros_like(slots, tf.float64))

  def importance_weights(self, items: tf.Tensor, beta: float) -> tf.Tensor:
    """Returns what the gradient of each item is to be multiplied by.

    The weight of item `i` is `(p_i^alpha / p_min^alpha)^-beta`, which is 1 for
    the item that is drawn least. With priorities 1, 4, 9, 16, `alpha=0.5` and
    `beta=1` the weights are 1, 1/2, 1/3, 1/4. The weight is also 1 for an item
    that cannot be drawn any more, because its priority is 0 now or because it
    has made room for newer ones.

    Args:
      items: the numbers of items, int64 `[B]`.
      beta: how much of the bias is corrected: 0 nothing, 1 all.

    Returns:
      float32 `[B]`.

    Raises:
      InvalidArgumentError: if there never was such an item.
    """
    known = self._population.known(items)
    slots = self._population.slots(tf.where(known, items, 0))
    priorities = tf.where(known, self._priorities.sparse_read(slots), 0.0)
    ratio = self._weights(priorities) / self._tree.minimum
    ratio = tf.maximum(ratio, 1.0)
    return tf.cast(ratio ** -tf.cast(beta, tf.float64), tf.float32)

  def _weights(self, priorities):
    return tf.where(priorities > 0, priorities**self.alpha, 0.0)

  @tf.function(reduce_retracing=True)
  def _set(self, slots, priorities):
    self._priorities.scatter_nd_update(slots[:, tf.newaxis], priorities)
    self._tree.update(slots, self._weights(priorities))
