"""Filters, which choose the episodes of a data set that are kept."""

import dataclasses
from typing import Any, Callable, Dict, Optional

import gin
import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class KeepEpisodes(base.EpisodeFilter):
  """Keeps the episodes that meet every condition that is given.

  Use it in `transform_episodes`, or as `rlds_data.filter(KeepEpisodes(...))`.

  Attributes:
    min_return: the least undiscounted return. The return is the sum of the
      rewards of all steps but the last.
    max_return: the greatest undiscounted return.
    min_length: the least number of transitions. An episode has one transition
      less than it has steps.
    max_length: the greatest number of transitions.
    success: the path, in the episode, of a bool or a number that says whether
      the episode succeeded: `episode_metadata/success`, for example. With a
      field of the steps, such as `steps/is_terminal`, the episode succeeded if
      it is true, or other than 0, in any step.
    labeled: the path, in a step, of a string that is not empty in one of the
      steps, such as `observation/instruction`. This is `skip_unlabeled` of Octo
      and OpenVLA.
    predicate: a function that is called in the graph with the episode, whose
      steps are stacked, and returns whether to keep it, bool `[]`.
  """

  min_return: Optional[float] = None
  max_return: Optional[float] = None
  min_length: Optional[int] = None
  max_length: Optional[int] = None
  success: Optional[paths.Path] = None
  labeled: Optional[paths.Path] = None
  predicate: Optional[Callable[[Dict[str, Any]], tf.Tensor]] = None

  def keep(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Returns whether an episode is kept, bool `[]`.

    Raises:
      ValueError: if a field that a condition needs is missing, if the field of
        `success` is no number, or if `predicate` returns something else than
        one bool.
    """
    keep = self.keep_each(episode_batches.of_episode(episode))[0]
    if self.predicate is None:
      return keep
    return keep & base.one_bool(self.predicate(episode), 'predicate')

  @property
  def takes_batches(self) -> bool:  # type: ignore[override]
    return self.predicate is None

  def keep_each(self, batch: episode_batches.EpisodeBatch) -> tf.Tensor:

    def count(column):
      return episode_batches.sum_rows(
          tf.cast(column, tf.int64), batch.row_splits
      )

    conditions = [tf.ones_like(batch.row_splits[1:], tf.bool)]
    if (self.min_return, self.max_return) != (None, None):
      paths.find(batch.steps, rlds.REWARD)
      paths.find(batch.steps, rlds.IS_TERMINAL)
      returns = outcomes.outcomes(batch).undiscounted_return
      conditions += _within(returns, self.min_return, self.max_return)
    length = batch.row_splits[1:] - batch.row_splits[:-1] - 1
    length = tf.maximum(length, 0)
    conditions += _within(length, self.min_length, self.max_length)
    if self.success is not None:
      success = self._success({**batch.fields, rlds.STEPS: batch.steps})
      # If a field has several numbers, one that is true is enough.
      rows = tf.shape(success)[0]
      success = tf.reduce_any(tf.reshape(success, [rows, -1]), axis=1)
      if paths.split(self.success)[0] == rlds.STEPS:
        success = count(success) > 0
      conditions.append(success)
    if self.labeled is not None:
      is_there = (
          values.one_leaf(batch.steps, self.labeled, values.STRINGS) != ''
      )
      conditions.append(count(is_there) > 0)
    return tf.reduce_all(tf.stack(conditions), axis=0)

  def _success(self, episode):
    """Returns the field of the success as bools."""
    success = paths.get(episode, self.success)
    if not isinstance(success, tf.Tensor) or success.dtype == tf.string:
      raise ValueError(
          f'{paths.name_of(self.success)} must be a bool or number, but is'
          f' {success}.'
      )
    return tf.cast(success, tf.bool)


def _within(value, minimum, maximum):
  value = tf.cast(value, tf.float64)
  if minimum is not None:
    yield value >= tf.cast(minimum, tf.float64)
  if maximum is not None:
    yield value <= tf.cast(maximum, tf.float64)
