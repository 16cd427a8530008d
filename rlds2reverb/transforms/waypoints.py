"""Actions of a robot that drives, made of the places where it comes by."""

import dataclasses

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import thinning
from rlds2reverb.transforms import vectors


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ActionsFromWaypoints(base.EpisodeTransform):
  """Takes every n-th step, and makes its action the way to the next one.

  The way is seen from the robot, whose yaw is 0 along x, and in the units of
  the old actions: these are as long as the first way that is not 0. So does
  Octo's `gnm_dataset_transform` with `every=3`, which leaves out the last of
  the steps that are taken:

      step         0    1    2    3    4    5    6    7 (last)
      taken        yes            yes            yes
      action       p3 - p0        p6 - p3        0, and has_action is False

  The episode ends with the last step that is taken, and is truncated unless
  that was its end. Rewards and discounts of those between are not lost; see
  `thinning`.

  Attributes:
    state: the path of the leaf of floats with the position (2) and the yaw.
    action: the path of the leaf of floats that is replaced, two numbers.
    every: how many steps become one, 1 or more.
  """

  state: paths.Path
  action: paths.Path = rlds.ACTION
  every: int = 3

  def __post_init__(self):
    super().__post_init__()
    checks.check_positive('every', self.every)

  def transform(self, steps):
    position = vectors.take(steps, self.state, 0, 2)
    scale = _scale(position, vectors.take(steps, self.action, 0, 2))
    length = tf.shape(position)[0]
    end = (tf.maximum(length, 1) - 1) // self.every * self.every + 1
    steps = tf.nest.map_structure(lambda leaf: leaf[:end], steps)
    end = tf.minimum(end, length)
    index = tf.range(end)
    steps = thinning.keep_steps(steps, index % self.every == 0)
    ways = _ways(
        vectors.take(steps, self.state, 0, 2),
        vectors.take(steps, self.state, 2, 1)[:, 0],
    )
    width = vectors.floats(steps, self.action).shape[-1]
    steps = vectors.replace(steps, self.action, 0, width, ways * scale)
    is_last = last_steps.is_last(tf.shape(ways)[0])
    if rlds.IS_LAST in steps:
      steps[rlds.IS_LAST] = tf.cast(is_last, steps[rlds.IS_LAST].dtype)
    if last_steps.HAS_ACTION in steps:
      steps[last_steps.HAS_ACTION] = ~is_last
    return steps


def _scale(position, action) -> tf.Tensor:
  """Returns how long an action is for a way of length 1."""
  ways = tf.norm(position[1:] - position[:-1], axis=1)
  moves = tf.where(ways > 0)[:1, 0]
  scales = tf.norm(tf.gather(action, moves), axis=1) / tf.gather(ways, moves)
  return tf.concat([scales, tf.ones([1], position.dtype)], 0)[0]


def _ways(position, yaw) -> tf.Tensor:
  """Returns the way to the next position, `[T, 2]`; zeros at the end."""
  way = tf.concat([position[1:], position[-1:]], 0) - position
  cos, sin = tf.cos(yaw), tf.sin(yaw)
  return tf.stack(
      [
          way[:, 0] * cos + way[:, 1] * sin,
          way[:, 1] * cos - way[:, 0] * sin,
      ],
      axis=1,
  )
