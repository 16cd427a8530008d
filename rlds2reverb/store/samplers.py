"""Samplers: the choice of the items of a batch.

A sampler is a pure function of a seed and the number of a batch. The state of
sampling is therefore one integer, and resumed sampling draws the same batches
as if it had not been interrupted. `sum_tree.Prioritized` also depends on the
priorities, which the trainer updates.
"""

import abc
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import math
import types
from typing import Any, NamedTuple, Protocol

from etils import epy
import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.store import items as store_items

with epy.lazy_imports():
  from rlds2reverb.store import kernels

# Four rounds of a Feistel network make a random permutation of many items. A
# permutation of a few items needs more rounds.
_FEISTEL_ROUNDS = 8


class Draws(NamedTuple):
  """The items of a batch, `[B]`.

  Attributes:
    items: the item indices, int64.
    probability: the probability with which each item was drawn, float64.
    priority: the priority of each item, float64; None for the priorities that
      the items were created with.
  """

  items: np.ndarray
  probability: np.ndarray
  priority: Any = None


class DrawFn(Protocol):
  """A function that draws batches."""

  def __call__(
      self, index: int, batch_size: int, num_batches: int = 1
  ) -> Draws:
    """Draws consecutive batches.

    Args:
      index: the index of the first batch.
      batch_size: the size `B` of a batch.
      num_batches: the maximum number of batches.

    Returns:
      The items of the batches, one batch after another. They end with the
      epoch, whose last batch may be smaller. After the last epoch there are no
      items.
    """


