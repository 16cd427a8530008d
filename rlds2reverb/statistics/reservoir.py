"""A uniform sample of bounded size of the rows of a stream."""

from typing import NamedTuple, Sequence

import numpy as np
import tensorflow as tf


class Reservoir(NamedTuple):
  """A uniform sample of all rows seen so far.

  It is Algorithm R of Vitter, Random Sampling with a Reservoir (1985), applied
  to many rows at a time.

  Attributes:
    rows: the sample, `[size, D]`. While fewer rows than `size` were seen, the
      last rows are zeros.
    seen: int64 `[]`: how many rows were seen.
  """

  rows: tf.Tensor
  seen: tf.Tensor


def empty(size: int, width: int, dtype: tf.DType = tf.float64) -> Reservoir:
  """Returns a reservoir that has seen no rows.

  Args:
    size: the number of rows of the sample.
    width: the number of columns.
    dtype: the dtype of the rows.
  """
  return Reservoir(tf.zeros([size, width], dtype), tf.constant(0, tf.int64))


def add(reservoir: Reservoir, rows: tf.Tensor, seed: int) -> Reservoir:
  """Adds rows `[B, D]` to the stream.

  Args:
    reservoir: the sample of all rows before these.
    rows: the rows to add.
    seed: the seed of the sample. It is the same in all calls on one stream;
      each call still draws other numbers.

  Returns:
    The sample of all rows, these included.
  """
  size = reservoir.rows.shape[0]
  count = tf.shape(rows, tf.int64)[0]
  index = reservoir.seen + tf.range(count)
  draws = tf.random.stateless_uniform(
      [count], [tf.cast(seed, tf.int64), reservoir.seen], dtype=tf.float64
  )
  # Row `i` draws one of the numbers 0 to `i`. If that is a slot of the sample,
  # the row replaces the one in it.
  drawn = tf.cast(draws * tf.cast(index + 1, tf.float64), tf.int64)
  slots = tf.where(index < size, index, drawn)
  enters = tf.where(slots < size)[:, 0]
  # If several rows of this block draw one slot, the last one stays in it.
  taken, which = tf.unique(tf.gather(slots, enters))
  last = tf.math.unsorted_segment_max(enters, which, tf.size(taken))
  return Reservoir(
      tf.tensor_scatter_nd_update(
          reservoir.rows, taken[:, None], tf.gather(rows, last)
      ),
      reservoir.seen + count,
  )


def merge(one: Reservoir, other: Reservoir, seed: Sequence[int]) -> Reservoir:
  """Returns a uniform sample of the rows of two streams.

  Args:
    one: a sample of the rows of one stream.
    other: a sample of the same size of those of the other.
    seed: the seed of the choice, non-negative ints.
  """
  size = one.rows.shape[0]
  counts = [int(one.seen), int(other.seen)]
  held = [
      reservoir.rows.numpy()[:count]
      for reservoir, count in zip((one, other), counts)
  ]
  if sum(counts) > size:
    rng = np.random.default_rng(seed)
    taken = _draw(rng, counts[0], counts[1], size)
    held = [
        rows[np.sort(rng.choice(len(rows), number, replace=False))]
        for rows, number in zip(held, (taken, size - taken))
    ]
  rows = np.concatenate(held)
  return Reservoir(
      tf.constant(np.pad(rows, [(0, size - len(rows)), (0, 0)])),
      tf.constant(sum(counts), tf.int64),
  )


def _draw(rng: np.random.Generator, ours: int, theirs: int, size: int) -> int:
  """Draws from the hypergeometric distribution: how many of `size` are ours.

  NumPy's own `hypergeometric` only takes numbers up to 1e9.
  """
  taken = 0
  for place, number in enumerate(rng.random(size).tolist()):
    if number * (ours + theirs - place) < ours - taken:
      taken += 1
  return taken
