"""Sums up a stream of rows, block by block, in memory that does not grow.

An `Accumulator` says how: `Moments` and `Sample` are two. Any program that
reads a data set can pass its rows to one, and to others of its own:

    rows       r0 r1 r2 r3      r4 r5 r6
    parts        part(.)         part(.)         in any order, in parallel
    states     empty() -- add --> s -- add --> s'           in the rows' order
    two streams                  merge(s', t', seed)   of the states alone
"""

import abc
from typing import Any, NamedTuple, Sequence

import numpy as np
import tensorflow as tf


class Accumulator(abc.ABC):
  """What is kept of all rows so far: a state, a nest of tensors."""

  @abc.abstractmethod
  def empty(self) -> Any:
    """Returns the state before the first row."""

  def part(self, block: tf.Tensor) -> Any:
    """Returns what `add` needs of a block of rows; by default the block.

    It depends on nothing else, so that several are made in parallel.

    Args:
      block: float64 `[B, D]`.
    """
    return block

  @abc.abstractmethod
  def add(self, state: Any, part: Any) -> Any:
    """Returns the state with the part of the next block added."""

  @staticmethod
  @abc.abstractmethod
  def merge(one: Any, other: Any, seed: Sequence[int] = ()) -> Any:
    """Returns the state of the rows of two streams, `one` before `other`.

    Args:
      one: the state of a stream.
      other: the state of another stream.
      seed: the seed of what is drawn, non-negative ints, other ones for each
        merge.
    """


class Moments(Accumulator):
  """The moments of the finite numbers of each column."""

  class State(NamedTuple):
    """Moments, of a block or of all rows.

    Attributes:
      count: float64 `[D]`: how many finite numbers there are.
      mean: float64 `[D]`: their mean.
      squares: float64 `[D]`: the sum of their squared differences from the
        mean.
      min: float64 `[D]`: the least of them.
      max: float64 `[D]`: the greatest of them.
      rows: int64 `[]`: the number of all rows.
    """

    count: Any
    mean: Any
    squares: Any
    min: Any
    max: Any
    rows: Any

  def __init__(self, width: int):
    self._width = width

  def empty(self):
    return self.part(tf.zeros([0, self._width], tf.float64))

  def part(self, block):
    is_finite = tf.math.is_finite(block)
    count = tf.reduce_sum(tf.cast(is_finite, tf.float64), 0)
    total = tf.reduce_sum(tf.where(is_finite, block, 0.0), 0)
    mean = tf.math.divide_no_nan(total, count)
    return self.State(
        count,
        mean,
        tf.reduce_sum(tf.where(is_finite, block - mean, 0.0) ** 2, 0),
        tf.reduce_min(tf.where(is_finite, block, np.inf), 0),
        tf.reduce_max(tf.where(is_finite, block, -np.inf), 0),
        tf.shape(block, tf.int64)[0],
    )

  def add(self, state, part):
    return self.merge(state, part)

  @staticmethod
  def merge(one, other, seed=()):
    # The method of Chan, Golub and LeVeque (1979), which stays exact where the
    # mean is far greater than the deviation.
    count = one.count + other.count
    share = tf.math.divide_no_nan(other.count, count)
    delta = other.mean - one.mean
    return Moments.State(
        count,
        one.mean + delta * share,
        one.squares + other.squares + delta**2 * one.count * share,
        tf.minimum(one.min, other.min),
        tf.maximum(one.max, other.max),
        one.rows + other.rows,
    )


class Sample(Accumulator):
  """A uniform sample of the rows, from which quantiles are taken.

  It is Algorithm R of Vitter, Random Sampling with a Reservoir (1985), applied
  to a block at a time.
  """

  class State(NamedTuple):
    """A sample.

    Attributes:
      rows: float64 `[size, D]`; while fewer rows than `size` were seen, the
        last ones are zeros.
      seen: int64 `[]`: how many rows were seen.
    """

    rows: Any
    seen: Any

  def __init__(self, size: int, width: int, seed: int):
    """Creates the accumulator of samples of `size` rows of `width` columns."""
    self._shape = (size, width)
    self._seed = seed

  def empty(self):
    zeros = tf.zeros(self._shape, tf.float64)
    return self.State(zeros, tf.constant(0, tf.int64))

  def add(self, state, part):
    size = self._shape[0]
    count = tf.shape(part, tf.int64)[0]
    index = state.seen + tf.range(count)
    draws = tf.random.stateless_uniform(
        [count], [tf.cast(self._seed, tf.int64), state.seen], dtype=tf.float64
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
        state.rows, taken[:, None], tf.gather(part, last)
    )
    return self.State(rows, state.seen + count)

  @staticmethod
  def merge(one, other, seed=()):
    size = one.rows.shape[0]
    ours, theirs = int(one.seen), int(other.seen)
    held = [Sample.rows_of(one), Sample.rows_of(other)]
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
    return Sample.State(
        tf.constant(np.pad(rows, [(0, size - len(rows)), (0, 0)])),
        tf.constant(ours + theirs, tf.int64),
    )

  @staticmethod
  def rows_of(state: 'Sample.State') -> np.ndarray:
    """Returns the rows of a sample, without those that are not filled."""
    return np.asarray(state.rows)[: int(state.seen)]
