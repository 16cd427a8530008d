"""The 64-bit keys of items, chunks and episodes."""

import hashlib
import json
from typing import Any, Callable, Optional, Sequence

import numpy as np

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import draws
from rlds2reverb.replay import chunks as chunks_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import pieces as pieces_lib


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

  def of_items(
      self,
      table: items_lib.TableItems,
      episode_ids: Sequence[Any],
      pieces: pieces_lib.Pieces,
      items: pieces_lib.FoundItems,
  ) -> np.ndarray:
    """Returns the keys of items, uint64 `[N]`.

    Args:
      table: which items go into their table.
      episode_ids: what identifies the episodes of the block they end in.
      pieces: where the episodes of the block lie.
      items: where the items lie.
    """
    of = ['item', table.table_name, table.sequence_length]
    if table.crosses_episodes:
      return self.of_each(lambda _: of, items.piece, items.starts)
    return self.of_each(
        lambda index: [*of, episode_ids[index]],
        pieces.index[items.piece],
        items.starts + (pieces.step - pieces.position)[items.piece],
    )

  def of_chunks(
      self,
      episode_ids: Sequence[Any],
      pieces: pieces_lib.Pieces,
      cuts: chunks_lib.Cuts,
      group: Sequence[Any],
  ) -> np.ndarray:
    """Returns the keys of the chunks of a group of columns, uint64 `[K]`.

    Args:
      episode_ids: what identifies the episodes of the block they hold.
      pieces: where the episodes of the block lie.
      cuts: where the chunks lie.
      group: what tells the group from others, JSON values.
    """
    ids, step, num_frames, padding = (
        [episode_ids[index] for index in pieces.index.tolist()],
        pieces.step.tolist(),
        pieces.num_frames.tolist(),
        pieces.padding.tolist(),
    )

    def frames_of(index):
      return ['chunk', episode_ids[index], *group]

    def padding_of(piece):
      # The same positions after a step may hold other padding, or other steps.
      end = step[piece] + num_frames[piece]
      return ['padding', end, padding[piece], 'chunk', ids[piece], *group]

    def episodes_of(chunk):
      begin = cuts.first_piece[chunk]
      held = slice(begin, begin + cuts.num_pieces[chunk])
      content = list(zip(ids[held], num_frames[held], padding[held]))
      return ['episodes', content, *group]

    piece = cuts.first_piece
    numbers = np.arange(len(piece))
    begins = cuts.starts - pieces.position[piece]
    is_shared = cuts.num_pieces > 1
    keys = np.zeros(len(piece), np.uint64)
    for chosen, of, index, positions in (
        (
            ~is_shared & ~cuts.is_padding,
            frames_of,
            pieces.index[piece],
            pieces.step[piece] + begins,
        ),
        (
            cuts.is_padding,
            padding_of,
            piece,
            begins - pieces.num_frames[piece],
        ),
        (is_shared, episodes_of, numbers, np.zeros_like(numbers)),
    ):
      if chosen.any():
        keys[chosen] = self.of_each(of, index[chosen], positions[chosen])
    return keys

  def of_each(
      self,
      of: Callable[[int], Sequence[Any]],
      index: np.ndarray,
      positions: np.ndarray,
  ) -> np.ndarray:
    """Returns the keys of positions in episodes or pieces, uint64 `[N]`.

    Args:
      of: a function of an index, on whose JSON values the keys depend. It is
        called once for each index, and not for random keys.
      index: the index of each key, not decreasing, `[N]`.
      positions: the position of each in its episode or piece, `[N]`.
    """
    if self._fingerprint is None:
      return np.frombuffer(self._generator.bytes(8 * len(index)), np.uint64)
    is_new = np.concatenate([[-1], index[:-1]]) < index
    bases = np.array(
        [self._hash(of(each)) for each in index[is_new].tolist()], np.uint64
    )
    # Two positions under one base never have the same key.
    steps = positions.astype(np.uint64) + np.uint64(1)
    return draws.mix_bits(
        bases[np.cumsum(is_new) - 1] + steps * np.uint64(draws.GOLDEN)
    )

  def _hash(self, of) -> int:
    content = json.dumps([self._fingerprint, *of]).encode()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, 'little')
