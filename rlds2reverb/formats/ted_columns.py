"""TED's columns: NumPy arrays by the paths of their fields, in either form.

The drawing in `ted` shows them. In the flat form, fields of steps have one row
more for each episode than fields of transitions.
"""

from typing import (
    Any,
    Dict,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
)

import numpy as np

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import python_episodes

# What TorchRL's `InitTracker` calls the first step of an episode.
IS_INIT = 'is_init'
NEXT = 'next'
DONE, TERMINATED, TRUNCATED = END_KEYS = ('done', 'terminated', 'truncated')
ENDS = (rlds.IS_LAST, rlds.IS_TERMINAL)
BELOW_NEXT = NEXT + '/'
# How much of a column is compared at a time.
_CHUNK_BYTES = 8 << 20


class Rest(NamedTuple):
  """The data for which TED has no place.

  Attributes:
    num_steps: int64 `[E]`: how many steps each episode has.
    last_step: by the paths of step fields, the last step of each episode that
      has one, `[L, ...]`. Its action and reward are in no transition.
    metadata: by their paths, the other fields of the episodes, `[E, ...]`.
  """

  num_steps: np.ndarray
  last_step: Dict[str, np.ndarray]
  metadata: Dict[str, np.ndarray]


def find_ends(columns: Mapping[str, np.ndarray]) -> Any:
  """Returns which transitions are done, and which terminated, bool `[N]`."""
  is_below = any(name.startswith(BELOW_NEXT) for name in columns)
  prefix = BELOW_NEXT if is_below else ''
  found = {
      key: columns[prefix + key] for key in END_KEYS if prefix + key in columns
  }
  if DONE not in found and TERMINATED not in found:
    raise ValueError(
        f'TED must have {prefix}{DONE}, or whether a transition is terminated'
        f' or truncated, to say where episodes end, but has {sorted(columns)}.'
    )
  for column in found.values():
    if column.size != len(column):
      raise ValueError(
          'TED must say of each transition whether it is done, but says it in'
          f' the shape {column.shape}.'
      )
  flags = {key: column.ravel().astype(bool) for key, column in found.items()}
  done = np.any([*flags.values()], axis=0)
  return done, flags.get(TERMINATED, done & ~flags.get(TRUNCATED, np.False_))


def lengths_of(is_end: np.ndarray) -> np.ndarray:
  """Returns each episode's number of transitions; the last need not end."""
  ends = 1 + np.flatnonzero(is_end[:-1])
  return np.diff([0, *ends, len(is_end)])


def check_rows(where: str, columns, capacity: int, num_episodes: int) -> None:
  """Checks that columns have a row for each transition, or for each step."""
  is_flat = not any(name.startswith(BELOW_NEXT) for name in columns)
  for name, column in columns.items():
    is_enough = len(column) >= capacity + num_episodes
    if len(column) != capacity and not (is_flat and is_enough):
      raise ValueError(
          f'{name} of {where} has {len(column)} rows, but must have {capacity}'
          + f' or {capacity + num_episodes}' * is_flat
          + '.'
      )


