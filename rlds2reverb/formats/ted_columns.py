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


def differ(
    here: np.ndarray, after: np.ndarray, length: int, first: int = 0
) -> np.ndarray:
  """Returns which rows of a column are not what the row before leads to.

  Args:
    here: the values of transitions, `[N, ...]`.
    after: the values that they lead to; NaN equals NaN.
    length: the number of transitions.
    first: the row of the oldest one; row 0 follows the last row.

  Returns:
    bool `[length - 1]`, from the second oldest transition on.
  """
  row_bytes = here.dtype.itemsize * int(np.prod(here.shape[1:]))
  chunk = max(_CHUNK_BYTES // max(row_bytes, 1), 1)
  found = np.zeros(max(length - 1, 0), bool)
  for begin in range(0, length - 1, chunk):
    rows = first + np.arange(begin, min(begin + chunk, length - 1))
    one, other = here[(rows + 1) % len(here)], after[rows % len(here)]
    same = one == other
    if np.issubdtype(one.dtype, np.floating):
      same |= np.isnan(one) & np.isnan(other)
    found[begin : begin + chunk] = ~same.reshape(len(one), -1).all(1)
  return found


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
  num_steps = lengths + 1 if rest is None else rest.num_steps
  begin = step_begin = num_last = 0
  for index, count in enumerate(map(int, num_steps)):
    length = max(count - 1, 0)
    rows = (first + np.arange(begin, begin + length)) % len(done)
    end: Mapping[str, np.ndarray] = {}
    is_last = np.zeros(count, bool)
    is_terminal = False
    if rest is not None and count:
      end = {
          name: column[num_last : num_last + 1]
          for name, column in rest.last_step.items()
      }
      is_last[-1], is_terminal = (end[key].reshape(-1)[0] for key in ENDS)
    elif count:
      is_last[-1], is_terminal = done[rows[-1]], terminated[rows[-1]]
    parts = _read_steps(
        columns, len(done), rows, range(step_begin, step_begin + count)
    )
    steps = {
        name: _with_end(name, here, last, end.get(name))
        for name, (here, last) in parts.items()
    }
    steps[rlds.IS_LAST] = is_last
    begin, num_last = begin + length, num_last + (count > 0)
    step_begin += count if length else 0
    fields = {}
    if rest is not None:
      fields = nest({name: one[index] for name, one in rest.metadata.items()})
    yield python_episodes.PythonEpisode(
        nest(steps), count, bool(is_terminal), index, fields
    )


def _read_steps(
    columns: Mapping[str, np.ndarray],
    capacity: int,
    rows: np.ndarray,
    steps: range,
) -> Dict[str, Any]:
  """Returns the rows of an episode, by the names of RLDS, and its last row.

  Args:
    columns: the columns, of either form.
    capacity: how many transitions they have.
    rows: those of the episode.
    steps: its steps, in columns with a row for each step.
  """
  below = [
      name[len(BELOW_NEXT) :] for name in columns if name.startswith(BELOW_NEXT)
  ]
  root = [name for name in columns if not name.startswith(BELOW_NEXT)]
  num_ends = min(len(steps), 1)
  found = {}
  for name in dict.fromkeys([*root, *below]):
    if name in END_KEYS:
      continue
    after = columns.get(BELOW_NEXT + name)
    column = columns.get(name, after)
    if name == rlds.REWARD and after is not None:
      column, after = after, None
    here = column[rows]
    if not below and len(column) != capacity:
      here = column[steps.start : steps.start + len(rows)]
      end = column[steps.start + len(rows) :][:num_ends]
    elif after is not None and len(rows):
      end = after[rows[-1:]]
    else:
      end = np.zeros_like(column[:num_ends])
    found[rlds.IS_FIRST if name == IS_INIT else name] = here, end
  return found


def _with_end(
    name: str, here: np.ndarray, end: np.ndarray, known: Optional[np.ndarray]
) -> np.ndarray:
  """Joins the rows of an episode; `known` is its last row, if it is kept."""
  shape = here.shape[1:]
  # A field of one number has the shape `[1]` in TorchRL.
  if known is not None:
    end = known
    shape = end.shape[1:] if here.ndim == end.ndim + 1 else shape
  elif name == rlds.REWARD and shape == (1,):
    shape = ()
  if name == rlds.IS_FIRST:
    shape = ()
  return np.concatenate(
      [part.reshape(len(part), *shape) for part in (here, end)]
  )


def nest(columns: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns columns by their names as nested dicts."""
  nested = {}
  for name, column in columns.items():
    nested = paths.insert(nested, paths.split(name), column)
  return nested
