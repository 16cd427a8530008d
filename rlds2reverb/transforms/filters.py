"""Filters, which choose the episodes of a data set that are kept."""

from typing import Any, Callable, Dict, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values


@base.configurable
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
    keep = self._meets(episode_batches.of_episode(episode))[0]
    if self.predicate is None:
      return keep
    return keep & base.one_bool(
        graphs.as_user_code(self.predicate)(episode), 'predicate'
    )

  def keep_each(self, batch: episode_batches.EpisodeBatch) -> tf.Tensor:
    if self.predicate is None and type(self).keep is KeepEpisodes.keep:
      return self._meets(batch)
    return super().keep_each(batch)

  def _meets(self, batch) -> tf.Tensor:
    """Returns which episodes meet the conditions, bool `[E]`."""
    steps, splits = batch.steps, batch.row_splits

    def any_row(column):
      count = tf.cast(column, tf.int64)
      return episode_batches.sum_rows(count, splits) > 0

    length = tf.maximum(splits[1:] - splits[:-1] - 1, 0)
    conditions = [_within(length, self.min_length, self.max_length)]
    if (self.min_return, self.max_return) != (None, None):
      paths.find(steps, rlds.REWARD)
      paths.find(steps, rlds.IS_TERMINAL)
      returns = outcomes.outcomes(batch).undiscounted_return
      conditions.append(_within(returns, self.min_return, self.max_return))
    if self.success is not None:
      fields = {**batch.fields, rlds.STEPS: steps}
      success = values.one_leaf(fields, self.success, values.NUMBERS)
      # If a field has several numbers, one that is true is enough.
      success = tf.reshape(success, [tf.shape(success)[0], -1])
      success = tf.reduce_any(tf.cast(success, tf.bool), axis=1)
      is_of_steps = paths.split(self.success)[0] == rlds.STEPS
      conditions.append(any_row(success) if is_of_steps else success)
    if self.labeled is not None:
      words = values.one_leaf(steps, self.labeled, values.STRINGS)
      conditions.append(any_row(words != ''))
    return tf.reduce_all(tf.stack(conditions), axis=0)


def _within(value, minimum, maximum) -> tf.Tensor:
  # Of a Python float, tf.cast would make a float32 first.
  low = -np.inf if minimum is None else np.float64(minimum)
  high = np.inf if maximum is None else np.float64(maximum)
  value = tf.cast(value, tf.float64)
  return (value >= low) & (value <= high)
