"""Samplers: which items make a batch.

A sampler is a pure function of a seed and the number of a batch. The position
of sampling is therefore one integer, and sampling that goes on from it draws
the same batches as if it had not stopped. Only the sampler in `prioritized.py`
depends on more.
"""

import abc
import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import draws as draws_lib
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import store as store_lib


class Draws(NamedTuple):
  """Items that were drawn, `[K, B]`.

  Attributes:
    items: the numbers of the items, int64.
    probability: the probability with which each one was drawn, float64.
    priority: the priority of each one, float64.
  """

  items: np.ndarray
  probability: np.ndarray
  priority: np.ndarray


class Process(NamedTuple):
  """The random stream of one process, and its share of the items.

  Attributes:
    seed: the seed of the replay buffer, an integer from 0 up.
    stream: the number of the data set and the number of its iterator, by which
      the streams of the process differ.
    rank: the number of this process.
    world_size: the number of processes that draw from the same data.
  """

  seed: int
  stream: Any = (0, 0)
  rank: int = 0
  world_size: int = 1

  def check(self) -> None:
    """Raises a ValueError if there is no such process, or seed."""
    if not 0 <= self.rank < self.world_size:
      raise ValueError(
          'process must be the number of a process, from 0 up, and that of all,'
          f' but is {(self.rank, self.world_size)}.'
      )
    checks.check_not_negative('seed', self.seed)

  def share_of(self, count: int) -> int:
    """Returns how many of `count` items this process draws."""
    own = -(-(count - self.rank) // self.world_size)
    if own < 1:
      raise ValueError(
          f'There are {count} items, which is too few for'
          f' {self.world_size} processes to share.'
      )
    return own

  def seeds(self, count: int) -> np.ndarray:
    """Returns seeds of this process alone, uint64 `[count]`."""
    return draws_lib.seeds_of(self.seed, count, *self.stream, self.rank)

  def common_seeds(self, count: int) -> np.ndarray:
    """Returns seeds that all processes have in common, uint64 `[count]`."""
    return draws_lib.seeds_of(self.seed, count, *self.stream)


# Draws a group of batches: takes the number of the first batch, the largest
# number of batches `K`, and the size `B` of a batch. Returns `Draws` `[k, b]`
# of 1 to `K` batches, with fewer than `B` items at the end of an epoch.
DrawFn = Callable[[int, int, int], Draws]


class Sampler(abc.ABC):
  """Chooses the items of a batch."""

  # Whether the trainer may change draws between two batches. If so, no batch
  # may be drawn in advance.
  is_synchronous = False

  @abc.abstractmethod
  def bind(
      self, population: population_lib.Population, process: Process
  ) -> DrawFn:
    """Returns the function that draws from a population."""

  def batch_size(
      self,
      population: population_lib.Population,
      process: Process,
      batch_size: int,
  ) -> Optional[int]:
    """Returns the size that all batches have, or None if they differ.

    Raises:
      ValueError: if no batch has so many items.
    """
    del population, process
    return batch_size

  def identity(self) -> str:
    """Returns a value that differs between samplers that draw differently."""
    return repr(self)


@dataclasses.dataclass(frozen=True)
class Uniform(Sampler):
  """Draws every item with the same probability, with replacement."""

  def bind(self, population, process):
    [seed] = process.seeds(1)

    def draw(first, num_batches, batch_size):
      population.check_not_empty()
      size = population.num_items
      places = fractions(seed, first, num_batches, batch_size)
      return with_priority(
          population.first + draws_lib.below(places, size), population, 1 / size
      )

    return draw


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Sampler):
  """Draws every item once an epoch, in a new random order every epoch.

  Process `k` of `n` draws every `n`-th item of each epoch's order, so the
  processes share an epoch.

      8 items, batches of 3    | 3 3 2 | 3 3 2 | ...
      drop_last                | 3 3   | 3 3   | ...

  Attributes:
    drop_last: whether the last items of an epoch are left out where they do not
      make a whole batch.
  """

  drop_last: bool = False

  def bind(self, population, process):
    [seed] = process.common_seeds(1)
    count = population.num_items
    own = process.share_of(count)
    # Batches that are drawn one after the other are of one or two epochs.
    order = functools.lru_cache(2)(
        lambda epoch: draws_lib.Permutation(count, seed, epoch)
    )

    def draw_batch(number, batch_size):
      per_epoch = own // batch_size if self.drop_last else -(-own // batch_size)
      epoch, number = divmod(number, per_epoch)
      places = np.arange(
          number * batch_size, min((number + 1) * batch_size, own)
      )
      return epoch, places * process.world_size + process.rank

    def draw(first, num_batches, batch_size):
      drawn = [draw_batch(first, batch_size)]
      for number in range(first + 1, first + num_batches):
        batch = draw_batch(number, batch_size)
        if len(batch[1]) != len(drawn[0][1]):
          break  # At the end of an epoch.
        drawn.append(batch)
      items = []
      begin = 0
      for end in range(1, len(drawn) + 1):
        epoch = drawn[begin][0]
        if end == len(drawn) or drawn[end][0] != epoch:
          places = np.concatenate([place for _, place in drawn[begin:end]])
          items.append(order(epoch)(places))
          begin = end
      items = np.concatenate(items).reshape([len(drawn), -1])
      return with_priority(items, population, 1 / count)

    return draw

  def batch_size(self, population, process, batch_size):
    own = process.share_of(population.num_items)
    if self.drop_last and batch_size > own:
      raise ValueError(
          f'A batch of {batch_size} items is larger than an epoch, which has'
          f' {own} items for this worker, and drop_last leaves out what is not'
          ' a whole batch: nothing would be left.'
      )
    return batch_size if self.drop_last or own % batch_size == 0 else None


