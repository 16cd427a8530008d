"""Makes actions of a driving robot from the places that it passes."""

import dataclasses

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import thinning
from rlds2reverb.transforms import values


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ActionsFromWaypoints(base.EpisodeTransform):
  """Takes every n-th step, whose action becomes the way to the next one.

  The way is relative to the robot, whose yaw is 0 along x, in the units of the
  old actions, whose length is that of the first way other than 0. This is
  Octo's `gnm_dataset_transform` with `every=3`, which leaves out the last of
  the steps that are taken:

      step         0    1    2    3    4    5    6    7 (last)
      taken        yes            yes            yes
      action       p3 - p0        p6 - p3        0, and has_action is False

  The episode ends with the last step that is taken, and is truncated unless
  that was its end. Rewards and discounts of the steps between are not
  lost; see `DropNoOps`.

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

  def transform_rows(self, steps, rows):
    end = rows.first + (rows.last - rows.first) // self.every * self.every
    position = values.take(steps, self.state, 0, 2)
    yaw = values.take(steps, self.state, 2, 1)[:, 0]
    old = values.take(steps, self.action, 0, 2)
    width = values.vector(steps, self.action).shape[-1]
    following = tf.minimum(rows.row + self.every, end)
    way = tf.gather(position, following) - position
    cos, sin = tf.cos(yaw), tf.sin(yaw)
    relative = tf.stack(
        [
            way[:, 0] * cos + way[:, 1] * sin,
            way[:, 1] * cos - way[:, 0] * sin,
        ],
        axis=1,
    )
    relative *= _scale(position, old, rows)[:, tf.newaxis]
    steps = values.replace(steps, self.action, 0, width, relative)
    is_end = tf.equal(rows.row, end)
    if rlds.IS_LAST in steps:
      steps[rlds.IS_LAST] = tf.cast(is_end, steps[rlds.IS_LAST].dtype)
    if last_steps.HAS_ACTION in steps:
      steps[last_steps.HAS_ACTION] = ~is_end
    is_taken = rows.step % self.every == 0
    return thinning.merge_steps(steps, rows._replace(last=end), is_taken)


def _scale(position, action, rows) -> tf.Tensor:
  """Returns the length of an action for a way of length 1, `[N]`."""
  ways = tf.norm(tf.gather(position, rows.next()) - position, axis=1)
  first_move = rows.nearest(ways > 0, backward=False)
  first_move = tf.gather(first_move, rows.first)
  moves = first_move >= 0
  first_move = tf.maximum(first_move, 0)
  way = tf.where(moves, tf.gather(ways, first_move), 1)
  lengths = tf.cast(tf.norm(action, axis=1), position.dtype)
  length = tf.gather(lengths, first_move)
  return tf.where(moves, length / way, 1)
