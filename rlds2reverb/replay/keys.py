"""The 64-bit keys of items, chunks and episodes in Reverb."""

import hashlib
import json
from typing import Any, Callable, Optional, Sequence

import numpy as np

from rlds2reverb.datasets import fingerprints
from rlds2reverb.episodes import random as random_lib


class KeyMaker:
  """Makes keys, random ones or hashes of an identity.

  A table holds each key once. So if keys are hashes of the identity of an item,
  an item that is inserted twice is in the table once. Under an identity, equal
  arguments give equal keys in every process.
  """

  def __init__(self, identity: Optional[Any], settings: Any = None):
    """Creates the maker of keys.

    Args:
      identity: a value that identifies the data, of the types that
        `fingerprints.fingerprint` accepts. With None, keys are random.
      settings: everything else that the items depend on, of the same types.

    Raises:
      ValueError: if `identity` holds a value that another process may not
        recognize as the same, such as a function.
    """
    self._fingerprint = None
    self._generator = np.random.default_rng()
    if identity is not None:
      self._fingerprint = fingerprints.fingerprint(identity, settings)

  def make_keys(
      self,
      parts: Callable[[int], Sequence[Any]],
      index: np.ndarray,
      positions: np.ndarray,
  ) -> np.ndarray:
    """Returns keys, uint64 `[N]`.

    Args:
      parts: a function of an index that returns the JSON values to hash. It is
        called once for each distinct index, and not for random keys.
      index: the index of each key, not decreasing, `[N]`.
      positions: a number that distinguishes keys of the same index, such as the
        position of an item in its episode, `[N]`.
    """
    is_new = np.diff(index, prepend=-1) > 0
    if self._fingerprint is None:
      hashes = self._generator.bytes(8 * np.count_nonzero(is_new))
    else:
      hashes = b''.join(
          self._hash(parts(first)) for first in index[is_new].tolist()
      )
    bases = np.frombuffer(hashes, '<u8')[np.cumsum(is_new) - 1]
    # Different positions of one hash always give different keys.
    steps = positions.astype(np.uint64) + np.uint64(1)
    return random_lib.mix_bits(bases + steps * np.uint64(random_lib.GOLDEN))

  def _hash(self, parts) -> bytes:
    content = json.dumps([self._fingerprint, *parts]).encode()
    return hashlib.blake2b(content, digest_size=8).digest()
