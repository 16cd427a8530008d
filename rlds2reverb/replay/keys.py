"""The 64-bit keys of items, chunks and episodes."""

import hashlib
import json
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import draws
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import places


class KeyMaker:
  """Makes keys.

  A table holds each key once. So if keys depend on the content of items alone,
  an item that is inserted twice is in the table once. Under an identity, equal
  arguments give equal keys in every process. Without one, keys are random.
  """

  def __init__(self, identity: Optional[Any], settings: Any = None):
    """Creates the maker of keys.

    Args:
      identity: a value that identifies the data, of the types
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
    is_new = np.diff(index, prepend=-1) > 0
    if self._fingerprint is None:
      content = self._generator.bytes(8 * np.count_nonzero(is_new))
    else:
      content = b''.join(map(self._hash, map(parts, index[is_new].tolist())))
    bases = np.frombuffer(content, '<u8')[np.cumsum(is_new) - 1]
    # Two positions under one base never have the same key.
    steps = positions.astype(np.uint64) + np.uint64(1)
    return draws.mix_bits(bases + steps * np.uint64(draws.GOLDEN))

  def of_items(
      self,
      table: items_lib.TableItems,
      segment: frames_lib.Segment,
      items: places.Items,
  ) -> np.ndarray:
    """Returns the keys of the items of a table in a segment, uint64 `[N]`."""
    of = ['item', table.table_name, table.sequence_length]
    if table.crosses_episodes:
      return self.of(lambda _: of, items.episode, items.frame)
    return self.of(
        lambda index: [*of, segment.episode_ids[index]],
        items.episode,
        items.frame + segment.step[items.episode],
    )

  def of_chunks(
      self,
      placed: places.Placed,
      cuts: Tuple[np.ndarray, np.ndarray, np.ndarray],
      chunk_length: int,
  ) -> np.ndarray:
    """Returns the keys of chunks, uint64 `[K]`; `cuts` is of `cut_chunks`."""
    segment, (starts, first, last) = placed.segment, cuts
    columns = np.stack([segment.step, segment.length, placed.padding], 1)
    # The same frames may be followed by other padding, or by other episodes.
    episodes = list(zip(segment.episode_ids, columns.tolist()))
    parts = lambda chunk: [
        'chunk',
        episodes[first[chunk] : last[chunk]],
        chunk_length,
    ]
    # Chunks of one episode have one base, that of the first of them.
    index = np.searchsorted(first, first)
    return self.of(parts, index, starts[:-1] - placed.origin[first])

  def of_episodes(
      self, segment: frames_lib.Segment, episode: np.ndarray
  ) -> np.ndarray:
    """Returns the keys by which a server counts episodes, uint64 `[K]`.

    Args:
      segment: the segment.
      episode: the index there of the episode of each chunk, not decreasing.
    """
    of = lambda each: ['episode', segment.episode_ids[each]]
    return self.of(of, episode, segment.step[episode])

  def _hash(self, parts) -> bytes:
    content = json.dumps([self._fingerprint, *parts]).encode()
    return hashlib.blake2b(content, digest_size=8).digest()
