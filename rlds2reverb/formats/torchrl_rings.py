"""Finds the oldest row of TorchRL's ring buffers, and broken-off episodes.

A buffer of 8 that has written episodes of 5, 3 and 2 transitions, and is full:

    rows            0   1   2   3   4   5   6   7
    transitions    C0  C1  A2  A3  A4  B0  B1  B2      the cursor is 2

The oldest row is at the cursor. A dump of the whole buffer has the cursor; a
dump of the storage alone does not.
"""

import json
import os
from typing import Any, Dict, Optional

from absl import logging
import numpy as np

from rlds2reverb.formats import ted_columns

_TRAJECTORY_IDS = 'collector/traj_ids'
_CHUNK_BYTES = 8 << 20


def first_row(storage_folder: str, length: int, capacity: int) -> Optional[int]:
  """Returns the oldest row of a storage, or None if it is not known.

  Args:
    storage_folder: the folder of the storage, which lies beside `writer` if the
      whole replay buffer was saved.
    length: how many rows are written.
    capacity: how many rows there can be.
  """
  if length < capacity:
    return 0
  path = os.path.join(
      os.path.dirname(storage_folder), 'writer', 'metadata.json'
  )
  if os.path.basename(storage_folder) != 'storage' or not os.path.isfile(path):
    return None
  with open(path, encoding='utf-8') as f:
    cursor = json.load(f).get('cursor')
  return cursor if isinstance(cursor, int) and 0 <= cursor < capacity else None


def find_breaks(
    path: str,
    columns: Dict[str, np.ndarray],
    done: np.ndarray,
    first: Optional[int],
) -> np.ndarray:
  """Returns the transitions after which an episode stops without being done.

  Args:
    path: the path of the storage, for messages.
    columns: arrays by the names of their fields, some below `next/`.
    done: bool `[N]`: which transitions end an episode, oldest first.
    first: the oldest row; None if it is not known and rows are in file order.

  Returns:
    bool `[N]`. An episode stops if the next transition begins with another
    observation, or has another trajectory number of TorchRL's collector.

  Raises:
    ValueError: if this is true of more than half of them, as it is of
      transitions over several steps, which do not make episodes.
  """
  length = len(done)
  goes_on = ~done[:-1]
  differs = np.zeros(length - 1, bool)
  names = []
  for name in sorted(columns):
    is_id = name == _TRAJECTORY_IDS
    after = columns.get(ted_columns.BELOW_NEXT + name)
    if not is_id and (after is None or name in ted_columns.END_KEYS):
      continue
    column = columns[name]
    found = _differs(column, column if is_id else after, length, first or 0)
    if (found & goes_on).any():
      names.append(name)
    differs |= found
  breaks = np.append(differs & goes_on, False)
  count = np.count_nonzero(breaks)
  if count > max(1, np.count_nonzero(goes_on) // 2):
    raise ValueError(
        f'{count} of {np.count_nonzero(goes_on)} transitions of {path} lead to'
        f' another {" and ".join(names)} than the next one begins with. These'
        ' are no steps of episodes: a transition must be of one step.'
    )
  if count:
    rows = ' '.join(str(row + 1) for row in np.flatnonzero(breaks)[:10])
    logging.warning(
        '%d episodes of %s break off before the row %s of their transitions,'
        ' oldest first: the one after begins with another %s. No transition is'
        ' left out, and these episodes have no last step.',
        count,
        path,
        rows + ' ...' * (count > 10),
        ' and '.join(names),
    )
  elif first is None:
    logging.warning(
        '%s is full, and its oldest row is not known, as only the storage was'
        ' saved. If an episode was written over in its middle, the rest of it'
        ' may be joined with the newest one. Load the folder of the whole'
        ' replay buffer, whose writer knows.',
        path,
    )
  return breaks


def _differs(before: Any, after: Any, length: int, first: int) -> np.ndarray:
  """Returns which rows of `before` differ from the preceding row of `after`."""
  row_bytes = before.dtype.itemsize * int(np.prod(before.shape[1:]))
  chunk = max(_CHUNK_BYTES // max(row_bytes, 1), 1)
  capacity = len(before)
  found = np.zeros(length - 1, bool)
  for begin in range(0, length - 1, chunk):
    rows = first + np.arange(begin, min(begin + chunk, length - 1))
    here = before[(rows + 1) % capacity]
    there = after[rows % capacity]
    found[begin : begin + chunk] = ted_columns.differ(here, there)
  return found
