"""The 64-bit keys of items, chunks and episodes."""

import hashlib
import json
from typing import Any, Callable, Optional, Sequence

import numpy as np

from rlds2reverb.datasets import identity as identity_lib

# Called with what the keys are of, as JSON values, and the positions `[N]` in
# it; returns the keys, uint64 `[N]`.
Keys = Callable[[Sequence[Any], np.ndarray], np.ndarray]


def make_keys(identity: Optional[Any], form: Any = None) -> Keys:
  """Returns a function that makes keys.

  A server that has an item under a key does not take another one, so where keys
  are a function of what the items are, an item that is inserted twice is there
  once.

  Args:
    identity: what tells the data from other data, any value that
      `identity.fingerprint` takes; None for random keys.
    form: what else the content is a function of, likewise.

  Raises:
    ValueError: if it cannot be told whether `identity` is still the same.
  """
  if identity is None:
    generator = np.random.default_rng()
    return lambda of, positions: generator.integers(
        0, 2**64, len(positions), np.uint64
    )

  fingerprint = identity_lib.fingerprint(identity, form)

  def hashed(of, positions):
    content = json.dumps([fingerprint, *of]).encode()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return _mix(np.uint64(int.from_bytes(digest, 'little')), positions)

  return hashed


def _mix(base: np.uint64, positions: np.ndarray) -> np.ndarray:
  """Returns the `positions`-th outputs of SplitMix64 seeded with `base`.

  Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
  Generators", 2014. Of one seed no two outputs are equal.
  """
  with np.errstate(over='ignore'):
    state = base + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
