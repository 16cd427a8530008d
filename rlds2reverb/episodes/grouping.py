"""Groups the rows of short episodes, so that many are handled as one.

The fixed cost of an episode is then paid once a group. Groups have a limit in
bytes. An episode whose leaves differ in length is a group by itself.
"""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import stacked_steps

# The bytes of episodes that are grouped: as many as those of a block.
GROUP_BYTES = 2 << 20


class Group(NamedTuple):
  """The rows of `E` episodes, one after the other, leaf by leaf.

  Attributes:
    columns: a nest of leaves `[N, ...]`.
    splits: int64 `[leaves, E + 1]`: the row splits of each leaf.
    fields: a nest of values that an episode has once, `[E, ...]`.
  """

  columns: Any
  splits: tf.Tensor
  fields: Any


def of_ragged(rows: Any, fields: Any) -> Group:
  """Returns the group of the episodes that `ragged_batch` put together.

  Args:
    rows: a nest of leaves `[E, (T), ...]`, ragged ones or, if all episodes are
      of one known length, tensors.
    fields: a nest of values that an episode has once, `[E, ...]`.
  """
  leaves = [
      leaf
      if isinstance(leaf, tf.RaggedTensor)
      else tf.RaggedTensor.from_tensor(leaf, row_splits_dtype=tf.int64)
      for leaf in tf.nest.flatten(rows)
  ]
  return Group(
      tf.nest.pack_sequence_as(rows, [leaf.values for leaf in leaves]),
      tf.stack([leaf.row_splits for leaf in leaves]),
      fields,
  )


def bounds(splits: tf.Tensor, row_bytes: int) -> tf.Tensor:
  """Returns where episodes are divided, int64 `[P, 2]`; see `bounds_of_parts`.

  Args:
    splits: int64 `[leaves, E + 1]`: the row splits of each leaf.
    row_bytes: the bytes of a row.
  """
  lengths = splits[:, 1:] - splits[:, :-1]
  longest = tf.reduce_max(lengths, axis=0)
  is_unequal = longest != tf.reduce_min(lengths, axis=0)
  return bounds_of_parts(longest * row_bytes, GROUP_BYTES, is_unequal)


def part(bounds: tf.Tensor, whole: Group) -> Group:
  """Returns the episodes of a group from `bounds[0]` until `bounds[1]`."""
  splits = whole.splits[:, bounds[0] : bounds[1] + 1]
  # `column[start:stop]` would add the same operations for every column. A
  # column that is taken whole is not copied.
  step = tf.ones([1], tf.int64)
  leaves = tf.nest.flatten(whole.columns)
  columns = [
      tf.strided_slice(column, start, stop, step)
      for column, start, stop in zip(
          leaves, tf.unstack(splits[:, :1]), tf.unstack(splits[:, -1:])
      )
  ]
  return Group(
      tf.nest.pack_sequence_as(whole.columns, columns),
      splits - splits[:, :1],
      stacked_steps.rows_of(whole.fields, bounds[0], bounds[1]),
  )


def bounds_of_parts(
    num_bytes: tf.Tensor,
    max_bytes: int,
    is_alone: Optional[tf.Tensor] = None,
) -> tf.Tensor:
  """Divides a sequence of episodes into parts of limited size.

  The episodes that begin within the same `max_bytes` make a part, which can
  have nearly twice as many bytes. A larger episode is a part by itself.

  Args:
    num_bytes: int64 `[E]`: the bytes of each episode.
    max_bytes: how many bytes a part should have at most.
    is_alone: bool `[E]`: whether an episode is to be a part by itself.

  Returns:
    int64 `[P, 2]`: where each part starts and stops. For the bytes `[2, 1, 3]`
    and 3 bytes at most, it is `[[0, 2], [2, 3]]`.
  """
  alone = num_bytes > max_bytes
  if is_alone is not None:
    alone |= is_alone
  alone = tf.cast(alone, tf.int64)
  part = tf.cumsum(num_bytes, exclusive=True) // max_bytes
  part += tf.cumsum(alone) + tf.cumsum(alone, exclusive=True)
  is_first = tf.concat(
      [tf.ones_like(part[:1], tf.bool), part[1:] != part[:-1]], 0
  )
  starts = tf.where(is_first)[:, 0]
  stops = tf.concat([starts, tf.shape(part, tf.int64)], 0)[1:]
  return tf.stack([starts, stops], axis=1)
