"""Sums up an episode: its return, its length and its end."""

from typing import Any, Dict, NamedTuple

import tensorflow as tf
import tree

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib


class Outcome(NamedTuple):
  """Scalars that sum up one episode.

  Attributes:
    undiscounted_return: float64 `[]`: the sum of the rewards of all
      transitions. That of the last step, by `last_steps`, is not added.
    length: int64 `[]`: the number of transitions, one less than that of steps.
    is_terminal: bool `[]`: whether a step of the episode is terminal.
  """

  undiscounted_return: tf.Tensor
  length: tf.Tensor
  is_terminal: tf.Tensor


def outcome(steps: Dict[str, Any]) -> Outcome:
  """Sums up the stacked steps of one episode.

  Args:
    steps: a dict of stacked steps `[T, ...]`.

  Returns:
    The `Outcome`.

  Raises:
    ValueError: if the reward is not one number for each step.
  """
  return tf.nest.map_structure(
      lambda column: column[0], outcomes(episode_batches.of_one(steps))
  )


def outcomes(batch: episode_batches.EpisodeBatch) -> Outcome:
  """Sums up every episode of a batch.

  Args:
    batch: a batch.

  Returns:
    An `Outcome` of columns `[E]`.

  Raises:
    ValueError: if the reward is not one number for each step.
  """
  is_transition = ~last_steps.are_last(batch.row_splits)

  def total(column):
    return episode_batches.sum_rows(
        tf.where(is_transition, column, 0), batch.row_splits
    )

  is_terminal = tf.cast(flag(batch.steps, rlds.IS_TERMINAL), tf.int64)
  return Outcome(
      total(_reward(batch.steps)),
      total(tf.ones_like(is_terminal)),
      episode_batches.sum_rows(is_terminal, batch.row_splits) > 0,
  )


def _reward(steps):
  rewards = tree.flatten(steps[rlds.REWARD])
  if len(rewards) != 1 or not (
      rewards[0].shape.is_compatible_with([None])
      or rewards[0].shape.is_compatible_with([None, 1])
  ):
    raise ValueError(
        'The return of an episode needs a reward of one number a step, but the'
        f' reward is {steps[rlds.REWARD]}.'
    )
  steps_lib.check_numeric(rlds.REWARD, steps[rlds.REWARD])
  return tf.cast(tf.reshape(rewards[0], [-1]), tf.float64)


def flag(steps: Dict[str, Any], name: str) -> tf.Tensor:
  """Returns a flag of stacked steps as bool `[T]`.

  Raises:
    ValueError: if the flag is not one number or bool for each step.
  """
  return steps_lib.one_a_step(name, steps[name], tf.bool)
