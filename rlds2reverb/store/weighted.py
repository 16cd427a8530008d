"""Draws by weights: of items, of episodes or of whole data sets."""

import dataclasses
import hashlib
import types
from typing import Any, Dict, Mapping, Tuple

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import draws as draws_lib
from rlds2reverb.store import samplers


@dataclasses.dataclass(frozen=True, eq=False)
class Weighted(samplers.Sampler):
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
      return _by_groups(process, *_of_episodes(items, self.weights))
    if self.by == 'source':
      return _by_groups(process, *_of_sources(items, self.weights))
    weights = items.priorities if self.weights is None else self.weights
    if weights is None:
      return samplers.Uniform().bind(items, process)
    name = 'priorities' if self.weights is None else 'weights'
    weights = _checked(weights, items.num_items, name, 'item')
    ones = np.ones(len(weights), np.int64)
    return _by_groups(process, weights, ones, weights / np.cumsum(weights)[-1])

  def identity(self):
    named = (
        self.weights
        if isinstance(self.weights, Mapping)
        else {'': self.weights}
    )
    parts = [self.by]
    for name, weights in named.items():
      digest = 'function'
      if not callable(weights):
        values = np.asarray(weights, np.float64).tobytes()
        digest = hashlib.sha256(values).hexdigest()[:16]
      parts.append(f'{name}: {digest}')
    return f'Weighted({", ".join(parts)})'


def _by_groups(
    process: samplers.Process,
    weights: np.ndarray,
    counts: np.ndarray,
    probability: np.ndarray,
    within: Mapping[int, np.ndarray] = types.MappingProxyType({}),
) -> samplers.DrawFn:
  """Returns a function that draws a group, and then one of its items.

  Args:
    process: the random stream.
    weights: the weight of each group, `[G]`.
    counts: how many items it has.
    probability: how likely each of its items is.
    within: the cumulative weights of items, of some groups.
  """
  sums, seeds = np.cumsum(weights), process.seeds(2)
  first = np.cumsum(counts) - counts

  def draw(*numbers):
    groups, places = [samplers.fractions(seed, *numbers) for seed in seeds]
    groups = draws_lib.search(sums, groups)
    found = draws_lib.below(places, counts[groups])
    for group, own in within.items():
      here = groups == group
      found[here] = draws_lib.search(own, places[here])
    return samplers.Draws(first[groups] + found, probability[groups])

  return draw


def _of_episodes(items, weights) -> Tuple[Any, ...]:
  """Returns the groups of `_by_groups`."""
  if items.crosses_episodes:
    raise ValueError(
        'Episodes cannot be drawn first: these items cross episodes, or are'
        ' sequences that do not say which episode they are of.'
    )
  counts = items.episodes.num_items
  if callable(weights):
    weights = weights(items.episodes)
  weights = np.ones(len(counts)) if weights is None else weights
  weights = _checked(weights, len(counts), 'weights', 'episode')
  return weights, counts, weights / weights.sum() / counts


def _of_sources(items, weights) -> Tuple[Any, ...]:
  """Returns the groups of `_by_groups`."""
  totals = {name: np.sum(each) for name, each in weights.items()}
  checks.check_weights(totals, items.sources)
  within: Dict[int, np.ndarray] = {}
  for number, (name, count) in enumerate(zip(items.sources, items.counts)):
    if totals[name] and not count:
      raise ValueError(f'{name} has a weight, but no items to draw.')
    if np.ndim(weights[name]) and np.any(weights[name]):
      of = f'weights of {name}'
      within[number] = np.cumsum(_checked(weights[name], count, of, 'item'))
  totals = np.array([totals[name] for name in items.sources])
  return totals, items.counts, np.full(len(totals), np.nan), within


def _checked(weights, count, name, of) -> np.ndarray:
  """Returns weights, or raises a ValueError if nothing can be drawn by them."""
  weights = np.asarray(weights, np.float64)
  if weights.shape != (count,):
    raise ValueError(
        f'There must be a weight for each of the {count} {of}s that there are,'
        f' but the {name} have the shape {weights.shape}.'
    )
  checks.check_weights(weights, name=name, of=of)
  return weights
