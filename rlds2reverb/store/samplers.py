"""Samplers: which items make a batch.

A sampler is a pure function of a seed and the number of a batch. The state of
sampling is therefore one integer, and sampling that goes on from it draws the
same batches as if it had not stopped. Only the sampler in `prioritized.py`
depends on more.
"""

import abc
import dataclasses
import functools
import hashlib
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import draws as draws_lib
from rlds2reverb.store import items as items_lib

# An order of fewer items is kept as an array.
_KEPT_ORDER = 1 << 22


class Draws(NamedTuple):
  """Items that were drawn, `[K, B]`.

  Attributes:
    items: the numbers of the items, int64.
    probability: the probability with which each one was drawn, float64.
    priority: the priority of each one, float64; None for that of the items.
  """

  items: np.ndarray
  probability: Any
  priority: Any = None


class Process(NamedTuple):
  """The random stream of one process, and its share of the items.

  Attributes:
    seed: the seed of the user, an integer from 0 up.
    stream: the numbers by which the streams of a process differ, such as those
      of a data set and of its iterator; None for one stream of all processes.
    rank: the number of this process.
    world_size: the number of processes that draw from the same data.
  """

  seed: int
  stream: Optional[Tuple[int, ...]] = (0, 0)
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

  def seeds(self, count: int, is_common: bool = False) -> np.ndarray:
    """Returns seeds, uint64 `[count]`, of this process or common to all."""
    key = self.stream or ()
    if self.stream is not None and not is_common:
      key = *key, self.rank
    return draws_lib.seeds_of(self.seed, count, *key)


# Draws a group of batches: takes the number of the first batch, the largest
# number of batches `K`, and the size `B` of a batch. Returns `Draws` `[k, b]`
# of 1 to `K` batches, with fewer than `B` items at the end of an epoch.
DrawFn = Callable[[int, int, int], Draws]


class Sampler(abc.ABC):
  """Chooses the items of a batch, of an `ItemIndex` or what is like one."""

  # Whether the trainer may change draws between two batches. If so, no batch
  # may be drawn in advance.
  is_synchronous = False

  @abc.abstractmethod
  def bind(self, items: Any, process: Process) -> DrawFn:
    """Returns the function that draws items."""

  def batch_size(
      self, items: Any, process: Process, batch_size: int
  ) -> Optional[int]:
    """Returns the size that all batches have, or None if they differ.

    Raises:
      ValueError: if no batch has so many items.
    """
    del items, process
    return batch_size

  def identity(self) -> str:
    """Returns a value that differs between samplers that draw differently."""
    return repr(self)


@dataclasses.dataclass(frozen=True)
class Uniform(Sampler):
  """Draws every item with the same probability, with replacement."""

  def bind(self, items, process):
    [seed] = process.seeds(1)

    def draw(first, num_batches, batch_size):
      size = items.num_items
      if not size:
        raise items_lib.SamplingError(
            'There is nothing to sample yet. Append frames before a batch is'
            ' taken.'
        )
      places = fractions(seed, first, num_batches, batch_size)
      return Draws(items.first + draws_lib.below(places, size), 1 / size)

    return draw


@dataclasses.dataclass(frozen=True)
class InOrder(Sampler):
  """Draws the items that there are, in their order, each once."""

  def bind(self, items, process):
    count, first_item = items.num_items, items.first
    own = process.share_of(count)

    def draw(first, num_batches, batch_size):
      numbers = _share(process, first, num_batches, batch_size, own)
      numbers = first_item + numbers
      if not items.alive(numbers.ravel()).all():
        raise items_lib.SamplingError(
            'Frames were appended or removed during a pass over the items, some'
            ' of which have made room for newer ones. Make a new data set for'
            ' each pass.'
        )
      return Draws(numbers, 1 / count)

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

  def bind(self, items, process):
    [seed] = process.seeds(1, is_common=True)
    count = items.num_items
    own = process.share_of(count)

    # Batches that are drawn one after the other are of one or two epochs.
    @functools.lru_cache(2)
    def order_of(epoch):
      order = draws_lib.Permutation(count, seed, epoch)
      if count <= _KEPT_ORDER:
        return order(np.arange(count)).astype(np.int32).take
      return order

    def draw(first, num_batches, batch_size):
      per_epoch = self.batches_per_epoch(own, batch_size)
      epoch, number = divmod(first, per_epoch)
      num_batches = min(num_batches, per_epoch - number)
      places = _share(process, number, num_batches, batch_size, own)
      found = order_of(epoch)(places.ravel()).astype(np.int64)
      return Draws(found.reshape(places.shape), 1 / count)

    return draw

  def batches_per_epoch(self, count: int, batch_size: int) -> int:
    """Returns how many batches of a process an epoch of its items has."""
    return count // batch_size if self.drop_last else -(-count // batch_size)

  def batch_size(self, items, process, batch_size):
    own = process.share_of(items.num_items)
    if self.drop_last and batch_size > own:
      raise ValueError(
          f'A batch of {batch_size} items is larger than an epoch, which has'
          f' {own} items for this worker, and drop_last leaves out what is not'
          ' a whole batch: nothing would be left.'
      )
    return batch_size if self.drop_last or own % batch_size == 0 else None


