"""Prioritized replay: a trainer says how much is to be learnt from each item."""

from typing import Optional

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
    self._tree: Optional[priority_tree.PriorityTree] = None
    self._priorities: Optional[tf.Variable] = None
    self._highest: Optional[tf.Variable] = None

  def bind(self, population, share):
    if self._tree is None:
      priorities = population.priorities
      if priorities is None:
        priorities = np.ones(population.num_items)
      if not np.any(priorities):
        raise ValueError('All priorities are 0, so that no item can be drawn.')
      self._priorities = tf.Variable(priorities, trainable=False)
      self._highest = tf.Variable(priorities.max(), trainable=False)
      self._tree = priority_tree.PriorityTree(
          np.where(priorities > 0, priorities**self.alpha, 0.0)
      )
    elif self._tree.size != population.num_items:
      raise ValueError(
          'A Prioritized sampler keeps the priorities of one replay buffer.'
          ' Make another one for this replay buffer.'
      )
    seed = share.seeds(1)[0]

    def draw(group, num_batches, batch_size):
      fractions = tf.random.stateless_uniform(
          [num_batches * batch_size],
          tf.stack([tf.constant(seed, tf.int64), group]),
          dtype=tf.float64,
          alg='philox',
      )
      total = self._tree.total
      with tf.control_dependencies([
          tf.debugging.Assert(
              total > 0,
              ['All priorities are 0, so that no item can be drawn.'],
          )
      ]):
        items, weights = self._tree.find(fractions)
      shape = [num_batches, batch_size]
      return samplers.Draws(
          tf.reshape(items, shape),
          tf.reshape(weights / total, shape),
          tf.reshape(self._priorities.sparse_read(items), shape),
      )

    return draw

  def update(self, items: tf.Tensor, priorities: tf.Tensor) -> None:
    """Changes the priorities of items.

    Args:
      items: the numbers of the items, int64 `[B]`.
      priorities: numbers from 0 up, float64 `[B]`.

    Raises:
      InvalidArgumentError: if a priority is negative, NaN or infinite. Nothing
        is changed then.
    """
    with tf.control_dependencies([
        tf.debugging.Assert(
            tf.reduce_all((priorities >= 0) & tf.math.is_finite(priorities)),
            [
                'A priority must be a number from 0 up. Items and priorities:',
                items,
                priorities,
            ],
            summarize=16,
        ),
        tf.debugging.Assert(
            tf.reduce_all((items >= 0) & (items < self._tree.size)),
            [
                'There is no item of this key. Keys are those of the SampleInfo'
                ' that came with a batch. Found:',
                items,
            ],
            summarize=16,
        ),
    ]):
      weights = tf.where(priorities > 0, priorities**self.alpha, 0.0)
    self._highest.assign(tf.maximum(self._highest, tf.reduce_max(priorities)))
    self._priorities.scatter_nd_update(items[:, tf.newaxis], priorities)
    self._tree.update(items, weights)

  def importance_weights(self, items: tf.Tensor, beta: float) -> tf.Tensor:
    """Returns what the gradient of each item is to be multiplied by.

    The weight of item `i` is `(p_i^alpha / p_min^alpha)^-beta`, which is 1 for
    the item that is drawn least. With priorities 1, 4, 9, 16, `alpha=0.5` and
    `beta=1` the weights are 1, 1/2, 1/3, 1/4.

    Args:
      items: the numbers of items, int64 `[B]`.
      beta: how much of the bias is corrected: 0 nothing, 1 all.

    Returns:
      float32 `[B]`.
    """
    powers = self._priorities.sparse_read(items) ** self.alpha
    ratio = powers / self._tree.minimum
    return tf.cast(ratio ** -tf.cast(beta, tf.float64), tf.float32)
