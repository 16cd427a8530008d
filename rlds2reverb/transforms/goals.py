"""Goal relabeling, as in hindsight experience replay (HER)."""

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

UNIFORM = ('uniform', 'future')
LAST = ('last', 'final')
STRATEGIES = (*UNIFORM, *LAST, 'geometric', 'episode', 'random')
# The indices of these draws among the random numbers of a step.
_DRAW_DISTANCE, _DRAW_CURRENT, _DRAW_RELABELED = 0, 1, 2
_DRAW_OTHER, _DRAW_ROW = 0, 1


@base.configurable
class RelabelGoals(base.EpisodeTransform):
  """Relabels goals, as in hindsight experience replay (HER).

  The goal of a step is the observation of another step, by default of a later
  one. The candidates in an episode of steps 0 to 4:

      strategy                 step 0          step 2     step 4 (last)
      "final" or "last"        4               4          4
      "future" or "uniform"    1 to 4          3, 4       4
      "geometric"              1 to 4          3, 4       4
      "episode"                1 to 4          1 to 4     1 to 4
      "random"                 any step but the first of another episode

  `"final"`, `"future"` and `"episode"` are strategies of `HerReplayBuffer` in
  Stable-Baselines3, and `"random"` is a strategy of the HER paper. Except for
  `"geometric"`, all goals of a step have equal probability. With `"random"`,
  the relabeled steps of an episode draw from one other episode, which is drawn
  from all episodes; this is only possible in `transform_episodes`.

  OpenVLA draws as `"uniform"` does, and Octo with `include_current`; Octo's
  `max_goal_distance` is one more than `max_distance`. OGBench's uniform goals
  draw the next and the last step half as often. `"geometric"` draws a goal k
  steps ahead with probability `(1 - discount) * discount**(k - 1)`, and the
  last step instead of steps beyond it, like OGBench's `GCDataset`.

  HER for the observations of Gymnasium-Robotics, with four relabeled
  transitions for each original one (`n_sampled_goal=4`):

      def compute_reward(achieved, desired):
        distance = tf.norm(achieved - desired, axis=-1)
        return -tf.cast(distance > 0.05, tf.float32)

      relabel = RelabelGoals(
          'future',
          field='observation/achieved_goal',
          goal='observation/desired_goal',
          replace=True,
          probability=4 / 5,
          compute_reward=compute_reward,
      )

  The transition from step t to t + 1 is relabeled with the goal of step t. Its
  reward is `compute_reward(achieved goal of t + 1, goal of t)`. Each transition
  has its own goal. A learner that reads the next observation must replace the
  goal in it by the goal of step t, as `HerReplayBuffer` does. Sums over several
  transitions, such as n-step returns, and longer sequences would mix goals,
  unless `"final"` with `probability=1.0` gives an episode a single goal.

  A goal depends on the seed, the index of the episode in the data set, and the
  step. In `rlds_data.repeat()` the index continues, so every pass has other
  goals. The inverse drops added goals; replaced goals, rewards and terminals
  cannot be restored.

  Attributes:
    strategy: a strategy of the table.
    discount: the discount of `"geometric"`, between 0 and 1.
    max_distance: the maximum number of steps between a step and its goal; not
      for `"episode"` and `"random"`.
    include_current: whether `"future"` or `"uniform"` draws from the current
      step on. Stable-Baselines3 calls its `"future"` inclusive, because the
      goal may be the next observation; here that is the default.
    current_probability: the probability of the current step as the goal, as in
      OGBench; not for `"random"`.
    field: the path of the achieved goal: the observation, or a part of it.
    goal: the path of the desired goal, which is added or replaced.
      `observation/goal` adds it to the observation, which agents see.
    goal_step: the path of the index of the goal's step in its episode, int64
      `[T]`. For a goal that is not from the episode, it is the number of steps:
      if the goal is not relabeled, and with `"random"`.
    seed: the seed of the draws, an int.
    replace: whether `goal` is an existing field, whose values are replaced. It
      must have the structure, dtypes and shapes of `field`.
    probability: the fraction of steps to relabel, in [0, 1]. Other steps keep
      their goal, reward and terminal. Below 1 it needs `replace=True`.
      `n_sampled_goal=k` of Stable-Baselines3 is `k / (k + 1)`.
    compute_reward: a function of achieved and desired goals, `[N, ...]`, that
      returns the rewards of relabeled transitions, `[N]`. By default rewards
      are not changed. The reward of a last step, which has no transition, never
      is.
    compute_terminal: a function of the same arguments that returns whether a
      relabeled transition is terminal, bool `[N]`. If so, the `discount` of its
      step becomes 0; otherwise a `discount` of 0 becomes 1. The last transition
      also sets `is_terminal` of the last step. Episodes are not cut. By default
      terminals are not changed, as in Stable-Baselines3.
    shuffle_size: for `"random"`: the size of the shuffle buffer of episodes
      from which the other episode is drawn. It has only their `field`.
  """

  strategy: str = 'uniform'
  discount: float | None = None
  max_distance: int | None = None
  include_current: bool = False
  current_probability: float = 0.0
  field: paths.Path = rlds.OBSERVATION
  goal: paths.Path = 'goal'
  goal_step: paths.Path = 'goal_step'
  seed: int = 0
  replace: bool = False
  probability: float = 1.0
  compute_reward: Callable[[Any, Any], Any] | None = None
  compute_terminal: Callable[[Any, Any], Any] | None = None
  shuffle_size: int = 1000

  def _check(self):
    strategy = self.strategy
    checks.check_choice('strategy', strategy, STRATEGIES)
    if self.max_distance is not None:
      checks.check_positive('max_distance', self.max_distance)
      if strategy in ('episode', 'random'):
        raise ValueError(
            f'strategy={strategy!r} has no max_distance, but it is'
            f' {self.max_distance}. Use strategy="future".'
        )
    discount = self.discount
    is_geometric = strategy == 'geometric'
    if not (0 < (discount or 0) < 1 if is_geometric else discount is None):
      raise ValueError(
          'strategy="geometric", and no other, needs a discount between 0 and'
          f' 1, but strategy={strategy!r} has discount={discount}.'
      )
    if self.include_current and strategy not in UNIFORM:
      raise ValueError(
          'include_current is for strategy="future" or "uniform". For other'
          ' strategies, set current_probability.'
      )
    values.check_probability('current_probability', self.current_probability)
    if self.current_probability and strategy == 'random':
      raise ValueError('strategy="random" has no current_probability.')
    values.check_probability('probability', self.probability)
    if self.probability < 1 and not self.replace:
      raise ValueError(
          f'probability={self.probability} keeps some goals of the data. Set'
          ' replace=True, and goal to the path of their field.'
      )
    for name in 'compute_reward', 'compute_terminal':
      function = getattr(self, name)
      if function is not None and not callable(function):
        raise ValueError(
            f'{name} must be a function of (achieved_goal, desired_goal), but'
            f' is {function!r}.'
        )
    checks.check_positive('shuffle_size', self.shuffle_size)

  @property
  def draws(self) -> bool:  # type: ignore[override]
    is_deterministic = self.strategy in LAST and self.probability in (0, 1)
    return not is_deterministic or self.current_probability > 0

  @property
  def needs_other_episodes(self) -> bool:  # type: ignore[override]
    return self.strategy == 'random'

  def transform_rows(self, steps, rows):
    if self.needs_other_episodes:
      raise ValueError(
          'RelabelGoals(strategy="random") draws goals of other episodes, so it'
          ' cannot be called on a single episode. Use'
          ' transform_episodes(rlds_data, [relabel]).'
      )
    row = self._draw_goal_rows(rows)
    goal = rows_lib.take(paths.get(steps, self.field), row)
    return self._relabel(steps, rows, goal, row - rows.first)

  def transform_data(self, rlds_data):
    def relabel(index, pair):
      episode, other = pair
      steps, rows = episode[rlds.STEPS], _get_rows(index, episode)
      # As in "episode", a first observation is not a goal: no step achieved it.
      num_rows = rows_lib.num_rows(other)
      first = tf.minimum(tf.constant(1, tf.int64), num_rows - 1)
      fraction = rows.fractions(self.seed, _DRAW_DISTANCE)
      row = first + values.to_index(fraction, num_rows - first)
      goal = rows_lib.take(other, row)
      steps = self._relabel(steps, rows, goal, _get_num_steps(rows))
      return {**episode, rlds.STEPS: steps}

    pairs = _zip_with_other_episodes(
        rlds_data, self.field, self.shuffle_size, self.seed
    )
    return pipelines.map_elements(pairs, relabel, tf.data.AUTOTUNE)

  def invert(self, steps):
    if self.replace:
      return values.drop(steps, self.goal_step)
    return values.drop(steps, self.goal, self.goal_step)

  def _draw_goal_rows(self, rows: base.EpisodeRows) -> tf.Tensor:
    """Returns the row of the goal of each step, int64 `[N]`."""
    goal = last = rows.last
    if self.max_distance is not None:
      goal = last = tf.minimum(last, rows.row + self.max_distance)
    if self.strategy not in LAST:
      low = rows.row if self.include_current else tf.minimum(rows.row + 1, last)
      if self.strategy == 'episode':
        low = tf.minimum(rows.first + 1, last)
      fraction = rows.fractions(self.seed, _DRAW_DISTANCE)
      if self.strategy == 'geometric':
        discount = tf.constant(self.discount, tf.float64)
        distance = tf.math.log1p(-fraction) / tf.math.log(discount)
        distance = tf.minimum(distance, tf.cast(last - rows.row, tf.float64))
        goal = tf.minimum(low + tf.cast(distance, tf.int64), last)
      else:
        goal = low + values.to_index(fraction, last - low + 1)
    if self.current_probability:
      draw = rows.fractions(self.seed, _DRAW_CURRENT)
      goal = tf.where(draw < self.current_probability, rows.row, goal)
    return goal

  def _relabel(self, steps, rows, goal, goal_step):
    """Returns the steps with new goals, rewards and terminals."""
    achieved = paths.get(steps, self.field)
    is_relabeled = tf.ones_like(rows.row, tf.bool)
    if self.replace:
      original = paths.get(steps, self.goal)
      _check_same_specs(self.goal, original, self.field, achieved)
      if self.probability < 1:
        draw = rows.fractions(self.seed, _DRAW_RELABELED)
        is_relabeled = draw < self.probability
        goal = tf.nest.map_structure(
            lambda new, old: values.where_rows(is_relabeled, new, old),
            goal,
            original,
        )
        goal_step = tf.where(is_relabeled, goal_step, _get_num_steps(rows))
      goals = iter(tf.nest.flatten(goal))
      steps = paths.map_leaves(lambda *_: next(goals), steps, self.goal)
    else:
      steps = paths.insert(steps, self.goal, goal)
    steps = paths.insert(steps, self.goal_step, goal_step)
    if self.compute_reward is None and self.compute_terminal is None:
      return steps
    is_relabeled &= rows.row < rows.last
    achieved = rows_lib.take(achieved, rows.next())
    if self.compute_reward is not None:
      steps = self._relabel_rewards(steps, rows, achieved, goal, is_relabeled)
    if self.compute_terminal is not None:
      steps = self._relabel_terminals(steps, rows, achieved, goal, is_relabeled)
    return steps

  def _relabel_rewards(self, steps, rows, achieved, goal, is_relabeled):
    """Returns the steps with the rewards of transitions to new goals."""
    reward = values.one_leaf(steps, rlds.REWARD, values.NUMBERS)
    new = pipelines.as_user_code(self.compute_reward)(achieved, goal)
    new = _to_like('compute_reward', new, reward, rows)
    return values.put(
        steps, rlds.REWARD, values.where_rows(is_relabeled, new, reward)
    )

  def _relabel_terminals(self, steps, rows, achieved, goal, is_relabeled):
    """Returns the steps with new discounts, and new terminal last steps."""
    is_terminal = values.one_leaf(steps, rlds.IS_TERMINAL, values.NUMBERS)
    discount = values.one_leaf(steps, rlds.DISCOUNT, values.NUMBERS)
    new = pipelines.as_user_code(self.compute_terminal)(achieved, goal)
    new = _to_like('compute_terminal', new, is_terminal, rows)
    zeros, ones = tf.zeros_like(discount), tf.ones_like(discount)
    new_discount = tf.where(discount == zeros, ones, discount)
    ends = tf.reshape(tf.cast(new, tf.bool), [-1])
    ends = rows_lib.expand_to_rank(ends, discount)
    new_discount = tf.where(ends, zeros, new_discount)
    discount = values.where_rows(is_relabeled, new_discount, discount)
    steps = values.put(steps, rlds.DISCOUNT, discount)
    # The last step is terminal if the transition into it is.
    previous = tf.maximum(rows.row - 1, rows.first)
    is_set = rows.is_last() & tf.gather(is_relabeled, previous)
    is_terminal = values.where_rows(
        is_set, tf.gather(new, previous), is_terminal
    )
    return values.put(steps, rlds.IS_TERMINAL, is_terminal)


