"""Sums up a stream of rows, block by block, in memory that does not grow.

`Moments` and `Sample` are what is kept of all rows so far. Both begin as
`empty`, and two of them are merged, without their rows:

    rows          r0 r1 r2 r3      r4 r5 r6
    Sample        empty -- add --> s -- add --> s'      in the rows' order
    Moments       empty -- merge(of a block) --> m'     blocks in parallel
    two streams                    merge(s', t')
"""

from typing import Any, List, NamedTuple, Sequence

import numpy as np
import tensorflow as tf


class Moments(NamedTuple):
  """The moments of the finite numbers of each column.

  Attributes:
    count: float64 `[D]`: how many finite numbers there are.
    mean: float64 `[D]`: their mean.
    squares: float64 `[D]`: the sum of their squared differences from the mean.
    min: float64 `[D]`: the least of them.
    max: float64 `[D]`: the greatest of them.
    meant: float64 `[D]`: how many numbers have a meaning, finite or not.
  """

  count: Any
  mean: Any
  squares: Any
  min: Any
  max: Any
  meant: Any

  @classmethod
  def of(cls, block: tf.Tensor, are_meant: tf.Tensor) -> 'Moments':
    """Returns the moments of a block of `rows.Rows`, `[B, D]`."""
    is_finite = tf.math.is_finite(block)
    count = tf.reduce_sum(tf.cast(is_finite, tf.float64), 0)
    total = tf.reduce_sum(tf.where(is_finite, block, 0.0), 0)
    mean = tf.math.divide_no_nan(total, count)
    return cls(
        count,
        mean,
        tf.reduce_sum(tf.where(is_finite, block - mean, 0.0) ** 2, 0),
        tf.reduce_min(tf.where(is_finite, block, np.inf), 0),
        tf.reduce_max(tf.where(is_finite, block, -np.inf), 0),
        tf.reduce_sum(tf.cast(are_meant, tf.float64), 0),
    )

  def merge(self, other: 'Moments', seed: Sequence[int] = ()) -> 'Moments':
    """Returns the moments of the rows of both; nothing is drawn."""
    del seed
    # The method of Chan, Golub and LeVeque (1979), which stays exact where the
    # mean is far greater than the deviation.
    count = self.count + other.count
    share = tf.math.divide_no_nan(other.count, count)
    delta = other.mean - self.mean
    return Moments(
        count,
        self.mean + delta * share,
        self.squares + other.squares + delta**2 * self.count * share,
        tf.minimum(self.min, other.min),
        tf.maximum(self.max, other.max),
        self.meant + other.meant,
    )


class Sample(NamedTuple):
  """A uniform sample of the rows, from which quantiles are taken.

  It is Algorithm R of Vitter, Random Sampling with a Reservoir (1985), applied
  to a block at a time.

  Attributes:
    rows: float64 `[size, D]`; while fewer rows than `size` were seen, the last
      ones are zeros.
    seen: int64 `[]`: how many rows were seen.
  """

  rows: Any
  seen: Any

  @classmethod
  def empty(cls, size: int, width: int) -> 'Sample':
    """Returns the sample of no rows, which will hold `size` of `width`."""
    return cls(tf.zeros([size, width], tf.float64), tf.constant(0, tf.int64))

  def add(self, block: tf.Tensor, seed: int) -> 'Sample':
    """Returns the sample with the next rows added, float64 `[B, D]`."""
    size = self.rows.shape[0]
    count = tf.shape(block, tf.int64)[0]
    index = self.seen + tf.range(count)
    draws = tf.random.stateless_uniform(
        [count], [tf.cast(seed, tf.int64), self.seen], dtype=tf.float64
    )
    # Row `i` draws one of the numbers 0 to `i`. If that is a slot of the sample
    # the row takes it.
    drawn = tf.cast(draws * tf.cast(index + 1, tf.float64), tf.int64)
    slots = tf.where(index < size, index, drawn)
    enters = tf.where(slots < size)[:, 0]
    # If several rows of this block draw one slot, the last one stays in it.
    taken, which = tf.unique(tf.gather(slots, enters))
    last = tf.math.unsorted_segment_max(enters, which, tf.size(taken))
    rows = tf.tensor_scatter_nd_update(
        self.rows, taken[:, None], tf.gather(block, last)
    )
    return Sample(rows, self.seen + count)

  def merge(self, other: 'Sample', seed: Sequence[int]) -> 'Sample':
    """Returns the sample of the rows of two streams, eagerly.

    Args:
      other: the sample of the stream that comes after this one.
      seed: non-negative ints, other ones for each merge.
    """
    size = self.rows.shape[0]
    ours, theirs = int(self.seen), int(other.seen)
    held = [self.filled(), other.filled()]
    if ours + theirs > size:
      rng = np.random.default_rng(seed)
      # How many rows are ours is hypergeometric. NumPy's own distribution only
      # takes numbers up to 1e9.
      taken = 0
      for place, number in enumerate(rng.random(size).tolist()):
        taken += number * (ours + theirs - place) < ours - taken
      held = [
          rows[np.sort(rng.choice(len(rows), number, replace=False))]
          for rows, number in zip(held, (taken, size - taken))
      ]
    rows = np.concatenate(held)
    rows = np.pad(rows, [(0, size - len(rows)), (0, 0)])
    return Sample(tf.constant(rows), tf.constant(ours + theirs, tf.int64))

  def columns(self) -> List[np.ndarray]:
    """Returns the finite numbers of each column."""
    return [column[np.isfinite(column)] for column in self.filled().T]

  def filled(self) -> np.ndarray:
    """Returns the rows, without those that are not filled."""
    return np.asarray(self.rows)[: int(self.seen)]
