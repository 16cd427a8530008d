"""Random numbers and orders whose elements are computed singly, in NumPy.

So draws are a function of the seed and of the number of a batch, in any
process, order or program.
"""

import functools
import math
from typing import Any

import numpy as np

# The increment of `SplitMix64`: 2**64 divided by the golden ratio; and the
# shifts and factors of its mixer. The generator is described in Steele, Lea and
# Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
GOLDEN = 0x9E3779B97F4A7C15
MIXER = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))

# After 4 rounds a Feistel network of random functions is a random permutation
# of many items. A permutation of a few items needs more rounds.
_ROUNDS = 8


def seeds_of(seed: int, count: int, *key: int) -> np.ndarray:
  """Returns seeds for `fractions`, uint64 `[count]`.

  Args:
    seed: the seed of the user, an integer from 0 up.
    count: how many.
    *key: integers from 0 up; each key has seeds of its own.
  """
  sequence = np.random.SeedSequence(seed, spawn_key=key)
  return sequence.generate_state(count, np.uint64)


def fractions(seed: Any, first: int, count: int) -> np.ndarray:
  """Returns random numbers of the stream of `SplitMix64` that begins at a seed.

  Args:
    seed: uint64.
    first: the place in the stream of the first number.
    count: how many.

  Returns:
    float64 `[count]`, in [0, 1).
  """
  begin = (first * GOLDEN + int(seed)) % 2**64
  bits = mix_bits(_counters(count) + np.uint64(begin))
  # A float64 has this many bits of precision.
  return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mix_bits(states: np.ndarray) -> np.ndarray:
  """Returns the numbers of `SplitMix64` for its states, and overwrites these.

  Different states give different numbers.

  Args:
    states: uint64, of any shape but a scalar.
  """
  for shift, factor in MIXER:
    states ^= states >> np.uint64(shift)
    states *= np.uint64(factor)
  states ^= states >> np.uint64(31)
  return states


def below(places: np.ndarray, limits: Any) -> np.ndarray:
  """Returns integers in `[0, limits)`, int64, for fractions in [0, 1)."""
  # A product may be rounded up to the limit itself.
  return np.minimum((places * limits).astype(np.int64), limits - 1)


def search(sums: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Returns the weights in which fractions lie, never one of 0.

  Args:
    sums: the cumulative sums of the weights, `[N]`.
    places: fractions of the whole sum, in [0, 1).

  Returns:
    The indices of the weights, int64.
  """
  # A product may be rounded up to the sum itself, which is beyond the last
  # weight.
  found = np.minimum(places * sums[-1], np.nextafter(sums[-1], 0))
  return sums.searchsorted(found, 'right')


class Permutation:
  """A random order of items, in which each place is computed by itself.

  It is a Feistel network on pairs of numbers, whose round functions are tables
  of about `sqrt(count)` random numbers; see "Ciphers with Arbitrary Finite
  Domains" (Black and Rogaway, 2002). A few pairs are no items; for these the
  permutation is applied again.
  """

  def __init__(self, count: int, seed: Any, epoch: int):
    """Creates the order.

    Args:
      count: the number of items.
      seed: uint64: the seed of the random functions.
      epoch: the number of the order.
    """
    self._count = count
    rows = math.isqrt(count - 1) + 1
    self._sizes = rows, -(-count // rows)
    wide = max(self._sizes)
    numbers = fractions(seed, epoch * _ROUNDS * wide, _ROUNDS * wide)
    self._tables = [
        below(table, self._sizes[k % 2])
        for k, table in enumerate(numbers.reshape([_ROUNDS, wide]))
    ]

  def __call__(self, places: np.ndarray) -> np.ndarray:
    """Returns the item at each place, int64 `[N]`."""
    items = self._walk(places)
    outside = np.flatnonzero(items >= self._count)
    while len(outside):
      items[outside] = self._walk(items[outside])
      outside = outside[items[outside] >= self._count]
    return items

  def _walk(self, numbers):
    pair = list(np.divmod(numbers, self._sizes[1]))
    for k, table in enumerate(self._tables):
      size = self._sizes[k % 2]
      moved = pair[k % 2] + table[pair[1 - k % 2]]
      pair[k % 2] = np.where(moved >= size, moved - size, moved)
    return pair[0] * self._sizes[1] + pair[1]


@functools.lru_cache(16)
def _counters(count: int) -> np.ndarray:
  return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
