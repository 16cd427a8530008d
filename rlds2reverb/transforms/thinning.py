"""Transforms that leave steps out of an episode."""

import functools
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import constants
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.transforms import base
from rlds2reverb.transforms import episode_rows


@base.configurable
class FrameSkip(base.EpisodeTransform):
  """Keeps the first step, every `skip`-th step after it, and the last step.

  This makes episodes look as if the environment had repeated each action `skip`
  times, as the Arcade Learning Environment does: the rewards are summed and the
  discounts multiplied, as in `DropNoOps`. At the end of the episode fewer steps
  may become one.

  Attributes:
    skip: how many steps become one, 1 or more.
  """

  skip: int

  def _check(self):
    checks.check_positive('skip', self.skip)

  def transform_rows(self, steps, rows):
    return merge_steps(steps, rows, rows.step % self.skip == 0)


@base.configurable
class DropNoOps(base.EpisodeTransform):
  """Drops the steps whose action does nothing, but never the last step.

  A step that is kept stands for itself and for all steps up to the next one
  that is kept: its reward is the sum of their rewards, and its discount the
  product of their discounts.

      step             0    1    2    3    4    5 (last)
      reward           1    2    3    4    5    -
      discount         1    1    1    .9   0    -
      kept             yes  no   yes  no   no   always

      step             0         2              5
      reward           3         12             -
      discount         1         0              -

  All other fields are those of the step that is kept. So the episode keeps its
  undiscounted return and its end. Only the steps before the first one that is
  kept are lost, together with their rewards.

  Where no action of an episode does anything, only its last step is left. Leave
  out such episodes with `KeepEpisodes(min_length=1)`.

  Attributes:
    field: the path of the action, or of the part of it that must do nothing.
    no_op: the action that does nothing: one number, or an array.
    tolerance: how far each number of an action may be from `no_op` for the
      action to count as one that does nothing.
    only_first: whether only the first step of an episode may be dropped. Some
      recordings of BridgeData V2 begin with an action of zeros, and OpenVLA
      drops that step.
    predicate: a function to use in place of `field`, `no_op` and `tolerance`.
      It is called in the graph with the stacked steps, and returns which of
      them do nothing, bool `[T]`.
  """

  field: paths.Path = rlds.ACTION
  no_op: constants.Numbers = 0.0
  tolerance: float = 0.0
  only_first: bool = False
  predicate: Optional[Callable[[Dict[str, Any]], tf.Tensor]] = None

  def transform_rows(self, steps, rows):
    if self.predicate is None:
      is_no_op = self._is_no_op(steps)
    else:
      ends = tf.unique(rows.first).y, tf.unique(rows.last).y + 1
      is_no_op = tf.map_fn(
          lambda ends: self._predicted(stacked_steps.own_rows(steps, *ends)),
          ends,
          fn_output_signature=tf.RaggedTensorSpec([None], tf.bool),
      ).flat_values
    if self.only_first:
      is_no_op &= tf.equal(rows.row, rows.first)
    return merge_steps(steps, rows, ~is_no_op)

  def _predicted(self, steps):
    is_no_op = tf.convert_to_tensor(graphs.as_user_code(self.predicate)(steps))
    if is_no_op.dtype != tf.bool or is_no_op.shape.rank != 1:
      raise ValueError(
          'predicate must return a bool for every step, but returned'
          f' {is_no_op.dtype.name} {is_no_op.shape}.'
      )
    first = paths.get(steps, rlds.IS_FIRST)
    found = {'steps': first, 'predicate': is_no_op}
    return stacked_steps.with_equal_lengths(found)['predicate']

  def _is_no_op(self, steps):
    def is_near(name, leaf):
      no_op = constants.constant(self.no_op, leaf, name).astype(np.float64)
      near = tf.abs(tf.cast(leaf, tf.float64) - no_op) <= self.tolerance
      return tf.reduce_all(near, list(range(1, leaf.shape.rank)))

    found = paths.map_leaves(is_near, steps, self.field)
    return tf.reduce_all(tf.nest.flatten(paths.get(found, self.field)), 0)


@base.configurable
class DropEnd(base.EpisodeTransform):
  """Drops the last step of an episode if it has no action.

  Octo and OpenVLA do so where they make actions of states. The step before gets
  its flags, and keeps its action: `has_action` says that it counts. The result
  is for robot learning, as the observation to which the last action leads is
  lost. The only step of an episode stays.

      step          0   1   2 (last)          step          0   1 (last)
      action        a0  a1  -                 action        a0  a1
      has_action    T   T   F                 has_action    T   T
      is_last       F   F   T                 is_last       F   T
  """

  def transform_rows(self, steps, rows):
    have_action = last_steps.have_action(steps, rows.is_last())
    is_dropped = rows.is_last() & ~have_action & (rows.last > rows.first)
    # Where the last step is dropped, the step before it is the last.
    following = rows.next()
    flags_of = tf.where(tf.gather(is_dropped, following), following, rows.row)
    have_action |= tf.gather(is_dropped, rows.last)
    made = {**steps, last_steps.HAS_ACTION: have_action}
    for flag in {rlds.IS_LAST, rlds.IS_TERMINAL} & set(steps):
      made[flag] = tf.gather(steps[flag], flags_of)
    return made, ~is_dropped


def merge_steps(
    steps: Dict[str, Any], rows: episode_rows.EpisodeRows, keep: tf.Tensor
) -> Tuple[Dict[str, Any], tf.Tensor]:
  """Leaves steps out of episodes, as drawn in `DropNoOps`.

  Args:
    steps: the steps of the episodes.
    rows: the episode of each of them. Steps behind the last one are lost.
    keep: bool `[N]`: which steps are kept. The last of an episode always is.

  Returns:
    The steps, of which those that are kept have the rewards and discounts of
    those that are not; and which are kept, as `transform_rows` returns them.

  Raises:
    ValueError: if there are no rewards, discounts or first flags.
  """
  for field in (rlds.REWARD, rlds.DISCOUNT, rlds.IS_FIRST):
    paths.find(steps, field)  # They are needed.
  keep |= rows.is_last()
  num_kept = tf.cumsum(tf.cast(keep, tf.int64))
  # Steps before the first one that is kept count for no other step.
  before = tf.gather(tf.pad(num_kept, [[1, 0]]), rows.first)
  counted = tf.where((num_kept > before) & (rows.row <= rows.last))[:, 0]
  run = tf.maximum(num_kept - 1, 0)

  def merge(merge_runs, leaf):
    merged = merge_runs(tf.gather(leaf, counted), tf.gather(run, counted))
    return tf.ensure_shape(tf.gather(merged, run), leaf.shape)

  # The first step that is kept takes the flag of the first one: an episode
  # that was cut before may have no first step.
  is_start = tf.equal(num_kept, before + 1)
  flags_of = tf.where(is_start, rows.first, rows.row)
  merged = {rlds.IS_FIRST: tf.gather(steps[rlds.IS_FIRST], flags_of)}
  for field, merge_runs in (
      (rlds.REWARD, tf.math.segment_sum),
      (rlds.DISCOUNT, tf.math.segment_prod),
  ):
    merge_leaf = functools.partial(merge, merge_runs)
    merged[field] = tf.nest.map_structure(merge_leaf, steps[field])
  return {**steps, **merged}, keep
