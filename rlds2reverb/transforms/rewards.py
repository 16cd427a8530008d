"""The transform that scales, shifts and clips rewards."""

import dataclasses
from typing import Optional

import gin
import tensorflow as tf

from rlds2reverb.arrays import constants
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ScaleReward(base.EpisodeTransform):
  """Scales, shifts and clips the reward, in its own dtype.

  The new reward is `clip(scale * reward + shift, minimum, maximum)`. The reward
  of an episode's last step, which has no meaning, is changed as well. Where the
  reward is an integer of less than 64 bits, an InvalidArgumentError is raised,
  while the episodes are read, if the reward of a step that is not marked by
  `is_last` becomes a number that its dtype cannot hold.

  Attributes:
    scale: the factor by which the reward is multiplied, not 0.
    shift: the number that is then added.
    minimum: the least reward that comes out, if there is one.
    maximum: the greatest reward that comes out, if there is one.
  """

  is_step_wise = True

  scale: float = 1.0
  shift: float = 0.0
  minimum: Optional[float] = None
  maximum: Optional[float] = None

  def transform(self, steps):
    def scale(name, reward):
      numbers = [
          constants.constant(one, reward, name)
          for one in (self.scale, self.shift)
      ]
      narrow = reward.dtype.is_integer and reward.dtype.size < 8
      if narrow:
        # int64 has room for the product, which is clipped before it is checked.
        numbers = [tf.cast(one, tf.int64) for one in numbers]
      factor, shift = numbers
      wide = tf.cast(reward, factor.dtype) * factor + shift
      scaled = constants.clip(wide, self.minimum, self.maximum, name, tf)
      if not narrow:
        return scaled
      return _narrow(scaled, reward.dtype, name, steps.get(rlds.IS_LAST))

    return paths.map_leaves(scale, steps, rlds.REWARD)

  def invert(self, steps):
    if rlds.REWARD not in steps:
      return steps

    def unscale(name, reward):
      unshifted = reward - constants.constant(self.shift, reward, name)
      unscaled = unshifted / constants.constant(self.scale, reward, name)
      return tf.cast(unscaled, reward.dtype)

    return paths.map_leaves(unscale, steps, rlds.REWARD)


def _narrow(leaf, dtype, name, is_last):
  """Casts integers to a narrower dtype, and checks all but the last step's.

  Raises:
    InvalidArgumentError: if the dtype cannot hold a number of another step.
  """
  used = leaf
  if is_last is not None:
    is_last = tf.cast(is_last, tf.bool)
    is_more = is_last.shape.rank > leaf.shape.rank  # of shape (1,) in a step
    used = tf.boolean_mask(leaf, ~(is_last[..., 0] if is_more else is_last))
  outside = tf.boolean_mask(used, (used < dtype.min) | (used > dtype.max))
  message = (
      f'A scaled {name} must fit {dtype.name}, which holds {dtype.min} to'
      f' {dtype.max}. Clip it, or cast the field to a wider dtype first. It is:'
  )
  leaf = graphs.asserted(leaf, tf.size(outside) == 0, message, outside)
  return tf.cast(leaf, dtype)