def _get_num_steps(rows: base.EpisodeRows) -> tf.Tensor:
  """Returns the number of steps of the episode of each row, int64 `[N]`."""
  return rows.last - rows.first + 1


def _check_same_specs(goal, desired, field, achieved) -> None:
  """Raises a ValueError if desired and achieved goals differ in their specs."""
  desired, achieved = (
      {
          name.removeprefix(paths.name_of(path)): leaf
          for name, leaf in paths.leaves({paths.name_of(path): nest}).items()
      }
      for path, nest in ((goal, desired), (field, achieved))
  )
  advice = ' A goal must have the structure, dtype and shape of achieved goals.'
  if set(desired) != set(achieved):
    raise ValueError(
        f'{paths.name_of(goal)} has the leaves {sorted(desired)}, but'
        f' {paths.name_of(field)} has {sorted(achieved)}.{advice}'
    )
  for name, leaf in desired.items():
    other = achieved[name]
    if leaf.dtype != other.dtype or (
        not leaf.shape[1:].is_compatible_with(other.shape[1:])
    ):
      raise ValueError(
          f'{paths.name_of(goal)}{name} is {leaf.dtype.name}'
          f' {leaf.shape[1:]} in each step, but {paths.name_of(field)}{name} is'
          f' {other.dtype.name} {other.shape[1:]}.{advice}'
      )


