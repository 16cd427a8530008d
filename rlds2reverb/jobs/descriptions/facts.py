"""Facts of each episode, collected in graph mode while a data set is read."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.jobs.descriptions import excerpts
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import rows as rows_lib
from rlds2reverb.trajectories import validation

# What may be odd about an episode as a whole, in the order of `Facts.checks`,
# and the sentence for it that follows "In 2 of 40 episodes, ".
CHECKS = {
    'unequal_lengths': (
        'fields differ in length. Here they are cut to the shortest; a'
        ' conversion refuses such an episode'
    ),
    'empty': 'there are no steps',
    'invalid': (
        'the flags or discounts break a rule, so a conversion refuses the'
        ' episode; the program `validate` says which rule'
    ),
    'several_first': 'is_first is set on several steps',
    'several_last': 'is_last is set on several steps',
    'several_terminal': 'is_terminal is set on several steps',
    'bootstraps': (
        'the discount of the transition into the terminal step is not 0, so a'
        ' learner bootstraps through the end;'
        ' ConversionRules.terminal_discount = "transition" sets it to 0'
    ),
    'zero_rewards': 'all rewards are 0',
    'last_reward': (
        'the last step has a reward, which no transition has, {} in all;'
        ' StepMapping.last_reward = "transition" moves it onto the transition'
        ' into that step, by --gin_binding or a config (docs/robotics.md, "The'
        ' last step")'
    ),
    'last_is_zero': (
        'the last observation is all zeros, and the one before is not: it may'
        ' be a dummy'
    ),
    'last_is_repeated': (
        'the last observation is the same as the one before: it may be a dummy'
    ),
}

# Words in the names of fields that say what an episode is meant to do.
_INSTRUCTIONS = ('instruction', 'language', 'task')
_HASHES = 2**63 - 1


class Facts(NamedTuple):
  """The facts of an episode of `T` steps, with `D` columns of numbers.

  Attributes:
    episode: int64 `[]`: the index of the episode in the data set.
    rows: float64 `[T, D + 4]`: its rows in an `Accumulation`.
    num_steps: int64 `[]`.
    outcome: float64 `[3]`: its return, its number of transitions, and whether
      it is terminal.
    last_reward: float64 `[]`: the reward of the last step, which is of no
      transition; NaN if there is no step.
    content: int64 `[]`: a hash of its observations, actions and rewards.
    checks: bool `[C]`: which of `CHECKS` are true of it.
    check_steps: int64 `[C]`: the first step that shows it; -1 for none.
    not_finite: int64 `[D]`: the first step in which the column is NaN or
      infinite; -1 for none.
    outside: int64 `[D]`: the number of values outside the column's bounds.
    outside_steps: int64 `[D]`: the first step that has one; -1 for none.
    frames: string `[I]`: for each image field, some of its images; see
      `excerpts.take_frames`.
    instruction: string `[]`: what the episode is meant to do, if a field says
      so; otherwise empty.
  """

  episode: tf.Tensor
  rows: tf.Tensor
  num_steps: tf.Tensor
  outcome: tf.Tensor
  last_reward: tf.Tensor
  content: tf.Tensor
  checks: tf.Tensor
  check_steps: tf.Tensor
  not_finite: tf.Tensor
  outside: tf.Tensor
  outside_steps: tf.Tensor
  frames: tf.Tensor
  instruction: tf.Tensor


def cut_to_shortest(
    steps: Dict[str, Any],
) -> Tuple[Dict[str, Any], tf.Tensor]:
  """Cuts the leaves of stacked steps to the shortest of them.

  Returns:
    The steps; and, bool `[]`, whether anything was cut off.
  """
  lengths = stacked_steps.lengths_of(steps)
  if lengths is None:
    return steps, tf.constant(False)
  are_equal = stacked_steps.are_equal(lengths)
  shortest = tf.reduce_min(lengths.rows)
  steps = tf.cond(
      are_equal,
      lambda: tf.nest.map_structure(tf.identity, steps),
      lambda: stacked_steps.own_rows(steps, 0, shortest),
  )
  return steps, ~are_equal


def facts_of(
    index: tf.Tensor,
    steps: Dict[str, Any],
    is_cut: tf.Tensor,
    accumulation: accumulation_lib.Accumulation,
    bounds: Tuple[np.ndarray, np.ndarray],
    images: Sequence[paths.KeyPath] = (),
    known: Optional[Dict[str, Any]] = None,
) -> Facts:
  """Notes the facts of one episode.

  Args:
    index: int64 `[]`: the index of the episode in the data set.
    steps: its stacked steps, with leaves of one length.
    is_cut: bool `[]`: whether the leaves were of several lengths.
    accumulation: the statistics, which say what a row is.
    bounds: the least and the greatest value that each column may have, float64
      `[D]` each; infinite where there is no bound.
    images: the keys, in a step, of the image fields that are shown.
    known: the fields of the episode besides its steps.
  """
  rows = accumulation.rows(episode_batches.of_one(steps))
  outcome = outcomes.outcome(steps)
  checks = _checks(index, steps, is_cut)
  numbers = rows[:, : -rows_lib.NUM_OUTCOMES]
  is_last = last_steps.is_last(tf.shape(rows)[0])
  not_finite = ~tf.math.is_finite(numbers) & rows_lib.are_meant(
      steps, is_last, accumulation.leaves
  )
  is_outside = (numbers < bounds[0]) | (numbers > bounds[1])
  return Facts(
      episode=index,
      rows=rows,
      num_steps=tf.shape(rows, tf.int64)[0],
      outcome=tf.stack([tf.cast(value, tf.float64) for value in outcome]),
      last_reward=tf.concat(
          [tf.constant([np.nan], tf.float64), _rewards(steps)], 0
      )[-1],
      content=_content(steps),
      checks=tf.stack([tf.reduce_any(checks[name]) for name in CHECKS]),
      check_steps=tf.stack([_first(checks[name]) for name in CHECKS]),
      not_finite=_first(not_finite),
      outside=tf.math.count_nonzero(is_outside, axis=0),
      outside_steps=_first(is_outside),
      frames=excerpts.take_frames(steps, images),
      instruction=_instruction(steps, known or {}),
  )


def _instruction(steps, known) -> tf.Tensor:
  """Returns the first text of a field whose name is one of instructions."""
  for nest, rank in (steps, 1), (known, 0):
    for keys, leaf in tree.flatten_with_path(nest):
      if (
          any(word in str(keys[-1]) for word in _INSTRUCTIONS)
          and isinstance(leaf, tf.Tensor)
          and leaf.dtype == tf.string
          and leaf.shape.rank == rank
      ):
        return tf.concat([tf.reshape(leaf, [-1]), ['']], 0)[0]
  return tf.constant('')


def _checks(index, steps, is_cut) -> Dict[str, tf.Tensor]:
  """Returns where each check holds, bool `[T]`, or `[]` for no single step."""
  flags = validation.outline_of(steps)
  discount = flags[rlds.DISCOUNT]
  num_steps = tf.size(discount, tf.int64)
  is_valid = validation.are_valid(
      validation.with_end(flags), tf.stack([0, num_steps]), 'strict'
  )[0]
  is_end = flags[rlds.IS_LAST] & flags[rlds.IS_TERMINAL]
  leads_to_end = tf.concat([is_end[1:], [False]], 0)[: tf.size(is_end)]
  reward = _rewards(steps)
  is_last = last_steps.is_last(tf.size(discount))
  is_zero = reward == 0
  last_is_zero, last_is_repeated = _last_observation(steps[rlds.OBSERVATION])

  def several(name):
    # The second step that has the flag shows it.
    return flags[name] & (tf.cumsum(tf.cast(flags[name], tf.int32)) == 2)

  return {
      'unequal_lengths': is_cut,
      'empty': tf.equal(tf.size(discount), 0) & ~is_cut,
      'invalid': ~is_valid & (num_steps > 0),
      'several_first': several(rlds.IS_FIRST),
      'several_last': several(rlds.IS_LAST),
      'several_terminal': several(rlds.IS_TERMINAL),
      'bootstraps': leads_to_end & ~is_last & (discount != 0),
      'zero_rewards': (tf.size(discount) > 1) & tf.reduce_all(is_zero),
      'last_reward': is_last & ~is_zero & tf.math.is_finite(reward),
      'last_is_zero': last_is_zero,
      'last_is_repeated': last_is_repeated,
  }


def _rewards(steps) -> tf.Tensor:
  (reward,) = tf.nest.flatten(steps[rlds.REWARD])
  return tf.reshape(tf.cast(reward, tf.float64), [-1])


def _last_observation(observation):
  """Returns, bool `[T]` each, whether the last one is zero, or a repetition.

  Zeros after zeros are a repetition. Strings are never zero.
  """
  leaves = tf.nest.flatten(observation)
  nothing = tf.constant(False), tf.constant(False)
  if not leaves:
    return nothing
  length = tf.shape(leaves[0])[0]

  def compare():
    are_same = [tf.reduce_all(tf.equal(leaf[-2], leaf[-1])) for leaf in leaves]
    before, last = (
        tf.reduce_any(
            [
                tf.reduce_any(tf.cast(leaf[row], tf.bool))
                for leaf in leaves
                if leaf.dtype != tf.string
            ]
            or [True]
        )
        for row in (-2, -1)
    )
    return before & ~last, tf.reduce_all(are_same)

  found = tf.cond(length > 1, compare, lambda: nothing)
  is_end = tf.equal(tf.range(length), length - 1)
  return tuple(is_end & one for one in found)


def _content(steps) -> tf.Tensor:
  parts = [
      tf.io.serialize_tensor(leaf)
      for name in (rlds.OBSERVATION, rlds.ACTION, rlds.REWARD)
      for leaf in tf.nest.flatten(steps[name])
  ]
  return tf.strings.to_hash_bucket_fast(tf.strings.join(parts), _HASHES)


def _first(found: tf.Tensor) -> tf.Tensor:
  """Returns the first row of bool `[T, ...]` that is True; -1 for none."""
  if found.shape.rank == 0:
    return tf.constant(-1, tf.int64)
  # `argmax` fails where there are no rows.
  padding = [[0, 1]] + [[0, 0]] * (found.shape.rank - 1)
  padded = tf.pad(tf.cast(found, tf.int8), padding)
  return tf.where(tf.reduce_any(found, axis=0), tf.argmax(padded, axis=0), -1)
