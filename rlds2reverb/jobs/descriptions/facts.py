"""Facts of the episodes of a batch: what may be odd, and what is counted.

`facts_of` is in graph mode; the other functions take what it returns in NumPy.
"""

import hashlib
from typing import Any, Dict, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import rows as rows_lib
from rlds2reverb.trajectories import validation

# The conditions in their order, and the sentence for each that follows "In 2 of
# 40 episodes, ".
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
_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
WHOLE, NO = -1, -2  # in place of a step: the whole episode, and no episode


class Facts(NamedTuple):
  """What is found in graph mode of `E` episodes, of `N` steps in all.

  Attributes:
    batch: the episodes. Fields that differ in length are cut to the shortest.
    rows: float64 `[N, W]`: their rows in the `Accumulation`.
    not_finite: bool `[N, D]`: which numbers should be finite, and are not.
    is_cut: bool `[]`: whether fields differ in length.
    is_valid: bool `[E]`: which episodes keep the rules of conversion.
  """

  batch: episode_batches.EpisodeBatch
  rows: tf.Tensor
  not_finite: tf.Tensor
  is_cut: tf.Tensor
  is_valid: tf.Tensor


def facts_of(
    batch: episode_batches.EpisodeBatch,
    accumulation: accumulation_lib.Accumulation,
) -> Facts:
  """Finds the facts of a batch of episodes, in graph mode."""
  lengths, is_cut = stacked_steps.lengths_of(batch.steps), tf.constant(False)
  if lengths is not None:
    is_cut = ~stacked_steps.are_equal(lengths)
    shortest = tf.reduce_min(lengths.rows)
    batch = batch._replace(
        steps=tf.cond(
            is_cut,
            lambda: stacked_steps.own_rows(batch.steps, 0, shortest),
            lambda: tf.nest.map_structure(tf.identity, batch.steps),
        ),
        row_splits=tf.minimum(batch.row_splits, tf.cast(shortest, tf.int64)),
    )
  steps, splits = batch.steps, batch.row_splits
  rows = accumulation.rows(batch)
  numbers = rows[:, : -rows_lib.NUM_OUTCOMES]
  outline = validation.with_end(validation.outline_of(steps))
  return Facts(
      batch,
      rows,
      ~tf.math.is_finite(numbers)
      & rows_lib.are_meant(
          steps, last_steps.are_last(splits), accumulation.leaves
      ),
      is_cut,
      validation.are_valid(outline, splits, 'strict'),
  )


def check(facts: Facts) -> np.ndarray:
  """Returns the first step that shows each of `CHECKS`, or `WHOLE` or `NO`.

  Args:
    facts: the facts of `E` episodes, in NumPy.

  Returns:
    int64 `[E, C]`.
  """
  steps, splits = facts.batch.steps, facts.batch.row_splits
  lengths = np.diff(splits)
  reward = rewards_of(steps)
  discount = steps[rlds.DISCOUNT].ravel().astype(np.float32)
  flags = np.stack([steps[flag].ravel().astype(bool) for flag in _FLAGS])
  is_last = np.zeros(len(reward), bool)
  is_last[splits[1:][lengths > 0] - 1] = True
  # The second step that has a flag shows that there are several.
  count = np.pad(np.cumsum(flags, 1), [(0, 0), (1, 0)])
  count = count[:, 1:] - np.repeat(count[:, splits[:-1]], lengths, 1)
  several_first, several_last, several_terminal = flags & (count == 2)
  leads_to_end = np.roll(flags[1] & flags[2], -1) & ~is_last
  rewarded = np.bincount(
      np.repeat(np.arange(len(lengths)), lengths), reward != 0, len(lengths)
  )
  last_is_zero, last_is_repeated = _dummies(steps[rlds.OBSERVATION], splits)
  by_steps = {
      'several_first': several_first,
      'several_last': several_last,
      'several_terminal': several_terminal,
      'bootstraps': leads_to_end & (discount != 0),
      'last_reward': is_last & (reward != 0) & np.isfinite(reward),
      'last_is_zero': last_is_zero,
      'last_is_repeated': last_is_repeated,
  }
  by_episodes = {
      'unequal_lengths': facts.is_cut,
      'empty': (lengths == 0) & ~facts.is_cut,
      'invalid': ~facts.is_valid & (lengths > 0),
      'zero_rewards': (rewarded == 0) & (lengths > 1),
  }
  found = dict(
      zip(by_steps, first_steps(np.stack(list(by_steps.values()), 1), splits).T)
  )
  for name, shows in by_episodes.items():
    found[name] = np.where(shows, WHOLE, np.full_like(lengths, NO))
  return np.stack([found[name] for name in CHECKS], axis=1)


def rewards_of(steps: Dict[str, Any]) -> np.ndarray:
  """Returns the rewards of stacked steps, float64 `[N]`."""
  (reward,) = tree.flatten(steps[rlds.REWARD])
  return reward.ravel().astype(np.float64)


def first_steps(found: np.ndarray, splits: np.ndarray) -> np.ndarray:
  """Returns the first step of each episode where bool `[N, K]` is true.

  Args:
    found: bool `[N, K]`.
    splits: where the steps of each episode begin and end, `[E + 1]`.

  Returns:
    int64 `[E, K]`, `NO` where it is never true.
  """
  steps = np.full([len(splits) - 1, found.shape[1]], NO)
  rows, columns = np.nonzero(found[::-1])  # The first one is written last.
  rows = len(found) - 1 - rows
  episodes = np.searchsorted(splits, rows, 'right') - 1
  steps[episodes, columns] = rows - splits[episodes]
  return steps


def _dummies(observation: Any, splits: np.ndarray) -> np.ndarray:
  """Returns which last observations are all zeros, and which a repetition.

  Zeros after zeros are a repetition. Strings are never zero.

  Returns:
    bool `[2, N]`.
  """
  leaves = tree.flatten(observation)
  ends = splits[1:][np.diff(splits) > 1] - 1
  is_set, was_set, is_same = np.zeros([3, len(ends)], bool)
  is_same[:] = bool(leaves)
  for leaf in leaves:
    last, before = leaf[ends], leaf[ends - 1]
    inner = tuple(range(1, leaf.ndim))
    is_same &= np.all(last == before, inner)
    if leaf.dtype != object:
      is_set |= last.astype(bool).any(inner)
      was_set |= before.astype(bool).any(inner)
  found = np.zeros([2, splits[-1]], bool)
  found[:, ends] = was_set & ~is_set, is_same
  return found


def content_of(steps: Dict[str, Any], begin: int, end: int) -> bytes:
  """Returns a hash of the observations, actions and rewards of an episode."""
  content = hashlib.blake2b(digest_size=8)
  for name in (rlds.OBSERVATION, rlds.ACTION, rlds.REWARD):
    for leaf in tree.flatten(steps[name]):
      part = leaf[begin:end]
      if part.dtype == object:
        texts = part.ravel().tolist()
        content.update(str(list(map(len, texts))).encode())
        content.update(b''.join(texts))
      else:
        content.update(np.ascontiguousarray(part))
  return content.digest()