def _to_like(name, value, like, rows) -> tf.Tensor:
  """Converts the result of a function of the user to the dtype of a field."""
  value = tf.convert_to_tensor(value)
  if value.shape.rank is None:  # of tf.numpy_function
    value = tf.reshape(value, [-1])
  num_steps = tf.size(rows.row)
  if value.shape.rank != 1 or value.dtype == tf.string:
    raise ValueError(
        f'{name} must return one number for each step, of the shape'
        f' {[tf.get_static_value(num_steps)]}, but returned'
        f' {value.dtype.name} {value.shape}.'
    )
  value = errors.assert_true(
      value,
      tf.equal(tf.size(value), num_steps),
      f'{name} must return one number for each of the',
      num_steps,
      'steps, but returned',
      tf.size(value),
  )
  return tf.reshape(tf.cast(value, like.dtype), tf.shape(like))


@pipelines.do_not_convert
def _zip_with_other_episodes(
    episodes: tf.data.Dataset, field: paths.Path, shuffle_size: int, seed: int
) -> tf.data.Dataset:
  """Returns `(index, (episode, field of another episode))`, at random."""
  other_fields = (
      pipelines.map_elements(
          episodes,
          lambda episode: paths.get(episode[rlds.STEPS], field),
          tf.data.AUTOTUNE,
      )
      # Episodes without steps have no goals; others are drawn more often.
      .filter(lambda other: rows_lib.num_rows(other) > 0)
      .shuffle(shuffle_size, seed=seed, reshuffle_each_iteration=False)
      .repeat()
  )
  return tf.data.Dataset.zip((episodes, other_fields)).enumerate()


