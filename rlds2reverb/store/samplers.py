"""Samplers: which items make a batch.

A sampler is a pure function of a seed and the number of a batch. The state of
sampling is therefore one integer, and sampling that goes on from it draws the
same batches as if it had not stopped. Only the sampler in `prioritized.py`
depends on more.
"""

import abc
import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional, Tuple

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

  def share(
      self, first: int, num_batches: int, batch_size: int, own: int
  ) -> np.ndarray:
    """Returns which of all numbers are in batches of this process.

    Args:
      first: the number of the first batch.
      num_batches: the largest number of batches.
      batch_size: the size of a batch.
      own: how many numbers the process has: every `world_size`-th.

    Returns:
      int64 `[k, b]`: whole batches, or one that is smaller, or empty at the
      end.
    """
    begin = first * batch_size
    count = max(min((own - begin) // batch_size, num_batches), 1)
    numbers = np.arange(begin, min(begin + count * batch_size, own))
    return (numbers * self.world_size + self.rank).reshape([count, -1])

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

    def draw(*numbers):
      count = items.num_items
      items_lib.check_drawable(count, count)
      places = fractions(seed, *numbers)
      return Draws(items.first + draws_lib.below(places, count), 1 / count)

    return draw


@dataclasses.dataclass(frozen=True)
class InOrder(Sampler):
  """Draws the items that there are, in their order, each once."""

  def bind(self, items, process):
    count, first_item = items.num_items, items.first
    own = process.share_of(count)

    def draw(*numbers):
      found = first_item + process.share(*numbers, own)
      if not items_lib.alive(items, found.ravel()).all():
        raise items_lib.SamplingError(
            'Frames were appended or removed during a pass over the items, some'
            ' of which have made room for newer ones. Make a new data set for'
            ' each pass.'
        )
      return Draws(found, 1 / count)

    return draw

  def batch_size(self, items, process, batch_size):
    return None  # The last batch may be shorter.


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
      places = process.share(number, num_batches, batch_size, own)
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
