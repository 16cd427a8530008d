"""All numbers of a step as one row, for statistics of all of them at once."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import packs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds

NUM_OUTCOMES = 3  # the columns that hold an `Outcome`

# The fields that have no meaning in the last step of an episode.
OF_TRANSITIONS = (rlds.ACTION, rlds.REWARD, rlds.DISCOUNT)

_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
_MAX_LEAF_SIZE = 1024

Leaves = List[Tuple[paths.Keys, tf.TensorSpec]]


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
  named = paths.leaves(step_spec)
  keys = {name: paths.find(step_spec, name) for name in named}
  if fields is None:
    return [
        (keys[name], spec)
        for name, spec in named.items()
        if keys[name][0] not in _FLAGS
        and _is_numbers(spec)
        and spec.shape.num_elements() <= _MAX_LEAF_SIZE
    ]
  chosen = {}
  for path in fields:
    above = paths.find(step_spec, path)
    for name, spec in named.items():
      if keys[name][: len(above)] != above:
        continue
      if not _is_numbers(spec):
        raise ValueError(
            f'{name} must have numbers of a known shape, but its spec is'
            f' {spec}. Name the fields one by one.'
        )
      chosen[keys[name]] = spec
  return list(chosen.items())


def _is_numbers(spec) -> bool:
  return (
      isinstance(spec, tf.TensorSpec)
      and spec.dtype != tf.string
      and spec.shape.is_fully_defined()
  )


def to_rows(steps: Dict[str, Any], leaves: Leaves) -> tf.Tensor:
  """Returns the numbers of stacked steps, float64 `[T, D]`.

  A number that has no meaning is NaN. The last `NUM_OUTCOMES` columns hold the
  outcome of the episode in the row of its last step, and NaN in all other rows.

  Args:
    steps: a dict of stacked steps `[T, ...]`.
    leaves: the leaves that become the other columns, in this order.
  """
  length = tf.shape(outcomes.flag(steps, rlds.IS_LAST))[0]
  is_end = (tf.range(length) == length - 1)[:, None]
  in_last_row = tf.where(is_end, _as_row(outcomes.outcome(steps)), np.nan)
  return tf.concat([*_columns(steps, leaves), in_last_row], axis=1)


def pack_to_rows(pack: packs.Pack, leaves: Leaves) -> tf.Tensor:
  """Returns the rows of all episodes of a pack, float64 `[N, D]`.

  They are those that `to_rows` returns for each of the episodes.

  Args:
    pack: a pack, whose leaves have one length.
    leaves: the leaves that become columns, in this order.
  """
  begins, ends = pack.row_splits[:-1], pack.row_splits[1:]
  values = _as_row(outcomes.outcomes(pack))
  # An episode without steps has no row.
  has_steps = ends > begins
  last_rows = tf.boolean_mask(ends, has_steps)[:, None] - 1
  in_last_rows = tf.tensor_scatter_nd_update(
      tf.fill([pack.row_splits[-1], NUM_OUTCOMES], np.float64(np.nan)),
      last_rows,
      tf.boolean_mask(values, has_steps),
  )
  return tf.concat([*_columns(pack.steps, leaves), in_last_rows], axis=1)


def _as_row(outcome: outcomes.Outcome) -> tf.Tensor:
  """Returns an outcome, float64 `[3]`; or those of a pack, `[E, 3]`."""
  return tf.stack([tf.cast(value, tf.float64) for value in outcome], axis=-1)


def _columns(steps, leaves) -> List[tf.Tensor]:
  """Returns the columns of the leaves, float64 `[T, ...]` each."""
  is_last = outcomes.flag(steps, rlds.IS_LAST)[:, None]
  length = tf.size(is_last)
  columns = []
  for keys, spec in leaves:
    leaf = tf.cast(paths.get(steps, keys), tf.float64)
    leaf = tf.reshape(leaf, [length, spec.shape.num_elements()])
    if keys[0] in OF_TRANSITIONS:
      leaf = tf.where(~is_last, leaf, np.nan)
    columns.append(leaf)
  return columns
