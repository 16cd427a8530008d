"""Samplers: which items make a batch.

A sampler is a pure function of a seed and the number of a batch. So where
sampling stands is one integer, and whoever goes on from there draws the same
batches as if there had been no interruption. `prioritized.py` has the sampler
that depends on more.
"""

import abc
import dataclasses
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import seeds as seeds_lib
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import store as store_lib


class Draws(NamedTuple):
  """Items that were drawn, `[...]`.

  Attributes:
    items: the numbers of the items, int64.
    probability: with which probability each one was drawn, float64.
    priority: the priority of each one, float64.
  """

  items: tf.Tensor
  probability: tf.Tensor
  priority: tf.Tensor


class Share(NamedTuple):
  """Whose draws they are.

  Attributes:
    seed: what tells them from other draws, a nonnegative integer each.
    worker_index: which of the workers draws.
    num_workers: how many workers draw from the same data.
  """

  seed: Any
  worker_index: int
  num_workers: int

  def seeds(self, count: int) -> np.ndarray:
    """Returns seeds of this worker alone, int64 `[count]`."""
    sequence = np.random.SeedSequence([*self.seed, self.worker_index])
    return _to_int64(sequence.generate_state(count, np.uint64))

  def common_seeds(self, count: int) -> np.ndarray:
    """Returns seeds that all workers have in common, int64 `[count]`."""
    sequence = np.random.SeedSequence([*self.seed])
    return _to_int64(sequence.generate_state(count, np.uint64))


# Draws batches: takes the number of a group of batches, int64 `[]`, the number
# `K` of batches of a group, and the size `B` of a batch. Returns `Draws`
# `[K, B]`, or with fewer than `B` items at the end of an epoch.
DrawFn = Callable[[tf.Tensor, int, int], Draws]


class Sampler(abc.ABC):
  """Chooses the items of a batch."""

  # Whether draws depend on what the trainer does between two batches, so that
  # none may be made in advance.
  is_synchronous = False

  @abc.abstractmethod
  def bind(self, population: population_lib.Population, share: Share) -> DrawFn:
    """Returns the function that draws from a population."""

  def last_batch_is_short(
      self,
      population: population_lib.Population,
      share: Share,
      batch_size: int,
  ) -> bool:
    """Returns whether some batches have fewer items than `batch_size`."""
    del population, share, batch_size
    return False


@dataclasses.dataclass(frozen=True)
class Uniform(Sampler):
  """Draws every item with the same probability, with replacement."""

  def bind(self, population, share):
    seed = share.seeds(1)[0]

    def draw(group, num_batches, batch_size):
      size = population.size()
      shape = [num_batches, batch_size]
      items = population.first() + _integers(shape, seed, group, size)
      return _with_priority(items, population, 1 / size)

    return draw


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Sampler):
  """Draws every item once an epoch, in a new random order every epoch.

  Worker `k` of `n` draws every `n`-th item of each epoch's order, so that the
  workers share an epoch.

      8 items, batches of 3    | 3 3 2 | 3 3 2 | ...
      drop_last                | 3 3   | 3 3   | ...

  Attributes:
    drop_last: whether the last items of an epoch are left out where they do not
      make a whole batch.
  """

  drop_last: bool = False

  def bind(self, population, share):
    seeds = share.common_seeds(2)
    count = population.num_items
    own = share_of(count, share)

    def draw(group, num_batches, batch_size):
      if self.drop_last and batch_size > own:
        raise ValueError(
            f'A batch of {batch_size} items is larger than an epoch, which has'
            f' {own} items for this worker, and drop_last leaves out what is'
            ' not a whole batch: nothing would be left.'
        )
      per_epoch = _batches_per_epoch(own, batch_size, self.drop_last)
      batches = group * num_batches + tf.range(num_batches, dtype=tf.int64)
      epochs = batches // per_epoch
      begins = batches % per_epoch * batch_size
      size = tf.constant(batch_size, tf.int64)
      if num_batches == 1:
        size = tf.minimum(size, own - begins[0])
      positions = begins[:, tf.newaxis] + tf.range(size)
      positions = positions * share.num_workers + share.worker_index
      epochs = tf.broadcast_to(epochs[:, tf.newaxis], tf.shape(positions))
      items = shuffled(
          tf.reshape(positions, [-1]), seeds, tf.reshape(epochs, [-1]), count
      )
      items = tf.reshape(items, tf.shape(positions))
      if num_batches > 1 or self.drop_last or own % batch_size == 0:
        items.set_shape([num_batches, batch_size])
      return _with_priority(items, population, 1 / count)

    return draw

  def last_batch_is_short(self, population, share, batch_size):
    own = share_of(population.num_items, share)
    return not self.drop_last and own % batch_size != 0


