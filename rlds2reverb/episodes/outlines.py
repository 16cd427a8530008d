"""The outline of an episode: its flags and discounts, without its fields.

An outline has a few bytes for each step, so the outline of the largest episode
fits into memory. The checks of an episode need nothing else, so an invalid
episode is refused before any of it is used.
"""

from typing import Any, Dict, Iterable, Optional, Sequence

import tensorflow as tf

from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# A dict of columns [T]: the flags are bool, and the discount is float32. Where
# NaN is looked for, there is also NAN_FIELD, int32. It is 0 for a step without
# NaN. Otherwise it is 1 + the index of the step's first field that holds one,
# in the order of `steps_lib.float_fields`.
Outline = Dict[str, tf.Tensor]
NAN_FIELD = 'nan_field'

FIELDS = frozenset(
    [rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL, rlds.DISCOUNT]
)


def end_outline(find_nan: bool = False) -> Outline:
  """Returns the outline `[1]` of a FIRST step, assumed to follow an episode.

  Args:
    find_nan: whether the outline has the column `NAN_FIELD`.
  """
  end = {
      rlds.IS_FIRST: tf.constant([True]),
      rlds.IS_LAST: tf.constant([False]),
      rlds.IS_TERMINAL: tf.constant([False]),
      rlds.DISCOUNT: tf.constant([0.0]),
  }
  if find_nan:
    end[NAN_FIELD] = tf.constant([0])
  return end


def outline_of(
    steps: Any,
    nan_fields: Sequence[str] = (),
    lengths: Optional[stacked_steps.Lengths] = None,
) -> Outline:
  """Returns the outline `[B]` of steps stacked `[B, ...]`.

  Args:
    steps: a dict of the outline's fields and `nan_fields`, and perhaps others.
    nan_fields: the names of the fields in which `NAN_FIELD` finds NaN. If there
      are none, the outline has no such column.
    lengths: the `Lengths` of the steps, if they may differ. If they do differ,
      the outline is `[0]`.
  """
  if lengths is not None:
    shortest = tf.reduce_min(lengths.rows, keepdims=True)
    end = tf.where(shortest == tf.reduce_max(lengths.rows), shortest, 0)
    steps = tf.nest.map_structure(
        lambda leaf: tf.strided_slice(leaf, [0], end, [1]),
        select(steps, FIELDS.union(nan_fields)),
    )
  outline = {}
  for name, end in end_outline().items():
    outline[name] = steps_lib.one_a_step(name, steps[name], end.dtype)
  if nan_fields:
    leaves = steps_lib.float_fields(select(steps, nan_fields))
    nan_field = tf.zeros_like(outline[rlds.DISCOUNT], tf.int32)
    for index, (_, leaf) in reversed(list(enumerate(leaves))):
      has_nan = tf.reduce_any(
          tf.math.is_nan(tf.reshape(leaf, [tf.shape(leaf)[0], -1])), axis=1
      )
      nan_field = tf.where(has_nan, index + 1, nan_field)
    outline[NAN_FIELD] = nan_field
  return outline


def select(steps: Dict[str, Any], fields: Iterable[str]) -> Dict[str, Any]:
  """Returns the named fields of steps."""
  return {field: steps[field] for field in fields}
