"""Puts all numbers of a step into one row, for statistics of all at once."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds

NUM_OUTCOMES = 4  # the columns that are about an episode

# The fields that have no meaning in the last step of an episode.
OF_TRANSITIONS = (rlds.ACTION, rlds.REWARD, rlds.DISCOUNT)

_MAX_LEAF_SIZE = 1024

Leaves = List[Tuple[paths.KeyPath, tf.TensorSpec]]


def choose_leaves(
    step_spec: Dict[str, Any], fields: Optional[Sequence[paths.Path]]
) -> Leaves:
  """Returns the keys and specs of the leaves that have statistics.

  Args:
    step_spec: the spec of a step.
    fields: the paths of fields; or None for all but the flags, strings, and
      leaves that have more than 1024 numbers or a shape that is not known.

  Raises:
    ValueError: if there is no such field, or a leaf of one is not of numbers of
      a known shape.
  """
  leaves = {
      paths.find(step_spec, name): spec
      for name, spec in paths.leaves(step_spec).items()
  }
  above = [()] if fields is None else fields
  above = [paths.find(step_spec, path) for path in above]
  chosen = {
      keys: spec
      for one in above
      for keys, spec in leaves.items()
      if keys[: len(one)] == one
  }
  for keys, spec in list(chosen.items()):
    is_numbers = (
        isinstance(spec, tf.TensorSpec)
        and spec.dtype != tf.string
        and spec.shape.is_fully_defined()
    )
    if fields is None and (
        keys[0] in (*rlds.FLAGS, last_steps.HAS_ACTION)
        or not is_numbers
        or spec.shape.num_elements() > _MAX_LEAF_SIZE
    ):
      del chosen[keys]
    elif not is_numbers:
      raise ValueError(
          f'{paths.name_of(keys)} must have numbers of a known shape, but its'
          f' spec is {spec}. Name the fields one by one.'
      )
  return list(chosen.items())


def to_rows(
    batch: episode_batches.EpisodeBatch,
    leaves: Leaves,
    acting_only: bool = False,
) -> tf.Tensor:
  """Returns the rows of all episodes of a batch, float64 `[N, D]`.

  A number that has no meaning is NaN. The last `NUM_OUTCOMES` columns are about
  an episode, in the row of its last step, and NaN in all other rows: its
  return, its number of transitions, its number of actions that count, and
  whether it is terminal.

  Args:
    batch: a batch, whose leaves have one length.
    leaves: the leaves that become columns, in this order.
    acting_only: see `are_meant`.
  """
  steps, row_splits = batch.steps, batch.row_splits
  is_last = last_steps.are_last(row_splits)
  have_action = tf.cast(last_steps.have_action(steps, is_last), tf.int64)
  outcome = outcomes.outcomes(batch)
  of_episodes = (
      outcome.undiscounted_return,
      outcome.length,
      episode_batches.sum_rows(have_action, row_splits),
      outcome.is_terminal,
  )
  ends = tf.gather(
      tf.stack([tf.cast(one, tf.float64) for one in of_episodes], -1),
      episode_batches.episode_of_rows(row_splits),
  )
  numbers = [tf.zeros([row_splits[-1], 0], tf.float64)]
  for keys, spec in leaves:
    leaf = tf.cast(paths.get(steps, keys), tf.float64)
    size = spec.shape.num_elements()
    numbers.append(tf.reshape(leaf, [row_splits[-1], size]))
  are_counted = are_meant(steps, is_last, leaves, acting_only)
  are_ends = tf.tile(is_last[:, None], [1, NUM_OUTCOMES])
  return tf.where(
      tf.concat([are_counted, are_ends], axis=1),
      tf.concat([*numbers, ends], axis=1),
      np.nan,
  )


def are_meant(
    steps: Dict[str, Any],
    is_last: tf.Tensor,
    leaves: Leaves,
    acting_only: bool = False,
) -> tf.Tensor:
  """Returns which numbers of stacked steps have a meaning, bool `[T, D]`.

  Args:
    steps: a dict of stacked steps `[T, ...]`.
    is_last: bool `[T]`: whether each is the last of its episode.
    leaves: the leaves that are columns, in this order.
    acting_only: whether all fields count only in steps whose action has a
      meaning.
  """
  have_action = last_steps.have_action(steps, is_last)
  columns = [tf.zeros([tf.size(is_last), 0], tf.bool)]
  for keys, spec in leaves:
    counts = ~is_last if keys[0] in OF_TRANSITIONS else tf.ones_like(is_last)
    if acting_only or keys[0] == rlds.ACTION:
      counts = have_action
    columns.append(tf.tile(counts[:, None], [1, spec.shape.num_elements()]))
  return tf.concat(columns, axis=1)