class Shard(NamedTuple):
  """The share of the items that one process draws, and its random stream.

  Attributes:
    seed: the seed of the user, an integer from 0 up.
    stream: the key of the stream in a process, such as the indices of a data
      set and of its iterator; None for one stream of all processes.
    rank: the index of this process.
    world_size: the number of processes that draw from the same data.
  """

  seed: int
  stream: tuple[int, ...] | None = (0, 0)
  rank: int = 0
  world_size: int = 1

  def check(self) -> None:
    """Raises a ValueError if there is no such process, or seed."""
    if not 0 <= self.rank < self.world_size:
      raise ValueError(
          'process must be the rank of a process, from 0 up, and the number of'
          f' processes, but is {(self.rank, self.world_size)}.'
      )
    checks.check_not_negative('seed', self.seed)

  def share_of(self, count: int) -> int:
    """Returns how many of `count` items this process draws."""
    share = -(-(count - self.rank) // self.world_size)
    if share < 1:
      raise ValueError(
          f'There are {count} items, which is too few for'
          f' {self.world_size} processes to share.'
      )
    return share

  def positions(self, first: int, count: int, end: int) -> np.ndarray:
    """Returns the positions of items of this process in a common order.

    Args:
      first: the index of the first item among the items of this process.
      count: the number of items.
      end: the number of items of this process.

    Returns:
      Every `world_size`-th position, int64 `[count]`; fewer before the end.
    """
    positions = np.arange(first, min(first + count, end))
    return positions * self.world_size + self.rank

  def seeds(self, count: int, is_common: bool = False) -> np.ndarray:
    """Returns seeds, uint64 `[count]`, of this process or common to all."""
    key = self.stream or ()
    if self.stream is not None and not is_common:
      key = *key, self.rank
    return random_lib.spawn_seeds(self.seed, count, *key)


class Sampler(abc.ABC):
  """Chooses the items of a batch, of an `ItemIndex` or a `FrameRing`."""

  # Whether the trainer may change draws between two batches. If so, no batch
  # may be drawn in advance.
  is_synchronous = False

  @abc.abstractmethod
  def bind(self, items: Any, shard: Shard) -> DrawFn:
    """Returns the function that draws items.

    A `Prioritized` sampler also takes over their priorities, once.
    """

  def batch_size(self, items: Any, shard: Shard, batch_size: int) -> int | None:
    """Returns the size that all batches have, or None if sizes differ.

    Raises:
      ValueError: if there are too few items for a batch.
    """
    del items, shard
    return batch_size

  def identity(self) -> str:
    """Returns a value that differs between samplers that draw differently."""
    return repr(self)


@dataclasses.dataclass(frozen=True)
class Uniform(Sampler):
  """Draws every item with the same probability, with replacement."""

  def bind(self, items, shard):
    [seed], draw_uniform = shard.seeds(1), kernels.draw_uniform

    def draw(index, batch_size, num_batches=1):
      count, first_item = items.num_items, items.first
      store_items.check_drawable(count, count)
      num_draws = num_batches * batch_size
      drawn, probability = np.empty(num_draws, np.int64), np.empty(num_draws)
      first = first_draw(index, batch_size)
      draw_uniform(seed, first, first_item, count, drawn, probability)
      return Draws(drawn, probability)

    return draw


@dataclasses.dataclass(frozen=True)
class InOrder(Sampler):
  """Draws each item once, in the order of the data."""

  def bind(self, items, shard):
    count, first_item = items.num_items, items.first
    share = shard.share_of(count)

    def draw(index, batch_size, num_batches=1):
      drawn = first_item + shard.positions(
          index * batch_size, num_batches * batch_size, share
      )
      if not store_items.alive(items, drawn).all():
        raise store_items.SamplingError(
            'Frames were appended or removed during a pass over the items, some'
            ' of which have made room for newer ones. Make a new data set for'
            ' each pass.'
        )
      return Draws(drawn, np.full(len(drawn), 1 / count))

    return draw

  def batch_size(self, items, shard, batch_size):
    return None  # The last batch may be shorter.


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Sampler):
  """Draws every item once an epoch, in a new random order every epoch.

  Process `k` of `n` draws every `n`-th item of each epoch's order, so the
  processes share an epoch.

      8 items, batches of 3    | 3 3 2 | 3 3 2 | ...
      drop_last                | 3 3   | 3 3   | ...

  Attributes:
    drop_last: whether to drop the last items of an epoch if they do not fill a
      batch.
    weights: a mask of items, `[N]`: epochs have no items of weight 0.
      All other weights must be equal.
  """

  drop_last: bool = False
  weights: Any = dataclasses.field(default=None, repr=False, compare=False)

  def bind(self, items, shard):
    [seed] = shard.seeds(1, is_common=True)
    drawn_items = self._drawn_items(items)
    count = items.num_items if drawn_items is None else len(drawn_items)
    share = shard.share_of(count)
    # Consecutive batches are of the same epoch.
    tables_of = functools.lru_cache(2)(
        lambda epoch: _feistel_tables(seed, epoch, count)
    )

    def draw(index, batch_size, num_batches=1):
      per_epoch = self.batches_per_epoch(share, batch_size)
      epoch, index = divmod(index, per_epoch)
      positions = shard.positions(
          index * batch_size,
          num_batches * batch_size,
          min(share, per_epoch * batch_size),
      )
      drawn = np.empty(len(positions), np.int64)
      kernels.permute(positions, count, tables_of(epoch), drawn)
      if drawn_items is not None:
        drawn = drawn_items[drawn]
      return Draws(drawn, np.full(len(drawn), 1 / count))

    return draw

  def batches_per_epoch(self, count: int, batch_size: int) -> int:
    """Returns the number of batches in an epoch of a process's items."""
    return count // batch_size if self.drop_last else -(-count // batch_size)

  def batch_size(self, items, shard, batch_size):
    share = shard.share_of(self.num_drawn(items))
    if self.drop_last and batch_size > share:
      raise ValueError(
          f'A batch of {batch_size} items is larger than an epoch, which has'
          f' {share} items for this process, and drop_last drops incomplete'
          ' batches: no batch would remain.'
      )
    return batch_size if self.drop_last or share % batch_size == 0 else None

  def num_drawn(self, items: Any) -> int:
    """Returns the number of items of an epoch."""
    drawn = self._drawn_items(items)
    return items.num_items if drawn is None else len(drawn)

  def _drawn_items(self, items: Any) -> np.ndarray | None:
    """Returns the item indices of an epoch; None for all."""
    if self.weights is None:
      return None
    weights = np.asarray(self.weights, np.float64)
    _check_shape(weights, items.num_items, 'weights', 'item')
    checks.check_weights(weights, of='item')
    positive = weights[weights > 0]
    if positive.min() != positive.max():
      raise ValueError(
          'Without replacement every item comes once an epoch, or never, so'
          ' weights must be 0 or equal to each other, but there are'
          f' {positive.min()} and {positive.max()}. Unequal weights need'
          ' replacement.'
      )
    return np.flatnonzero(weights)

  def identity(self):
    if self.weights is None:
      return repr(self)
    mask = np.asarray(self.weights, np.float64) > 0
    digest = hashlib.sha256(mask.tobytes()).hexdigest()[:16]
    return f'{self!r} of the items {digest}'


