"""TED's columns: NumPy arrays by the paths of their fields, in either form.

The drawing in `ted` shows them. In the flat form, fields of steps have one row
more for each episode than fields of transitions.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional

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
  for key, column in found.items():
    if column.size != len(column):
      raise ValueError(
          'TED must say of each transition whether it is done, but says it in'
          f' the shape {column.shape}.'
      )
    found[key] = column.reshape(-1).astype(bool)
  done = np.any([*found.values()], axis=0)
  truncated = found.get(TRUNCATED, np.zeros_like(done))
  return done, found.get(TERMINATED, done & ~truncated)


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


def differ(here: np.ndarray, there: np.ndarray) -> np.ndarray:
  """Returns which rows differ, bool `[N]`; NaN equals NaN."""
  same = here == there
  if np.issubdtype(here.dtype, np.floating):
    same |= np.isnan(here) & np.isnan(there)
  return ~same.reshape(len(here), -1).all(1)


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
  capacity = len(done)
  num_steps = lengths + 1 if rest is None else rest.num_steps
  reader = _Reader(columns, capacity, rest)
  begin = step_begin = num_last = 0
  for index, count in enumerate(map(int, num_steps)):
    length = max(count - 1, 0)
    rows = (first + np.arange(begin, begin + length)) % capacity
    steps = reader.read(rows, step_begin, num_last if count else None)
    is_last = np.zeros(count, bool)
    is_terminal = False
    if rest is not None and count:
      is_last[-1], is_terminal = (
          rest.last_step[key].reshape(-1)[num_last] for key in ENDS
      )
    elif count:
      is_last[-1], is_terminal = done[rows[-1]], terminated[rows[-1]]
    steps[rlds.IS_LAST] = is_last
    begin, num_last = begin + length, num_last + (count > 0)
    step_begin += count if length else 0
    fields = {}
    if rest is not None:
      fields = nest({name: one[index] for name, one in rest.metadata.items()})
    yield python_episodes.PythonEpisode(
        nest(steps), count, bool(is_terminal), index, fields
    )


class _Reader:
  """Reads the rows of one episode from columns."""

  def __init__(self, columns, capacity: int, rest: Optional[Rest]):
    self._columns = columns
    self._capacity = capacity
    self._rest = rest
    below = [
        name[len(BELOW_NEXT) :]
        for name in columns
        if name.startswith(BELOW_NEXT)
    ]
    root = [name for name in columns if not name.startswith(BELOW_NEXT)]
    self._names = [
        name for name in dict.fromkeys([*root, *below]) if name not in END_KEYS
    ]
    self._is_flat = not below

  def read(
      self, rows: np.ndarray, step_begin: int, last: Optional[int]
  ) -> Dict[str, np.ndarray]:
    """Returns the step fields of an episode, by their names in RLDS.

    Args:
      rows: its transitions.
      step_begin: its first step, in columns with a row for each step.
      last: its index among the last steps; None if it is not there.
    """
    steps = {}
    for name in self._names:
      below = BELOW_NEXT + name
      column = self._columns.get(name)
      if name == rlds.REWARD and below in self._columns or column is None:
        column = self._columns[below]
      field = rlds.IS_FIRST if name == IS_INIT else name
      is_at_steps = self._is_flat and len(column) != self._capacity
      here = column[step_begin : step_begin + len(rows)]
      if not is_at_steps:
        here = column[rows]
      if last is None:
        end = column[:0]
      elif self._rest is not None:
        end = self._rest.last_step[field][last : last + 1]
      elif is_at_steps:
        end = column[step_begin + len(rows) :][:1]
      elif below in self._columns and name != rlds.REWARD:
        end = self._columns[below][rows[-1:]]
      else:
        end = np.zeros_like(column[:1])
      # A field of one number has the shape `[1]` in TorchRL.
      if here.ndim == end.ndim + 1 or (
          self._rest is None and field == rlds.REWARD and here.shape[1:] == (1,)
      ):
        here, end = here.reshape(len(here)), end.reshape(len(end))
      if field == rlds.IS_FIRST:
        here, end = here.reshape(-1), end.reshape(-1)
      steps[field] = np.concatenate([here, end])
    return steps


def nest(columns: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns columns by their names as nested dicts."""
  nested = {}
  for name, column in columns.items():
    nested = paths.insert(nested, paths.split(name), column)
  return nested
