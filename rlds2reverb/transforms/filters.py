"""Filters: which episodes of a data set are kept."""

import dataclasses
from typing import Any, Callable, Dict, Optional

import gin
import rlds
import tensorflow as tf

from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class KeepEpisodes:
  """Keeps the episodes for which every condition holds that is given.

  Used in `transform_episodes`, or as `rlds_data.filter(KeepEpisodes(...))`.

  Attributes:
    min_return: the least undiscounted return, that is, sum of the rewards of
      all steps but the last.
    max_return: the greatest.
    min_length: the least number of transitions: an episode has one less than
      steps.
    max_length: the greatest.
    success: the path, in the episode, of a field that is true or other than 0
      in an episode that succeeded, in any of its steps where it is a step
      field: `steps/is_terminal`, or `episode_metadata/success`.
    predicate: called in the graph with the episode, its steps stacked; returns
      whether to keep it, bool `[]`.
  """

  min_return: Optional[float] = None
  max_return: Optional[float] = None
  min_length: Optional[int] = None
  max_length: Optional[int] = None
  success: Optional[paths.Path] = None
  predicate: Optional[Callable[[Dict[str, Any]], tf.Tensor]] = None

  def __call__(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Returns whether an episode is kept, bool `[]`.

    Raises:
      ValueError: if the field of `success` is missing or not a number, or
        `predicate` returns something else than one bool.
    """
    steps = steps_lib.stack_steps(episode[rlds.STEPS])
    episode = {**episode, rlds.STEPS: steps}
    conditions = []
    if self.min_return is not None or self.max_return is not None:
      value = outcomes.outcome(steps).undiscounted_return
      conditions += _within(value, self.min_return, self.max_return)
    if self.min_length is not None or self.max_length is not None:
      length = tf.math.count_nonzero(~outcomes.flag(steps, rlds.IS_LAST))
      conditions += _within(length, self.min_length, self.max_length)
    if self.success is not None:
      success = paths.get(episode, self.success)
      if not isinstance(success, tf.Tensor) or success.dtype == tf.string:
        raise ValueError(
            f'{paths.name_of(self.success)} must be a bool or number, but is'
            f' {success}.'
        )
      conditions.append(tf.reduce_any(tf.cast(success, tf.bool)))
    if self.predicate is not None:
      keep = tf.convert_to_tensor(self.predicate(episode))
      if keep.dtype != tf.bool or not keep.shape.is_compatible_with([]):
        raise ValueError(
            f'predicate must return one bool, but returned {keep.dtype.name}'
            f' {keep.shape}.'
        )
      conditions.append(keep)
    return tf.reduce_all(tf.stack([tf.constant(True), *conditions]))


def _within(value, minimum, maximum):
  value = tf.cast(value, tf.float64)
  conditions = []
  if minimum is not None:
    conditions.append(value >= tf.cast(minimum, tf.float64))
  if maximum is not None:
    conditions.append(value <= tf.cast(maximum, tf.float64))
  return conditions
