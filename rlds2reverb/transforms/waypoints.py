"""Makes actions of a driving robot from the places that it passes."""

import dataclasses

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import packs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import thinning
from rlds2reverb.transforms import vectors
from rlds2reverb.transforms import whole_episodes


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ActionsFromWaypoints(whole_episodes.PackTransform):
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

  def transform_pack(self, pack, episode_index=None):
    rows = self._rows(pack)
    position = vectors.take(pack.steps, self.state, 0, 2)
    scale = _scale(position, vectors.take(pack.steps, self.action, 0, 2), rows)
    step = rows.row - rows.first
    end = (rows.last - rows.first) // self.every * self.every
    kept = tf.where(step <= end)[:, 0]
    pack = packs.keep_rows(pack, kept)
    is_taken = tf.gather(step, kept) % self.every == 0
    pack = thinning.keep_steps(pack, self._rows(pack), is_taken)
    scale = tf.gather(scale, tf.gather(kept, tf.where(is_taken)[:, 0]))
    rows, steps = self._rows(pack), pack.steps
    ways = _ways(
        vectors.take(steps, self.state, 0, 2),
        vectors.take(steps, self.state, 2, 1)[:, 0],
        rows,
    )
    width = vectors.floats(steps, self.action).shape[-1]
    ways *= scale[:, tf.newaxis]
    steps = vectors.replace(steps, self.action, 0, width, ways)
    is_last = tf.equal(rows.row, rows.last)
    if rlds.IS_LAST in steps:
      steps[rlds.IS_LAST] = tf.cast(is_last, steps[rlds.IS_LAST].dtype)
    if last_steps.HAS_ACTION in steps:
      steps[last_steps.HAS_ACTION] = ~is_last
    return pack._replace(steps=steps)


def _scale(position, action, rows) -> tf.Tensor:
  """Returns the length of an action for a way of length 1, `[N]`."""
  ways = tf.norm(tf.gather(position, rows.next()) - position, axis=1)
  first_move = whole_episodes.nearest_marked(ways > 0, rows, backward=False)
  first_move = tf.gather(first_move, rows.first)
  moves = first_move >= 0
  first_move = tf.maximum(first_move, 0)
  way = tf.where(moves, tf.gather(ways, first_move), 1)
  length = tf.gather(tf.norm(action, axis=1), first_move)
  return tf.where(moves, length / way, 1)


def _ways(position, yaw, rows) -> tf.Tensor:
  """Returns the way to the next position, `[N, 2]`; zeros at the end."""
  way = tf.gather(position, rows.next()) - position
  cos, sin = tf.cos(yaw), tf.sin(yaw)
  return tf.stack(
      [
          way[:, 0] * cos + way[:, 1] * sin,
          way[:, 1] * cos - way[:, 0] * sin,
      ],
      axis=1,
  )
