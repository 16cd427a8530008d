"""Puts all numbers of a step into one row, for statistics of all at once."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds

NUM_OUTCOMES = 3  # the columns that are about an episode

# The fields that have no meaning in the last step of an episode.
_OF_TRANSITIONS = (rlds.REWARD, rlds.DISCOUNT)

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
  above = [()] if fields is None else fields
  above = [paths.find(step_spec, path) for path in above]
  chosen = []
  for name, spec in paths.leaves(step_spec).items():
    keys = paths.find(step_spec, name)
    if not any(keys[: len(one)] == one for one in above):
      continue
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
      continue
    if not is_numbers:
      raise ValueError(
          f'{name} must have numbers of a known shape, but its spec is {spec}.'
          ' Name the fields one by one.'
      )
    chosen.append((keys, spec))
  return chosen


class Rows(NamedTuple):
  """The numbers of steps, a row for each.

  The last `NUM_OUTCOMES` columns are about an episode, and mean something in
  the row of its last step: its return, its number of transitions, and whether
  it is terminal.

  Attributes:
    numbers: float64 `[N, D]`; NaN where a number has no meaning.
    are_meant: bool `[N, D]`: which of them have a meaning.
  """

  numbers: tf.Tensor
  are_meant: tf.Tensor


def rows_of(
    batch: episode_batches.EpisodeBatch,
    leaves: Leaves,
    acting_only: bool = False,
) -> Rows:
  """Returns the rows of all episodes of a batch.

  Args:
    batch: a batch, whose leaves have one length.
    leaves: the leaves that become columns, in this order.
    acting_only: whether all fields count only in steps whose action has a
      meaning.
  """
  steps, row_splits = batch.steps, batch.row_splits
  is_last = last_steps.are_last(row_splits)
  have_action = last_steps.have_action(steps, is_last)
  columns = [(tf.zeros([row_splits[-1], 0], tf.float64), is_last)]
  for keys, spec in leaves:
    leaf = tf.cast(paths.get(steps, keys), tf.float64)
    size = spec.shape.num_elements()
    counts = ~is_last if keys[0] in _OF_TRANSITIONS else tf.ones_like(is_last)
    if acting_only or keys[0] == rlds.ACTION:
      counts = have_action
    columns.append((tf.reshape(leaf, [row_splits[-1], size]), counts))
  outcome = outcomes.outcomes(batch)
  ends = tf.stack([tf.cast(one, tf.float64) for one in outcome], -1)
  ends = tf.gather(ends, episode_batches.episode_of_rows(row_splits))
  columns.append((ends, is_last))
  are_meant = tf.concat(
      [
          tf.tile(counts[:, None], [1, leaf.shape[1]])
          for leaf, counts in columns
      ],
      axis=1,
  )
  numbers = tf.concat([leaf for leaf, _ in columns], axis=1)
  return Rows(tf.where(are_meant, numbers, np.nan), are_meant)