@dataclasses.dataclass(frozen=True)
class EpisodeFirst(Sampler):
  """Draws an episode, and then one of its items with equal probability.

  Attributes:
    weights: the weights of the episodes that have items, numbers from 0 up
      `[E]`; or a function that takes their `Runs` and returns the weights. By
      default all episodes have the same probability.
  """

  weights: Optional[Union[Any, Callable[[store_lib.Runs], Any]]] = None

  def bind(self, population, share):
    if population.crosses_episodes:
      raise ValueError(
          'EpisodeFirst draws episodes, but these items cross episodes, or are'
          ' sequences that do not say which episode they are of.'
      )
    counts = population.runs.num_items
    weights = self.weights
    if callable(weights):
      weights = weights(population.runs)
    if weights is None:
      weights = np.ones(len(counts))
    weights = np.asarray(weights, np.float64)
    if weights.shape != counts.shape:
      raise ValueError(
          f'There must be a weight for each of the {len(counts)} episodes that'
          f' have items, but the weights have the shape {weights.shape}.'
      )
    sums = tf.constant(_cumulative(weights, 'weights', 'episode'))
    run_probability = weights / weights.sum()
    probabilities = tf.constant(run_probability / counts)
    first_items = tf.constant(population.first_item[:-1])
    counts = tf.constant(counts)
    seeds = share.seeds(2)

    def draw(group, num_batches, batch_size):
      shape = [num_batches, batch_size]
      runs = _search(sums, fractions(shape, seeds[0], group))
      size = tf.gather(counts, runs)
      places = fractions(shape, seeds[1], group) * tf.cast(size, tf.float64)
      within = tf.cast(places, tf.int64)
      items = tf.gather(first_items, runs) + tf.minimum(within, size - 1)
      return _with_priority(items, population, tf.gather(probabilities, runs))

    return draw


@dataclasses.dataclass(frozen=True)
class Weighted(Sampler):
  """Draws every item with a probability proportional to its priority.

  The priorities are those that the items were made with; they do not change.
  `Prioritized` is for priorities that do.
  """

  def bind(self, population, share):
    priorities = population.priorities
    if priorities is None:
      return Uniform().bind(population, share)
    sums = tf.constant(_cumulative(priorities, 'priorities', 'item'))
    total = sums[-1]
    seed = share.seeds(1)[0]

    def draw(group, num_batches, batch_size):
      shape = [num_batches, batch_size]
      items = _search(sums, fractions(shape, seed, group))
      priority = population.priority(items)
      return Draws(items, priority / total, priority)

    return draw


def in_order(population: population_lib.Population, share: Share) -> DrawFn:
  """Returns the function that draws every item once, in their order.

  These are the items that there are now. To draw one that has made room for
  newer ones since is an InvalidArgumentError.
  """
  own = share_of(population.num_items, share)
  first = int(population.first())

  def draw(group, num_batches, batch_size):
    assert num_batches == 1
    begin = group * batch_size
    items = tf.range(begin, tf.minimum(begin + batch_size, own))
    items = first + items * share.num_workers + share.worker_index
    check = tf.debugging.Assert(
        tf.reduce_all(population.known(items)),
        [
            'Frames were appended or removed during a pass over the items, some'
            ' of which have made room for newer ones. Make a new data set for'
            ' each pass.'
        ],
    )
    with tf.control_dependencies([check]):
      items = tf.identity(items)
    return _with_priority(
        items[tf.newaxis], population, 1 / population.num_items
    )

  return draw


def num_batches_of_pass(num_items: int, share: Share, batch_size: int) -> int:
  """Returns how many batches make one pass over the items of a worker."""
  own = share_of(num_items, share)
  return _batches_per_epoch(own, batch_size, drop_last=False)