def _get_rows(index, episode) -> base.EpisodeRows:
  """Returns the rows of one episode, with its index in the data set."""
  batch = batch_lib.make_batch(*batch_lib.split_steps(episode))
  return base.EpisodeRows.from_batch(batch._replace(episode=index[tf.newaxis]))


@gin.configurable(module='rlds2reverb')
def draw_goals_from_other_episodes(
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
  all new goals of an episode come from one episode, which may be itself:

      step          0      1      2      3
      goal          o2     x0     o3     x5       x is another episode
      goal_step     2      4      3      4        4 steps: it is never reached

  Call it after `RelabelGoals`, which adds the goals to replace.

  Args:
    rlds_data: a data set of episodes, with nested or stacked steps.
    probability: the probability of replacing each goal, in [0, 1].
    field: the path of the field of a step to draw goals from.
    goal: the path of the goals, of the same structure.
    goal_step: the path of their indices. For a replaced goal, it becomes the
      number of steps of the episode.
    shuffle_size: the size of the shuffle buffer of episodes from which the
      other episode is drawn. It has only their `field`.
    seed: the seed of the draws, an int.

  Returns:
    A data set of the episodes, with stacked steps. It has the same goals in
    each iteration; `rlds_data.repeat()` has other goals in each pass.

  Raises:
    ValueError: if there is no such field, goals and `field` differ in
      structure, or an argument is out of range.
  """
  checks.check_positive('shuffle_size', shuffle_size)
  values.check_probability('probability', probability)
  steps_lib.check_has_steps('An element of rlds_data', rlds_data.element_spec)
  episodes = steps_lib.stack_episodes(rlds_data)

  def replace(index, pair):
    episode, other = pair
    rows = _get_rows(index, episode)
    is_other = rows.fractions(seed, _DRAW_OTHER) < probability
    fraction = rows.fractions(seed, _DRAW_ROW)
    drawn = rows_lib.take(
        other, values.to_index(fraction, rows_lib.num_rows(other))
    )
    steps = episode[rlds.STEPS]
    original = paths.get(steps, goal)
    tf.nest.assert_same_structure(original, drawn)
    goals = tf.nest.map_structure(
        lambda old, new: values.where_rows(is_other, new, old), original, drawn
    )
    steps = paths.insert(values.drop(steps, goal), goal, goals)
    num_steps = tf.size(rows.row)
    steps = values.put_where(is_other, steps, goal_step, num_steps)
    return {**episode, rlds.STEPS: steps}

  pairs = _zip_with_other_episodes(episodes, field, shuffle_size, seed)
  return pipelines.map_elements(pairs, replace, tf.data.AUTOTUNE)
