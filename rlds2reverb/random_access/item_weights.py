"""Draws items of several data sets in proportion to weights."""

import hashlib
from typing import Any, Dict, Mapping

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import draws


class ItemWeights:
  """The probabilities of data sets, and of their items, to be drawn."""

  def __init__(self, weights: Mapping[str, Any], sources: Mapping[str, Any]):
    """Checks the weights.

    Args:
      weights: see `Batches`.
      sources: the items of each data set, by its name.

    Raises:
      ValueError: if they are not valid, or nothing can be drawn.
    """
    totals = {name: np.sum(values) for name, values in weights.items()}
    checks.check_weights(totals, sources)
    self._counts = np.array([len(items) for items in sources.values()])
    self._first = np.cumsum(self._counts) - self._counts
    # The weights of items, for the data sets that have any.
    self._within: Dict[int, np.ndarray] = {}
    for number, name in enumerate(sources):
      values = np.asarray(weights[name], np.float64)
      if values.shape not in ((), (self._counts[number],)):
        raise ValueError(
            f'The weight of {name} must be a number, or one for each of its'
            f' {self._counts[number]} items, but has the shape {values.shape}.'
        )
      if values.any():
        checks.check_weights(
            values.ravel(), name=f'weights of {name}', of='item'
        )
      if totals[name] and not self._counts[number]:
        raise ValueError(f'{name} has a weight, but no items to draw.')
      if values.shape and totals[name]:
        self._within[number] = np.cumsum(values)
    self._sums = np.cumsum([totals[name] for name in sources])

  def draw(self, sources: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns items, int64 `[B]`.

    Args:
      sources: fractions in [0, 1) that say of which data set each one is.
      places: fractions in [0, 1) that say which of its items it is.
    """
    source = draws.search(self._sums, sources)
    counts = self._counts[source]
    items = draws.below(places, counts)
    for number, sums in self._within.items():
      here = source == number
      items[here] = draws.search(sums, places[here])
    return self._first[source] + items

  def identity(self) -> str:
    """Returns a value that differs for other weights."""
    arrays = self._sums, *self._within.values()
    return hashlib.sha256(b''.join(x.tobytes() for x in arrays)).hexdigest()