def shuffled(
    positions: tf.Tensor, seeds: np.ndarray, epochs: tf.Tensor, count: int
) -> tf.Tensor:
  """Returns which item is at each position of an epoch's random order.

  Args:
    positions: int64 `[N]`.
    seeds: two integers.
    epochs: the epoch of each position, int64 `[N]`.
    count: the number of items.

  Returns:
    int64 `[N]`.
  """
  if count == 1:
    return positions
  epochs = tf.cast(epochs, tf.uint64)
  keys = [_mix(epochs, seed) for seed in seeds]
  # `tf.random.experimental.index_shuffle` pads several seeds wrongly.
  return tf.raw_ops.RandomIndexShuffle(
      index=positions,
      seed=tf.stack([*keys, tf.zeros_like(positions)], -1),
      max_index=tf.constant(count - 1, tf.int64),
      # After 4 rounds, neighbours are still correlated.
      rounds=8,
  )


def _mix(numbers: tf.Tensor, seed: int) -> tf.Tensor:
  """Returns numbers whose bits look random, of `SplitMix64`.

  Similar keys shuffle in similar ways, so consecutive numbers are no keys.

  Args:
    numbers: uint64 `[N]`.
    seed: which of all random functions it is.

  Returns:
    int64 `[N]`.
  """
  mixed = numbers * tf.constant(seeds_lib.GOLDEN, tf.uint64)
  mixed = seeds_lib.mix_bits(mixed + tf.constant(seed, tf.uint64))
  mixed = tf.bitwise.right_shift(mixed, tf.constant(1, tf.uint64))
  return tf.cast(mixed, tf.int64)


def _with_priority(items, population, probability) -> Draws:
  return Draws(
      items,
      tf.broadcast_to(tf.cast(probability, tf.float64), tf.shape(items)),
      population.priority(items),
  )


def share_of(count: int, share: Share) -> int:
  own = -(-(count - share.worker_index) // share.num_workers)
  if own < 1:
    raise ValueError(
        f'There are {count} items, which is too few for'
        f' {share.num_workers} workers to share.'
    )
  return own


def _batches_per_epoch(count, batch_size, drop_last) -> int:
  return count // batch_size if drop_last else -(-count // batch_size)


def _integers(shape, seed, group, limit):
  return tf.random.stateless_uniform(
      shape,
      tf.stack([tf.constant(seed, tf.int64), group]),
      maxval=limit,
      dtype=tf.int64,
      alg='philox',
  )


def fractions(shape: Any, seed: int, group: tf.Tensor) -> tf.Tensor:
  """Returns random numbers in [0, 1) for a group of batches, float64."""
  return tf.random.stateless_uniform(
      shape,
      tf.stack([tf.constant(seed, tf.int64), group]),
      dtype=tf.float64,
      alg='philox',
  )


def check_weights(weights: np.ndarray, name: str, of: str) -> None:
  """Raises a ValueError if nothing can be drawn in proportion to weights.

  Args:
    weights: the weights `[N]`.
    name: what they are called, for errors.
    of: what each of them is of, for errors.
  """
  wrong = np.flatnonzero(~(weights >= 0) | np.isinf(weights))
  if len(wrong):
    raise ValueError(
        f'The {name} must be numbers from 0 up, but that of {of} {wrong[0]} is'
        f' {weights[wrong[0]]}.'
    )
  if not weights.any():
    raise ValueError(f'All {name} are 0, so that no {of} can be drawn.')


def _cumulative(weights: np.ndarray, name: str, of: str) -> np.ndarray:
  """Returns the sums of weights up to each one, and checks the weights."""
  check_weights(weights, name, of)
  return np.cumsum(weights)


def _search(sums, places):
  """Returns in which weights fractions of the sum lie, never in one of 0."""
  total = sums[-1]
  # A product may be rounded up to the sum itself, in which nothing lies.
  limit = tf.math.nextafter(total, tf.zeros_like(total))
  found = tf.reshape(tf.minimum(places * total, limit), [-1])
  items = tf.searchsorted(sums, found, 'right', tf.int64)
  return tf.reshape(items, tf.shape(places))


def _to_int64(values: np.ndarray) -> np.ndarray:
  return (values >> np.uint64(1)).astype(np.int64)
