"""Replaces goals of an episode by goals that other episodes have reached."""

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import seeds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# The indices of these draws among the random numbers of a step.
_OF_OTHER, _OF_ROW = 0, 1


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
  if not 0 <= probability <= 1:
    raise ValueError(f'probability must be in [0, 1], but is {probability}.')
  steps_lib.check_has_steps('An element of rlds_data', rlds_data.element_spec)
  episodes = stacked_steps.stack_episodes(rlds_data)
  others = episodes.map(
      graphs.no_autograph(
          lambda episode: paths.get(episode[rlds.STEPS], field)
      ),
      num_parallel_calls=tf.data.AUTOTUNE,
  ).shuffle(shuffle_size, seed=seed, reshuffle_each_iteration=False)

  @graphs.no_autograph
  def replace(index, pair):
    episode, other = pair
    steps = episode[rlds.STEPS]
    length = gathering.num_rows(steps)
    row = tf.range(length)
    episode_index = tf.fill([length], index)
    is_other, place = (
        seeds.fractions(
            seed,
            episode_index,
            row,
            tf.fill([length], tf.constant(d, tf.int64)),
        )
        for d in (_OF_OTHER, _OF_ROW)
    )
    is_other = is_other < probability
    num_rows = gathering.num_rows(other)
    place = tf.cast(place * tf.cast(num_rows, tf.float64), tf.int64)
    drawn = gathering.take(other, tf.minimum(place, num_rows - 1))
    own = paths.get(steps, goal)
    tf.nest.assert_same_structure(own, drawn)
    goals = tf.nest.map_structure(
        lambda kept, new: tf.where(
            tf.reshape(is_other, [-1] + [1] * (kept.shape.rank - 1)), new, kept
        ),
        own,
        drawn,
    )
    steps = paths.insert(
        paths.remove(steps, paths.find(steps, goal)), paths.split(goal), goals
    )
    steps = paths.map_leaves(
        lambda _, leaf: tf.where(is_other, tf.cast(length, leaf.dtype), leaf),
        steps,
        goal_step,
    )
    return {**episode, rlds.STEPS: steps}

  return (
      tf.data.Dataset.zip((episodes, others))
      .enumerate()
      .map(replace, num_parallel_calls=tf.data.AUTOTUNE)
  )
