"""A uniform sample of bounded size of the rows of a stream."""

from typing import NamedTuple

import tensorflow as tf


class Reservoir(NamedTuple):
  """Rows that are a uniform sample of all rows seen so far.

  After Vitter, Random sampling with a reservoir (1985), algorithm R, on many
  rows at a time.

  Attributes:
    rows: `[size, D]`; as long as fewer were seen, zeros at the end.
    seen: int64 `[]`: how many rows were seen.
  """

  rows: tf.Tensor
  seen: tf.Tensor


def empty(size: int, width: int, dtype: tf.DType = tf.float64) -> Reservoir:
  """Returns the reservoir of no rows."""
  return Reservoir(tf.zeros([size, width], dtype), tf.constant(0, tf.int64))


def add(reservoir: Reservoir, rows: tf.Tensor, seed: int) -> Reservoir:
  """Adds rows `[B, D]` to the stream.

  Args:
    reservoir: what came before.
    rows: the rows that follow.
    seed: the same in all calls on one stream; they draw different numbers.

  Returns:
    The reservoir of the longer stream.
  """
  size = reservoir.rows.shape[0]
  count = tf.shape(rows, tf.int64)[0]
  index = reservoir.seen + tf.range(count)
  draws = tf.random.stateless_uniform(
      [count], [tf.cast(seed, tf.int64), reservoir.seen], dtype=tf.float64
  )
  # Row `i` takes the place of a row drawn from all `i + 1`, if it is in here.
  drawn = tf.cast(draws * tf.cast(index + 1, tf.float64), tf.int64)
  slots = tf.where(index < size, index, drawn)
  enters = tf.where(slots < size)[:, 0]
  # Of the rows of this block that go to one slot the last one stays.
  taken, which = tf.unique(tf.gather(slots, enters))
  last = tf.math.unsorted_segment_max(enters, which, tf.size(taken))
  return Reservoir(
      tf.tensor_scatter_nd_update(
          reservoir.rows, taken[:, None], tf.gather(rows, last)
      ),
      reservoir.seen + count,
  )