@dataclasses.dataclass(frozen=True, eq=False)
class Weighted(Sampler):
  """Draws every item in proportion to its weight, or an episode first.

  Attributes:
    weights: the weight of each item, from 0 up, `[N]`; by default the
      priorities that the items were created with. By episode, the weight of
      each episode that has items, `[E]`, or a function that takes these
      `Episodes` and returns the weights; by default they are equal. By source,
      a dict from the names of the sources to their weights, or to the weights
      of their items.
    by: `'item'`, `'episode'` or `'source'`, to which weights belong. By
      `'episode'`, an item of the drawn episode is drawn with equal probability.
  """

  weights: Any = None
  by: str = 'item'

  def __post_init__(self):
    checks.check_choice('by', self.by, ('item', 'episode', 'source'))
    if isinstance(self.weights, Mapping) != (self.by == 'source'):
      raise ValueError(
          "weights must be a dict from the names of sources with by='source',"
          f' and only then, but by is {self.by!r} and weights are'
          f' {self.weights!r}.'
      )

  def bind(self, items, shard):
    if self.by == 'episode':
      return _draw_by_groups(shard, *_episode_groups(items, self.weights))
    if self.by == 'source':
      if not hasattr(items, 'sources'):
        raise ValueError(
            "Weighted(by='source') draws from the data sets of"
            ' random_access.Batches, but this replay buffer has the items of'
            ' one data set. Mix data sets by datasets.mix_datasets before they'
            " are loaded, or use by='item' or by='episode'."
        )
      return _draw_by_groups(shard, *_source_groups(items, self.weights))
    weights = items.priorities if self.weights is None else self.weights
    if weights is None:
      return Uniform().bind(items, shard)
    name = 'priorities' if self.weights is None else 'weights'
    weights = _scale(weights, items.num_items, name, 'item')
    ones = np.ones(len(weights), np.int64)
    probability = weights / np.cumsum(weights)[-1]
    return _draw_by_groups(shard, weights, ones, probability)

  def identity(self):
    weights = self.weights
    if not isinstance(weights, Mapping):
      weights = {'': weights}
    parts = [self.by]
    for name, values in weights.items():
      digest = 'function'
      if not callable(values):
        content = np.asarray(values, np.float64).tobytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
      parts.append(f'{name}: {digest}')
    return f'Weighted({", ".join(parts)})'


def item_weights(items: Any, weights: Mapping[str, Any]) -> np.ndarray:
  """Returns the weight of each item of several sources, float64 `[N]`.

  Args:
    items: the items, with `sources` and `counts`.
    weights: for each source by name, the weight of all of its items, or of each
      item, `[count]`.

  Raises:
    ValueError: if the names or shapes are wrong.
  """
  arrays = _source_weights(items, weights)
  return np.concatenate(list(map(np.broadcast_to, arrays, items.counts)))


def first_draw(index: int, batch_size: int) -> int:
  """Returns the position in a SplitMix64 stream of a batch's first draw."""
  return index * batch_size % 2**64


def draw_fractions(
    seed: np.uint64, index: int, batch_size: int, num_batches: int = 1
) -> np.ndarray:
  """Returns the random numbers of batches, in [0, 1), float64 `[N]`.

  Number `k` of batch `b` is number `b * B + k` of the SplitMix64 stream that
  begins at the seed.
  """
  fractions = np.empty(num_batches * batch_size)
  kernels.draw_fractions(seed, first_draw(index, batch_size), fractions)
  return fractions