@dataclasses.dataclass(frozen=True)
class EpisodeFirst(Sampler):
  """Draws an episode, and then one of its items with equal probability.

  Attributes:
    weights: the weights of the episodes that have items, numbers from 0 up
      `[E]`; or a function that takes their `Runs` and returns the weights. By
      default all episodes have the same probability.
  """

  weights: Optional[Union[Any, Callable[[store_lib.Runs], Any]]] = None

  def bind(self, population, process):
    counts = population.runs.num_items
    weights = self._weights(population)
    sums = _cumulative(weights, 'weights', 'episode')
    probabilities = weights / weights.sum() / counts
    seeds = process.seeds(2)

    def draw(first, num_batches, batch_size):
      places = [
          fractions(seed, first, num_batches, batch_size) for seed in seeds
      ]
      runs = draws_lib.search(sums, places[0])
      items = population.first_item[runs] + draws_lib.below(
          places[1], counts[runs]
      )
      return with_priority(items, population, probabilities[runs])

    return draw

  def identity(self):
    if self.weights is None or callable(self.weights):
      return f'EpisodeFirst({"function" if self.weights else ""})'
    values = np.asarray(self.weights, np.float64)
    return f'EpisodeFirst({identity_lib.fingerprint(values)})'

  def _weights(self, population):
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
    return weights


@dataclasses.dataclass(frozen=True)
class Weighted(Sampler):
  """Draws every item with a probability proportional to its priority.

  The priorities are those that the items were made with; they do not change.
  `Prioritized` is for priorities that do.
  """

  def bind(self, population, process):
    priorities = population.priorities
    if priorities is None:
      return Uniform().bind(population, process)
    sums = _cumulative(priorities, 'priorities', 'item')
    [seed] = process.seeds(1)

    def draw(first, num_batches, batch_size):
      items = draws_lib.search(
          sums, fractions(seed, first, num_batches, batch_size)
      )
      priority = population.priority(items)
      return Draws(items, priority / sums[-1], priority)

    return draw


def fractions(
    seed: np.uint64, first: int, num_batches: int, batch_size: int
) -> np.ndarray:
  """Returns the random numbers of batches.

  Number `k` of batch `b` is number `b * B + k` of the stream of `SplitMix64`
  that begins at the seed.

  Returns:
    float64 `[num_batches, batch_size]`, in [0, 1).
  """
  places = draws_lib.fractions(
      seed, first * batch_size, num_batches * batch_size
  )
  return places.reshape([num_batches, batch_size])


def with_priority(
    items: np.ndarray,
    population: population_lib.Population,
    probability: Any,
) -> Draws:
  """Returns items that were drawn, with their priorities."""
  return Draws(
      items,
      np.broadcast_to(probability, items.shape),
      population.priority(items),
  )


def _cumulative(weights: np.ndarray, name: str, of: str) -> np.ndarray:
  """Checks weights, and returns their cumulative sums."""
  checks.check_weights(weights, name=name, of=of)
  return np.cumsum(weights)
