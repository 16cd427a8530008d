"""The chunks that items may still refer to, and the items as slices of them."""

import functools
from typing import List, Sequence, Tuple

import numpy as np

from rlds2reverb.replay import chunks as chunks_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import pieces as pieces_lib


class KeptChunks:
  """The chunks of one group of columns that items may refer to.

  Attributes:
    group: the group of columns.
    keys: the keys of the chunks, uint64 `[K]`.
  """

  def __init__(self, group: chunks_lib.ColumnGroup):
    self.group = group
    self.keys = np.zeros(0, np.uint64)
    # The frames at which the chunks start and the last one ends.
    self._starts = np.zeros(0, np.int64)
    self._end = 0

  def append(self, keys: np.ndarray, starts: np.ndarray, end: int) -> None:
    """Appends chunks.

    Args:
      keys: the keys of the chunks, uint64 `[N]`.
      starts: the first frame of each chunk, `[N]`.
      end: the frame after the last one of the last chunk.
    """
    self.keys = np.concatenate([self.keys, keys])
    self._starts = np.concatenate([self._starts, starts])
    self._end = end

  def forget(self, needed: int) -> None:
    """Forgets the chunks that hold no frame from `needed` on."""
    kept = len(self._starts)
    if needed < self._end:
      kept = np.searchsorted(self._starts, needed, 'right') - 1
    self.keys = self.keys[kept:]
    self._starts = self._starts[kept:]

  def spans(
      self, starts: np.ndarray, ends: np.ndarray
  ) -> Tuple[np.ndarray, np.ndarray]:
    """Finds the chunks that hold the rows of items.

    Args:
      starts: the first frame of each item, `[N]`.
      ends: the frame after the last one of each item, `[N]`.

    Returns:
      The first chunk of each item, an index into `keys`, and the number of its
      chunks; both int64 `[N]`.
    """
    first = np.searchsorted(self._starts, starts, 'right') - 1
    last = np.searchsorted(self._starts, ends, 'left') - 1
    return first, last - first + 1

  def slices(
      self, first: np.ndarray, count: int, starts: np.ndarray, ends: np.ndarray
  ) -> encoding.ChunkSlices:
    """Returns the slices of chunks that make up items.

    Args:
      first: the first chunk of each item, `[N]`, from `spans`.
      count: the number of chunks, the same for all of these items.
      starts: the first frame of each item, `[N]`.
      ends: the frame after the last one of each item, `[N]`.
    """
    chunks = first[:, np.newaxis] + np.arange(count)  # [N, S]
    chunk_starts = self._starts[chunks]
    chunk_ends = np.append(self._starts[1:], self._end)[chunks]
    begins = np.maximum(starts[:, np.newaxis], chunk_starts)
    lengths = np.minimum(ends[:, np.newaxis], chunk_ends) - begins
    return encoding.ChunkSlices(
        self.keys, chunks, begins - chunk_starts, lengths
    )


def encode_items(
    table_name: str,
    keys: np.ndarray,
    priorities: np.ndarray,
    items: pieces_lib.FoundItems,
    chunks: Sequence[KeptChunks],
    inserted_at: np.ndarray,
) -> List[np.ndarray]:
  """Encodes items of one table.

  Args:
    table_name: the name of the table.
    keys: the keys of the items, uint64 `[N]`.
    priorities: the priorities of the items, float64 `[N]`.
    items: where the items lie.
    chunks: the chunks of each group of columns, which hold all their frames.
    inserted_at: see `encoding.encode_items`.

  Returns:
    The items in their order, arrays as `encoding.encode_items` returns them.
  """
  spans = [each.spans(items.starts, items.ends) for each in chunks]
  # Items are encoded together if they have the same number of slices in every
  # group of columns, which are one number in `counts`.
  counts = functools.reduce(
      lambda total, count: total * (count.max() + 1) + count,
      [count for _, count in spans],
  )
  rows = {}
  for each in np.unique(counts).tolist():
    chosen = np.flatnonzero(counts == each)
    slices = [
        kept.slices(
            first[chosen],
            count[chosen[0]],
            items.starts[chosen],
            items.ends[chosen],
        )
        for kept, (first, count) in zip(chunks, spans)
    ]
    rows[each] = encoding.encode_items(
        table_name,
        keys[chosen],
        priorities[chosen],
        [kept.group.columns for kept in chunks],
        slices,
        inserted_at[chosen],
    )
  # Tables depend on the order of insertion, so the items keep their order.
  in_order = []
  run_starts = np.flatnonzero(np.diff(counts, prepend=0)).tolist()
  for begin, end in zip(run_starts, [*run_starts[1:], len(counts)]):
    each = counts[begin]
    in_order.append(rows[each][: end - begin])
    rows[each] = rows[each][end - begin :]
  return in_order
