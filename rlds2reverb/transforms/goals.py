"""Goals: observations of an episode's future, for each of its steps."""

import dataclasses
from typing import Optional

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import whole_episodes

STRATEGIES = ('uniform', 'last', 'geometric')
# The indices of these draws among the random numbers of a step.
_OF_DISTANCE, _OF_CURRENT = 0, 1


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class RelabelGoals(whole_episodes.WholeEpisodeTransform):
  """Adds to each step a goal that its episode has reached later.

  The goal of a step is the observation of a later step. In an episode of steps
  0 to 4, it can be one of these:

      strategy          step 0          step 2     step 4 (last)
      "last"            4               4          4
      "uniform"         1 to 4          3, 4       4
      "geometric"       1 to 4          3, 4       4

  `"uniform"` draws all of these steps with equal probability. OpenVLA does so,
  and Octo with `include_current`; Octo's `max_goal_distance` is one more than
  `max_distance`. OGBench's uniform goals are the next and the last step half as
  often. `"geometric"` draws a goal that is k steps ahead with the probability
  `(1 - discount) * discount**(k - 1)`, and takes the last step instead of steps
  beyond it, as OGBench's `GCDataset` does.

  A goal is a function of the seed, of the index of the episode in the data set
  and of the step. In `rlds_data.repeat()` the index goes on, so every pass has
  other goals. The inverse leaves the goals out.

  Attributes:
    strategy: `"uniform"`, `"last"` or `"geometric"`, see above.
    discount: the discount of `"geometric"`, between 0 and 1.
    max_distance: the greatest number of steps between a step and its goal.
    include_current: whether `"uniform"` draws from the step itself on.
    current_probability: the probability with which the goal is the step itself,
      whatever the strategy, as in OGBench.
    field: the path of the goal's field: the observation, or a part of it.
    goal: the path at which the goal is added. `observation/goal` puts it into
      the observation, which is what agents see.
    goal_step: the path of the index of the goal's step in its episode, int64
      `[T]`.
    seed: the seed of the draws, an int.
  """

  strategy: str = 'uniform'
  discount: Optional[float] = None
  max_distance: Optional[int] = None
  include_current: bool = False
  current_probability: float = 0.0
  field: paths.Path = rlds.OBSERVATION
  goal: paths.Path = 'goal'
  goal_step: paths.Path = 'goal_step'
  seed: int = 0

  def __post_init__(self):
    super().__post_init__()
    checks.check_choice('strategy', self.strategy, STRATEGIES)
    if self.max_distance is not None:
      checks.check_positive('max_distance', self.max_distance)
    is_geometric = self.strategy == 'geometric'
    if is_geometric != (self.discount is not None) or (
        is_geometric and not 0 < self.discount < 1
    ):
      raise ValueError(
          'strategy="geometric", and no other, needs a discount between 0 and'
          f' 1, but strategy={self.strategy!r} has discount={self.discount}.'
      )
    if self.include_current and self.strategy != 'uniform':
      raise ValueError(
          'include_current is for strategy="uniform". With others, give the'
          ' current_probability.'
      )
    if not 0 <= self.current_probability <= 1:
      raise ValueError(
          'current_probability must lie in [0, 1], but is'
          f' {self.current_probability}.'
      )

  @property
  def draws(self) -> bool:
    return self.strategy != 'last' or self.current_probability > 0

  def transform_rows(self, steps, rows):
    row = self._goal_rows(rows)
    goal = gathering.take(paths.get(steps, self.field), row)
    steps = paths.insert(steps, paths.split(self.goal), goal)
    return paths.insert(steps, paths.split(self.goal_step), row - rows.first)

  def invert(self, steps):
    for path in (self.goal, self.goal_step):
      if paths.contains(steps, path):
        steps = paths.remove(steps, paths.find(steps, path))
    return steps

  def _goal_rows(self, rows: whole_episodes.EpisodeRows) -> tf.Tensor:
    last = rows.last
    if self.max_distance is not None:
      last = tf.minimum(last, rows.row + self.max_distance)
    if self.strategy == 'last':
      drawn = last
    elif self.strategy == 'uniform':
      low = rows.row if self.include_current else tf.minimum(rows.row + 1, last)
      count = tf.cast(last - low + 1, tf.float64)
      ahead = rows.fractions(self.seed, _OF_DISTANCE) * count
      # A product may be rounded up to the count itself.
      drawn = tf.minimum(low + tf.cast(ahead, tf.int64), last)
    else:
      fraction = rows.fractions(self.seed, _OF_DISTANCE)
      beyond = tf.math.log1p(-fraction) / tf.math.log(
          tf.constant(self.discount, tf.float64)
      )
      beyond = tf.minimum(beyond, tf.cast(last - rows.row, tf.float64))
      drawn = tf.minimum(rows.row + 1 + tf.cast(beyond, tf.int64), last)
    if not self.current_probability:
      return drawn
    is_current = rows.fractions(self.seed, _OF_CURRENT)
    return tf.where(is_current < self.current_probability, rows.row, drawn)
