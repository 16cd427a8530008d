"""The last step of an episode, and which of its fields have a meaning.

The last step is the one at the end of the episode, even if its `is_last` is
false, because some data never sets that flag. In RLDS it has the last
observation, and its action, reward and discount have no meaning:

    step            0    1    2    3 (last)
    observation     o0   o1   o2   o3
    action          a0   a1   a2   -
    reward          r0   r1   r2   -

A `StepMapping` has settings for data sets that differ in two ways. If the
reward of the last transition is on the last step, `move_reward` moves it. If
the last action has a meaning, the steps have a field `has_action`, which says
so for each step. All code that leaves out last actions calls `have_action`.
"""

from typing import Any, Dict

import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import steps as steps_lib

HAS_ACTION = 'has_action'

# The places to which the reward of a last step may belong.
STEP, TRANSITION = PLACES = ('step', 'transition')


def are_last(row_splits: tf.Tensor) -> tf.Tensor:
  """Returns which rows are the last steps of their episodes, bool `[N]`.

  Args:
    row_splits: int64 `[E + 1]`, as in `EpisodeBatch`.
  """
  return episode_batches.count_begins(row_splits, row_splits[-1] + 1)[1:] > 0


def is_last(num_steps: tf.Tensor) -> tf.Tensor:
  """Returns which step of one episode is its last one, bool `[T]`."""
  return tf.equal(tf.range(num_steps), num_steps - 1)


def have_action(steps: Dict[str, Any], last: tf.Tensor) -> tf.Tensor:
  """Returns whether the action of each step has a meaning, bool `[N]`.

  Args:
    steps: a dict of stacked steps `[N, ...]`.
    last: bool `[N]`: which of them are the last ones of their episodes.

  Raises:
    ValueError: if there is a field `has_action` that is not one bool a step.
  """
  if HAS_ACTION in steps:
    return steps_lib.one_a_step(HAS_ACTION, steps[HAS_ACTION], tf.bool)
  return ~last


def move_reward(reward: Any, first: tf.Tensor, last: tf.Tensor) -> Any:
  """Adds the reward of each last step to that of the step before.

      reward     0  0  0  1 |  2  3 |  7
      moved      0  0  1  0 |  5  0 |  7

  An episode of one step has no transition, so its reward stays.

  Args:
    reward: a nest of numbers or bools `[N, ...]`.
    first: bool `[N]`: which steps are the first ones of their episodes.
    last: bool `[N]`: which are the last ones.

  Returns:
    The nest, of the same dtypes. The sum of bools is true where one is.
  """
  gives = last & ~first

  def move(leaf):
    leaf = tf.convert_to_tensor(leaf)
    mask = gathering.with_rank_of(gives, leaf)
    zeros = tf.zeros_like(leaf)
    given = tf.where(mask, leaf, zeros)
    given = tf.concat([given[1:], zeros[:1]], 0)
    kept = tf.where(mask, zeros, leaf)
    return kept | given if leaf.dtype == tf.bool else kept + given

  return tf.nest.map_structure(move, reward)