def _feistel_tables(seed: np.uint64, epoch: int, count: int) -> np.ndarray:
  """Returns the round functions of an epoch's order; see `kernels.permute`."""
  num_rows = math.isqrt(count - 1) + 1
  num_columns = -(-count // num_rows)
  fractions = draw_fractions(seed, epoch, _FEISTEL_ROUNDS * num_rows)
  tables = fractions.reshape([_FEISTEL_ROUNDS, num_rows])
  limits = np.array([[num_rows], [num_columns]] * (_FEISTEL_ROUNDS // 2))
  return random_lib.integers_below(tables, limits)


def _draw_by_groups(
    shard: Shard,
    weights: np.ndarray,
    counts: np.ndarray,
    probability: np.ndarray,
    within: Mapping[int, np.ndarray] = types.MappingProxyType({}),
) -> DrawFn:
  """Returns a function that draws a group, and then an item of the group.

  Args:
    shard: has the random stream.
    weights: the weight of each group, `[G]`.
    counts: the number of items of each group.
    probability: the probability of each item of a group.
    within: cumulative weights of the items of a group, by its index. Items of
      other groups are equally likely.
  """
  sums, seeds = np.cumsum(weights), shard.seeds(2)
  first = np.cumsum(counts) - counts

  def draw(index, batch_size, num_batches=1):
    groups, places = [
        draw_fractions(seed, index, batch_size, num_batches) for seed in seeds
    ]
    groups = random_lib.search_weights(sums, groups)
    items = random_lib.integers_below(places, counts[groups])
    for group, item_sums in within.items():
      in_group = groups == group
      items[in_group] = random_lib.search_weights(item_sums, places[in_group])
    return Draws(first[groups] + items, probability[groups])

  return draw


def _episode_groups(items, weights) -> tuple[Any, ...]:
  """Returns the groups of `_draw_by_groups`, one for each episode."""
  if items.crosses_episodes:
    raise ValueError(
        'Episodes cannot be drawn first: these items cross episodes, or are'
        ' sequences whose episode is unknown.'
    )
  counts = items.episodes.num_items
  if callable(weights):
    weights = weights(items.episodes)
  weights = np.ones(len(counts)) if weights is None else weights
  weights = _scale(weights, len(counts), 'weights', 'episode')
  return weights, counts, weights / weights.sum() / counts


def _source_groups(items, weights) -> tuple[Any, ...]:
  """Returns the groups of `_draw_by_groups`, one for each source."""
  arrays = _source_weights(items, weights)
  for name, values, count in zip(items.sources, arrays, items.counts):
    if values.any() and not count:
      raise ValueError(f'{name} has a weight, but no items to draw.')
    if values.any() and values.ndim:
      checks.check_weights(values, name=f'weights of {name}', of='item')
    elif values.any():
      checks.check_weights({name: values.item()})
  largest = max(values.max(initial=0.0) for values in arrays)
  arrays = [random_lib.scale_weights(values, largest) for values in arrays]
  totals = np.array([values.sum() for values in arrays])
  checks.check_weights(totals)
  within = {
      index: np.cumsum(values)
      for index, values in enumerate(arrays)
      if values.ndim and values.any()
  }
  return totals, items.counts, np.full(len(totals), np.nan), within


def _source_weights(items, weights) -> list[np.ndarray]:
  """Returns the weight of each source, `[]`, or of its items, `[count]`."""
  checks.check_weights(dict.fromkeys(weights, 1.0), items.sources)
  arrays = [np.asarray(weights[name], np.float64) for name in items.sources]
  for name, values, count in zip(items.sources, arrays, items.counts):
    if values.ndim:
      _check_shape(values, count, f'weights of {name}', 'item')
  return arrays


def _scale(weights, count, name, noun) -> np.ndarray:
  """Checks weights, and scales them so that their sums stay in range."""
  weights = np.asarray(weights, np.float64)
  _check_shape(weights, count, name, noun)
  checks.check_weights(weights, name=name, of=noun)
  return random_lib.scale_weights(weights)


def _check_shape(weights, count, name, noun) -> None:
  """Raises a ValueError unless there is a weight for each choice."""
  if weights.shape != (count,):
    raise ValueError(
        f'There must be a weight for each of the {count} {noun}s that there'
        f' are, but the {name} have the shape {weights.shape}.'
    )