@dataclasses.dataclass(frozen=True, eq=False)
class Weighted(Sampler):
  """Draws every item in proportion to its weight, or an episode first.

  Attributes:
    weights: the weight of each item, from 0 up, `[N]`; by default the
      priorities that the items were made with. By episode, the weight of each
      episode that has items, `[E]`, or a function that takes these `Episodes`
      and returns the weights; by default they are equal. By source, a dict from
      the names of the sources to their weights, or to those of their items.
    by: what the weights are of. By `'episode'`, one of its items is drawn then,
      with equal probability.
  """

  weights: Any = None
  by: str = 'item'

  def __post_init__(self):
    checks.check_choice('by', self.by, ('item', 'episode', 'source'))

  def bind(self, items, process):
    if self.by == 'episode':
      return self._bind_episodes(items, process)
    if self.by == 'source':
      return self._bind_sources(items, process)
    weights = items.priorities if self.weights is None else self.weights
    if weights is None:
      return Uniform().bind(items, process)
    name = 'priorities' if self.weights is None else 'weights'
    weights = _checked(weights, (items.num_items,), name, 'item')
    sums = np.cumsum(weights)
    [seed] = process.seeds(1)

    def draw(first, num_batches, batch_size):
      places = fractions(seed, first, num_batches, batch_size)
      found = draws_lib.search(sums, places)
      return Draws(found, weights[found] / sums[-1])

    return draw

  def identity(self):
    parts = [self.by]
    weights = self.weights
    if not isinstance(weights, Mapping):
      weights = {} if weights is None else {'': weights}
    for name, values in weights.items():
      digest = 'function'
      if not callable(values):
        values = np.asarray(values, np.float64)
        digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
      parts.append(f'{name}: {digest}')
    return f'Weighted({", ".join(parts)})'

  def _bind_episodes(self, items, process):
    if items.crosses_episodes:
      raise ValueError(
          'Episodes cannot be drawn first: these items cross episodes, or are'
          ' sequences that do not say which episode they are of.'
      )
    counts = items.episodes.num_items
    weights = self.weights
    if callable(weights):
      weights = weights(items.episodes)
    if weights is None:
      weights = np.ones(len(counts))
    weights = _checked(weights, counts.shape, 'weights', 'episode')
    probabilities = weights / weights.sum() / counts
    pick = _pick_groups(weights, items.first_item[:-1], counts, {}, process)

    def draw(first, num_batches, batch_size):
      episodes, found = pick(first, num_batches, batch_size)
      return Draws(found, probabilities[episodes])

    return draw

  def _bind_sources(self, items, process):
    totals = {name: np.sum(values) for name, values in self.weights.items()}
    checks.check_weights(totals, items.sources)
    # The weights of items, for the sources that have any.
    within: Dict[int, np.ndarray] = {}
    for number, (name, count) in enumerate(zip(items.sources, items.counts)):
      values = np.asarray(self.weights[name], np.float64)
      if values.shape not in ((), (count,)):
        raise ValueError(
            f'The weight of {name} must be a number, or one for each of its'
            f' {count} items, but has the shape {values.shape}.'
        )
      if values.any():
        checks.check_weights(
            values.ravel(), name=f'weights of {name}', of='item'
        )
      if totals[name] and not count:
        raise ValueError(f'{name} has a weight, but no items to draw.')
      if values.shape and totals[name]:
        within[number] = np.cumsum(values)
    first = np.cumsum(items.counts) - items.counts
    totals = np.array([totals[name] for name in items.sources])
    pick = _pick_groups(totals, first, items.counts, within, process)
    return lambda *numbers: Draws(pick(*numbers)[1], np.nan)


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


def _pick_groups(weights, first_item, counts, within, process):
  """Returns a function that draws a group, and then one of its items.

  Args:
    weights: the weight of each group.
    first_item: the number of its first item.
    counts: how many items it has.
    within: the cumulative weights of items, of some groups.
    process: the random stream.
  """
  sums = np.cumsum(weights)
  seeds = process.seeds(2)

  def pick(*numbers):
    groups, places = [fractions(seed, *numbers) for seed in seeds]
    groups = draws_lib.search(sums, groups)
    found = draws_lib.below(places, counts[groups])
    for group, own in within.items():
      here = groups == group
      found[here] = draws_lib.search(own, places[here])
    return groups, first_item[groups] + found

  return pick


def _share(process, first, num_batches, batch_size, own):
  """Returns which of all numbers are those of batches of a process.

  Args:
    process: the process, which has every `world_size`-th number.
    first: the number of the first batch.
    num_batches: the largest number of batches.
    batch_size: the size of a batch.
    own: how many numbers the process has.

  Returns:
    int64 `[k, b]`: whole batches, or one that is smaller.
  """
  begin = first * batch_size
  rows = min((own - begin) // batch_size, num_batches) or 1
  numbers = np.arange(begin, min(begin + rows * batch_size, own))
  numbers = numbers * process.world_size + process.rank
  return numbers.reshape([rows, -1])


def _checked(weights, shape, name, of) -> np.ndarray:
  """Returns weights, or raises a ValueError if nothing can be drawn by them."""
  weights = np.asarray(weights, np.float64)
  if weights.shape != shape:
    raise ValueError(
        f'There must be a weight for each of the {shape[0]} {of}s that there'
        f' are, but the {name} have the shape {weights.shape}.'
    )
  checks.check_weights(weights, name=name, of=of)
  return weights
