"""The 64-bit keys of items, chunks and episodes."""

import hashlib
import json
from typing import Any, Callable, Optional, Sequence

import numpy as np

from rlds2reverb.datasets import identity as identity_lib

# A function that returns keys, uint64 `[N]`. Its first argument says what the
# keys belong to, as JSON values; its second one, `[N]`, where in it each lies.
Keys = Callable[[Sequence[Any], np.ndarray], np.ndarray]


def make_keys(identity: Optional[Any], form: Any = None) -> Keys:
  """Returns a function that makes keys.

  A server that holds an item under a key does not take a second one. So if the
  keys depend on nothing but what the items are, an item that is inserted twice
  is in the table once.

  Args:
    identity: a value that tells this data from all other data, of the types
      that `identity.fingerprint` takes. None asks for random keys.
    form: whatever else the content depends on, of the same types.

  Returns:
    A function `keys(of, positions)`. Under an identity it returns the same keys
    for the same arguments, today and in another process.

  Raises:
    ValueError: if `identity` holds something of which it cannot be known
      whether it stays the same, such as a function.
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
  """Returns outputs of the random number generator SplitMix64.

  Different positions give different outputs, so keys that belong to one thing
  never collide with each other. The generator is described in Steele, Lea and
  Flood, "Fast Splittable Pseudorandom Number Generators", 2014.

  Args:
    base: the seed of the generator.
    positions: which of its outputs are returned, `[N]`.
  """
  with np.errstate(over='ignore'):
    state = base + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
