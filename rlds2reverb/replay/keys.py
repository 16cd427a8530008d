"""The 64-bit keys of items, chunks and episodes."""

import hashlib
import json
from typing import Any, Callable, Optional, Sequence

import numpy as np

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import draws


class KeyMaker:
  """Makes keys.

  A table holds each key once. So if keys depend on the content of items alone,
  an item that is inserted twice is in the table once. Under an identity, equal
  arguments give equal keys in every process. Without one, keys are random.
  """

  def __init__(self, identity: Optional[Any], settings: Any = None):
    """Creates the maker of keys.

    Args:
      identity: a value that tells this data from all other data, of the types
        that `identity.fingerprint` takes. None asks for random keys.
      settings: everything else that the content depends on, of the same types.

    Raises:
      ValueError: if `identity` holds a value that another process may not
        recognize as the same, such as a function.
    """
    self._fingerprint = None
    self._generator = np.random.default_rng()
    if identity is not None:
      self._fingerprint = identity_lib.fingerprint(identity, settings)

  def of(
      self,
      parts: Callable[[int], Sequence[Any]],
      index: np.ndarray,
      positions: np.ndarray,
  ) -> np.ndarray:
    """Returns the keys of positions in episodes, uint64 `[N]`.

    Args:
      parts: a function of an index, on whose JSON values the keys depend. It is
        called once for each index, and not for random keys.
      index: the index of each key, not decreasing, `[N]`.
      positions: the position of each in its episode, `[N]`.
    """
    if self._fingerprint is None:
      return np.frombuffer(self._generator.bytes(8 * len(index)), np.uint64)
    is_new = np.concatenate([[-1], index[:-1]]) < index
    bases = np.array(
        [self._hash(parts(each)) for each in index[is_new].tolist()], np.uint64
    )
    # Two positions under one base never have the same key.
    steps = positions.astype(np.uint64) + np.uint64(1)
    return draws.mix_bits(
        bases[np.cumsum(is_new) - 1] + steps * np.uint64(draws.GOLDEN)
    )

  def _hash(self, parts) -> int:
    content = json.dumps([self._fingerprint, *parts]).encode()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, 'little')