def find_jumps(
    columns: Mapping[str, np.ndarray], done: np.ndarray, first: int = 0
) -> Iterator[Tuple[str, np.ndarray]]:
  """Yields the fields whose transitions do not follow one another.

  Args:
    columns: the columns, of either form.
    done: bool `[N]`: which transitions end an episode, oldest first.
    first: the row of the oldest one; row 0 follows the last row.

  Yields:
    The name of a field, and bool `[N - 1]`: which transitions do not lead to
    what the next one begins with, though they are not done. NaN equals NaN.
  """
  for name in sorted(columns):
    here, after = columns[name], columns.get(BELOW_NEXT + name)
    if after is None or name in END_KEYS:
      continue
    row_bytes = here.dtype.itemsize * int(np.prod(here.shape[1:]))
    chunk = max(_CHUNK_BYTES // max(row_bytes, 1), 1)
    jumps = ~done[:-1]
    for begin in range(0, len(jumps), chunk):
      rows = first + np.arange(begin, min(begin + chunk, len(jumps)))
      one, other = here[(rows + 1) % len(here)], after[rows % len(here)]
      same = one == other
      if np.issubdtype(one.dtype, np.floating):
        same |= np.isnan(one) & np.isnan(other)
      jumps[begin : begin + chunk] &= ~same.reshape(len(one), -1).all(1)
    if jumps.any():
      yield name, jumps


def read_episodes(
    columns: Mapping[str, np.ndarray],
    lengths: np.ndarray,
    rest: Optional[Rest] = None,
    first: int = 0,
) -> python_episodes.Episodes:
  """Yields the episodes of columns, oldest first.

  Args:
    columns: the columns, of either form.
    lengths: int64 `[E]`: how many transitions each episode has, if it has any.
    rest: the data beside the columns, if it is known.
    first: the row of the oldest transition; rows before it follow the last.
  """
  done, terminated = find_ends(columns)
  begin = number = num_last = 0
  for index, count in enumerate(
      (lengths + 1 if rest is None else rest.num_steps).tolist()
  ):
    length = max(count - 1, 0)
    rows = (first + np.arange(begin, begin + length)) % len(done)
    known: Dict[str, np.ndarray] = {}
    fields, is_last, is_terminal = {}, False, False
    if rest is not None:
      leaves = {name: one[index] for name, one in rest.metadata.items()}
      fields = nest(leaves)
    if rest is not None and count:
      known = {
          name: column[num_last : num_last + 1]
          for name, column in rest.last_step.items()
      }
      is_last, is_terminal = (known[key].ravel()[0] for key in ENDS)
    elif count:
      is_last, is_terminal = done[rows[-1]], terminated[rows[-1]]
    # A field of steps has a row more for each episode.
    steps = _read_steps(columns, len(done), rows, begin + number, count, known)
    steps[rlds.IS_LAST] = np.arange(count) == (count - 1 if is_last else -1)
    yield python_episodes.PythonEpisode(
        nest(steps), count, bool(is_terminal), index, fields
    )
    begin, number = begin + length, number + (length > 0)
    num_last += count > 0


def _read_steps(
    columns: Mapping[str, np.ndarray],
    capacity: int,
    rows: np.ndarray,
    start: int,
    count: int,
    known: Mapping[str, np.ndarray],
) -> Dict[str, np.ndarray]:
  """Returns the fields of an episode, by the names of RLDS.

  Args:
    columns: the columns, of either form.
    capacity: how many transitions they have.
    rows: those of the episode.
    start: where it begins in columns with a row for each step.
    count: its number of steps.
    known: the fields of its last step, if they are kept.
  """
  after_root = sorted(columns, key=lambda name: name.startswith(BELOW_NEXT))
  is_flat = not after_root[-1].startswith(BELOW_NEXT)
  steps = {}
  for name in dict.fromkeys(one.removeprefix(BELOW_NEXT) for one in after_root):
    if name in END_KEYS:
      continue
    after = columns.get(BELOW_NEXT + name)
    column = columns.get(name, after)
    if name == rlds.REWARD and after is not None:
      column, after = after, None
    here = column[rows]
    end = np.zeros_like(column[: min(count, 1)])
    if is_flat and len(column) != capacity:
      here = column[start : start + len(rows)]
      end = column[start + len(rows) :][: len(end)]
    elif after is not None and len(rows):
      end = after[rows[-1:]]
    name = rlds.IS_FIRST if name == IS_INIT else name
    # A field of one number has the shape `[1]` in TorchRL.
    shape = here.shape[1:]
    if name in known:
      end = known[name]
      shape = end.shape[1:]
    if name == rlds.IS_FIRST or (
        name == rlds.REWARD and name not in known and shape == (1,)
    ):
      shape = ()
    steps[name] = np.concatenate(
        [part.reshape(len(part), *shape) for part in (here, end)]
    )
  return steps


def nest(columns: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns columns by their names as nested dicts."""
  nested = {}
  for name, column in columns.items():
    nested = paths.insert(nested, paths.split(name), column)
  return nested
