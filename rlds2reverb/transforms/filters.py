"""Filters of episodes, and transforms that drop steps of an episode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values


@base.configurable
class KeepEpisodes(base.EpisodeFilter):
  """Keeps the episodes that meet all given conditions.

  Use it in `transform_episodes`, or as `rlds_data.filter(KeepEpisodes(...))`.

  Attributes:
    min_return: the minimum undiscounted return: the sum of the rewards of all
      steps but the last.
    max_return: the maximum undiscounted return.
    min_length: the minimum number of transitions, which is one less than the
      number of steps.
    max_length: the maximum number of transitions.
    success: the path, in the episode, of a bool or number that is true if the
      episode succeeded, for example `episode_metadata/success`. With a field of
      the steps, such as `steps/is_terminal`, the episode succeeded if the field
      is true, or not 0, in any step.
    labeled: the path, in a step, of a string, such as
      `observation/instruction`; episodes are kept in which it is non-empty in
      at least one step. This is `skip_unlabeled` of Octo and OpenVLA.
    predicate: a function that is called in the graph with the episode, with
      stacked steps, and returns whether to keep it, bool `[]`.
  """

  min_return: float | None = None
  max_return: float | None = None
  min_length: int | None = None
  max_length: int | None = None
  success: paths.Path | None = None
  labeled: paths.Path | None = None
  predicate: Callable[[dict[str, Any]], tf.Tensor] | None = None

  @pipelines.as_library_code
  def keep(self, episode: dict[str, Any]) -> tf.Tensor:
    """Returns whether to keep an episode, bool `[]`.

    Raises:
      ValueError: if a field that a condition needs is missing, the field of
        `success` is not a number, or `predicate` does not return one bool.
    """
    keep = self._meets_conditions(
        batch_lib.make_batch(*batch_lib.split_steps(episode))
    )[0]
    if self.predicate is None:
      return keep
    return keep & base.to_bool(
        pipelines.as_user_code(self.predicate)(episode), 'predicate'
    )

  def keep_each(self, batch: batch_lib.EpisodeBatch) -> tf.Tensor:
    if self.predicate is None and type(self).keep is KeepEpisodes.keep:
      return self._meets_conditions(batch)
    return super().keep_each(batch)

  def _meets_conditions(self, batch) -> tf.Tensor:
    """Returns which episodes meet the conditions, bool `[E]`."""
    steps, row_splits = batch.steps, batch.row_splits

    def any_step(column):
      count = tf.cast(column, tf.int64)
      return batch_lib.sum_rows(count, row_splits) > 0

    length = tf.maximum(row_splits[1:] - row_splits[:-1] - 1, 0)
    conditions = [_is_between(length, self.min_length, self.max_length)]
    if (self.min_return, self.max_return) != (None, None):
      paths.find(steps, rlds.REWARD)
      paths.find(steps, rlds.IS_TERMINAL)
      returns = batch_lib.compute_outcomes(batch).undiscounted_return
      conditions.append(_is_between(returns, self.min_return, self.max_return))
    if self.success is not None:
      fields = {**batch.fields, rlds.STEPS: steps}
      success = values.one_leaf(fields, self.success, values.NUMBERS)
      # If a field has several numbers, one that is true is sufficient.
      success = tf.reshape(success, [tf.shape(success)[0], -1])
      success = tf.reduce_any(tf.cast(success, tf.bool), axis=1)
      is_per_step = paths.split(self.success)[0] == rlds.STEPS
      conditions.append(any_step(success) if is_per_step else success)
    if self.labeled is not None:
      labels = values.one_leaf(steps, self.labeled, values.STRINGS)
      conditions.append(any_step(labels != ''))
    return tf.reduce_all(tf.stack(conditions), axis=0)


def _is_between(value, minimum, maximum) -> tf.Tensor:
  # tf.cast would convert a Python float to float32 first.
  low = -np.inf if minimum is None else np.float64(minimum)
  high = np.inf if maximum is None else np.float64(maximum)
  value = tf.cast(value, tf.float64)
  return (value >= low) & (value <= high)


@base.configurable
class FrameSkip(base.EpisodeTransform):
  """Keeps the first step, every `skip`-th step after it, and the last step.

  Episodes then look as if the environment had repeated each action `skip`
  times, like the Arcade Learning Environment: rewards are summed and discounts
  multiplied, as in `DropNoOps`. At the end of the episode, fewer steps may be
  merged.

  Attributes:
    skip: the number of steps that are merged to one, 1 or more.
  """

  skip: int

  def _check(self):
    checks.check_positive('skip', self.skip)

  def transform_rows(self, steps, rows):
    return merge_steps(steps, rows, rows.step % self.skip == 0)


@base.configurable
class DropNoOps(base.EpisodeTransform):
  """Drops steps whose action does nothing, except for the last step.

  A dropped step is merged into the previous kept step: rewards are summed, and
  discounts multiplied.

      step             0    1    2    3    4    5 (last)
      reward           1    2    3    4    5    -
      discount         1    1    1    .9   0    -
      kept             yes  no   yes  no   no   always

      step             0         2              5
      reward           3         12             -
      discount         1         0              -

  Other fields are taken from the kept step. The undiscounted return and the end
  of the episode do not change; only steps before the first kept step are lost,
  including their rewards.

  If no action of an episode does anything, only its last step is kept. Drop
  such episodes with `KeepEpisodes(min_length=1)`.

  Attributes:
    field: the path of the action, or of the part of it to compare.
    no_op: the action that does nothing: one number, or an array.
    tolerance: the maximum difference of each number from `no_op`.
    only_first: whether only the first step of an episode may be dropped. Some
      recordings of BridgeData V2 begin with an action of zeros, and OpenVLA
      drops that step.
    predicate: a function to use instead of `field`, `no_op` and `tolerance`. It
      is called in the graph with the stacked steps, and returns which steps do
      nothing, bool `[T]`.
  """

  field: paths.Path = rlds.ACTION
  no_op: normalization.Numbers = 0.0
  tolerance: float = 0.0
  only_first: bool = False
  predicate: Callable[[dict[str, Any]], tf.Tensor] | None = None

  def transform_rows(self, steps, rows):
    if self.predicate is None:
      is_no_op = self._is_no_op(steps)
    else:
      bounds = tf.unique(rows.first).y, tf.unique(rows.last).y + 1
      is_no_op = tf.map_fn(
          pipelines.as_library_code(
              lambda bounds: self._call_predicate(
                  rows_lib.copy_rows(steps, *bounds)
              )
          ),
          bounds,
          fn_output_signature=tf.RaggedTensorSpec([None], tf.bool),
      ).flat_values
    if self.only_first:
      is_no_op &= tf.equal(rows.row, rows.first)
    return merge_steps(steps, rows, ~is_no_op)

  def _call_predicate(self, steps):
    is_no_op = tf.convert_to_tensor(
        pipelines.as_user_code(self.predicate)(steps)
    )
    if is_no_op.dtype != tf.bool or is_no_op.shape.rank != 1:
      raise ValueError(
          'predicate must return a bool for every step, but returned'
          f' {is_no_op.dtype.name} {is_no_op.shape}.'
      )
    is_first = paths.get(steps, rlds.IS_FIRST)
    checked = {'steps': is_first, 'predicate': is_no_op}
    return steps_lib.check_equal_lengths(checked)['predicate']

  def _is_no_op(self, steps):
    def is_near(name, leaf):
      no_op = normalization.to_dtype_of(leaf, self.no_op, name)
      difference = tf.cast(leaf, tf.float64) - no_op.astype(np.float64)
      near = tf.abs(difference) <= self.tolerance
      return tf.reduce_all(near, list(range(1, leaf.shape.rank)))

    near = paths.map_leaves(is_near, steps, self.field)
    return tf.reduce_all(tf.nest.flatten(paths.get(near, self.field)), 0)


@base.configurable
class DropEnd(base.EpisodeTransform):
  """Drops the last step of an episode if it has no action.

  Octo and OpenVLA do so where they compute actions from states. The step before
  gets its flags, and keeps its action, as marked by `has_action`. Use it for
  robot learning only, as the observation that the last action leads to is lost.
  The only step of an episode is kept.

      step          0   1   2 (last)          step          0   1 (last)
      action        a0  a1  -                 action        a0  a1
      has_action    T   T   F                 has_action    T   T
      is_last       F   F   T                 is_last       F   T
  """

  def transform_rows(self, steps, rows):
    has_action = batch_lib.has_action_mask(steps, rows.is_last())
    is_dropped = rows.is_last() & ~has_action & (rows.last > rows.first)
    # The step before a dropped step takes its flags.
    following = rows.next()
    flag_rows = tf.where(tf.gather(is_dropped, following), following, rows.row)
    has_action |= tf.gather(is_dropped, rows.last)
    steps = {**steps, batch_lib.HAS_ACTION: has_action}
    for flag in {rlds.IS_LAST, rlds.IS_TERMINAL} & set(steps):
      steps[flag] = tf.gather(steps[flag], flag_rows)
    return steps, ~is_dropped


def merge_steps(
    steps: dict[str, Any], rows: base.EpisodeRows, keep: tf.Tensor
) -> tuple[dict[str, Any], tf.Tensor]:
  """Merges dropped steps into the previous kept step; see `DropNoOps`.

  Args:
    steps: the steps of the episodes.
    rows: the episode of each step. Steps after its last row are dropped.
    keep: bool `[N]`: which steps to keep. The last step of an episode always
      is.

  Returns:
    The steps with merged rewards and discounts; and which steps to keep, as
    `transform_rows` returns them.

  Raises:
    ValueError: if there are no rewards, discounts or `is_first`.
  """
  for field in (rlds.REWARD, rlds.DISCOUNT, rlds.IS_FIRST):
    paths.find(steps, field)  # Raises if it is missing.
  keep |= rows.is_last()
  num_kept = tf.cumsum(tf.cast(keep, tf.int64))
  # Steps before the first kept step of their episode are not merged.
  num_before = tf.gather(tf.pad(num_kept, [[1, 0]]), rows.first)
  merged = tf.where((num_kept > num_before) & (rows.row <= rows.last))[:, 0]
  segment = tf.maximum(num_kept - 1, 0)

  def reduce_segments(reduce_fn, leaf):
    reduced = reduce_fn(tf.gather(leaf, merged), tf.gather(segment, merged))
    return tf.ensure_shape(tf.gather(reduced, segment), leaf.shape)

  # The first kept step takes is_first of the first step, which is False in an
  # episode whose start was cut off.
  is_start = tf.equal(num_kept, num_before + 1)
  flag_rows = tf.where(is_start, rows.first, rows.row)
  return {
      **steps,
      rlds.IS_FIRST: tf.gather(steps[rlds.IS_FIRST], flag_rows),
      rlds.REWARD: tf.nest.map_structure(
          lambda leaf: reduce_segments(tf.math.segment_sum, leaf),
          steps[rlds.REWARD],
      ),
      rlds.DISCOUNT: tf.nest.map_structure(
          lambda leaf: reduce_segments(tf.math.segment_prod, leaf),
          steps[rlds.DISCOUNT],
      ),
  }, keep
