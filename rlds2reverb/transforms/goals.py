"""Goals: observations of the future, or of other episodes, for each step."""

from typing import Optional

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base
from rlds2reverb.transforms import episode_rows
from rlds2reverb.transforms import values

STRATEGIES = ('uniform', 'last', 'geometric')
# The indices of these draws among the random numbers of a step.
_OF_DISTANCE, _OF_CURRENT = 0, 1
_OF_OTHER, _OF_ROW = 0, 1


@base.configurable
class RelabelGoals(base.EpisodeTransform):
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

  def _check(self):
    checks.check_choice('strategy', self.strategy, STRATEGIES)
    if self.max_distance is not None:
      checks.check_positive('max_distance', self.max_distance)
    discount = self.discount
    is_geometric = self.strategy == 'geometric'
    if not (0 < (discount or 0) < 1 if is_geometric else discount is None):
      raise ValueError(
          'strategy="geometric", and no other, needs a discount between 0 and'
          f' 1, but strategy={self.strategy!r} has discount={discount}.'
      )
    if self.include_current and self.strategy != 'uniform':
      raise ValueError(
          'include_current is for strategy="uniform". With others, give the'
          ' current_probability.'
      )
    values.check_probability('current_probability', self.current_probability)

  @property
  def draws(self) -> bool:  # type: ignore[override]
    return self.strategy != 'last' or self.current_probability > 0

  def transform_rows(self, steps, rows):
    row = self._goal_rows(rows)
    goal = gathering.take(paths.get(steps, self.field), row)
    steps = paths.insert(steps, self.goal, goal)
    return paths.insert(steps, self.goal_step, row - rows.first)

  def invert(self, steps):
    return values.drop(steps, self.goal, self.goal_step)

  def _goal_rows(self, rows: episode_rows.EpisodeRows) -> tf.Tensor:
    goal = last = rows.last
    if self.max_distance is not None:
      goal = last = tf.minimum(last, rows.row + self.max_distance)
    if self.strategy != 'last':
      low = rows.row if self.include_current else tf.minimum(rows.row + 1, last)
      fraction = rows.fractions(self.seed, _OF_DISTANCE)
      if self.strategy == 'uniform':
        goal = low + values.below(fraction, last - low + 1)
      else:
        discount = tf.constant(self.discount, tf.float64)
        ahead = tf.math.log1p(-fraction) / tf.math.log(discount)
        ahead = tf.minimum(ahead, tf.cast(last - rows.row, tf.float64))
        goal = tf.minimum(low + tf.cast(ahead, tf.int64), last)
    if self.current_probability:
      is_current = rows.fractions(self.seed, _OF_CURRENT)
      is_current = is_current < self.current_probability
      goal = tf.where(is_current, rows.row, goal)
    return goal


@gin.configurable(module='rlds2reverb')
def draw_goals_of_others(
    rlds_data: tf.data.Dataset,
    probability: float,
    *,
    field: paths.Path = rlds.OBSERVATION,
    goal: paths.Path = 'goal',
    goal_step: paths.Path = 'goal_step',
    shuffle_size: int = 1000,
    seed: int = 0,
) -> tf.data.Dataset:
  """Replaces goals by observations of other episodes, at random.

  OGBench's `GCDataset` draws random goals from all steps of all episodes. Here
  all new goals of an episode come from one other episode, or from itself:

      step          0      1      2      3
      goal          o2     x0     o3     x5       x is another episode
      goal_step     2      4      3      4        4 steps: it is never reached

  Call it after `RelabelGoals`, which makes the goals that are replaced.

  Args:
    rlds_data: a data set of episodes, with nested or stacked steps.
    probability: the probability of each goal to be replaced, in [0, 1].
    field: the path of the field whose values are goals, in a step.
    goal: the path of the goals, of the same structure.
    goal_step: the path of their indices. Where a goal is replaced, it becomes
      the number of steps of the episode.
    shuffle_size: how many episodes are held at a time, from which the other one
      is drawn. Only their `field` is kept.
    seed: the seed of the draws, an int.

  Returns:
    A data set of the episodes, with stacked steps. Each time it is read, it has
    the same goals; `rlds_data.repeat()` has other goals in each pass.

  Raises:
    ValueError: if there is no such field, goals and `field` differ in
      structure, or an argument is out of its range.
  """
  checks.check_positive('shuffle_size', shuffle_size)
  values.check_probability('probability', probability)
  steps_lib.check_has_steps('An element of rlds_data', rlds_data.element_spec)
  episodes = stacked_steps.stack_episodes(rlds_data)
  others = graphs.map_elements(
      episodes,
      lambda episode: paths.get(episode[rlds.STEPS], field),
      tf.data.AUTOTUNE,
  ).shuffle(shuffle_size, seed=seed, reshuffle_each_iteration=False)

  def replace(index, pair):
    episode, other = pair
    batch = episode_batches.of_episode(episode)
    batch = batch._replace(episode=index[tf.newaxis])
    rows = episode_rows.EpisodeRows.of(batch)
    is_other = rows.fractions(seed, _OF_OTHER) < probability
    fraction = rows.fractions(seed, _OF_ROW)
    place = values.below(fraction, gathering.num_rows(other))
    drawn = gathering.take(other, place)
    steps = episode[rlds.STEPS]
    own = paths.get(steps, goal)
    tf.nest.assert_same_structure(own, drawn)
    goals = tf.nest.map_structure(
        lambda leaf, new: values.rows_where(is_other, new, leaf), own, drawn
    )
    steps = paths.insert(values.drop(steps, goal), goal, goals)
    never = tf.size(rows.row)
    steps = values.put_where(is_other, steps, goal_step, never)
    return {**episode, rlds.STEPS: steps}

  pairs = tf.data.Dataset.zip((episodes, others)).enumerate()
  return graphs.map_elements(pairs, replace, tf.data.AUTOTUNE)
