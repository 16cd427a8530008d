"""The columns of flat arrays, and the ends of their episodes."""

from typing import Collection, Dict, List, Mapping, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib

# The prefix of next observations, before the name of the observations.
NEXT = 'next_'

_OBSERVATIONS = columns_lib.NAMES[rlds.OBSERVATION]
_TERMINALS = 'terminals'
_TIMEOUTS = 'timeouts'
_REQUIRED = (*columns_lib.NAMES.values(), _TERMINALS)
USED = (*_REQUIRED, _TIMEOUTS, NEXT + _OBSERVATIONS)
_METADATA = 'metadata'
# The columns that data may lack, if its reader allows it.
OPTIONAL = (columns_lib.NAMES[rlds.REWARD], _TERMINALS)


class FlatLayout(NamedTuple):
  """The columns that become fields of a step, and the rows of the episodes.

  Attributes:
    names: the names of the columns in the data, by the paths of their fields.
      There may be no reward, which is then zeros.
    specs: the specs of one step of each of these fields.
    has_next: whether there are `next_observations`.
    bounds: int64 `[E + 1]`: the rows at which the episodes begin, and the
      number of all rows.
    is_terminal: bool `[E]`: whether each episode ends in a terminal state.
  """

  names: Dict[str, str]
  specs: Dict[str, tf.TensorSpec]
  has_next: bool
  bounds: np.ndarray
  is_terminal: np.ndarray


def find_layout(
    columns: Dict[str, columns_lib.AnyColumn],
    max_episode_steps: Optional[int],
    may_lack: Collection[str] = (),
) -> FlatLayout:
  """Finds the columns of the fields, and the episodes by their flags.

  Args:
    columns: the columns by their names.
    max_episode_steps: the number of rows after which an episode ends at the
      latest, or None.
    may_lack: the columns `rewards` and `terminals`, where they may be missing.

  Raises:
    ValueError: if a column is missing, or cannot be read, or has another number
      of rows than the terminals; or if a flag is neither 0 nor 1.
  """
  names = {
      field + one[len(name) :]: one
      for field, name in columns_lib.NAMES.items()
      for one in columns_lib.below(name, columns)
  }
  there = {*columns, *(one.split('/')[0] for one in names.values()), *may_lack}
  missing = [one for one in _REQUIRED if one not in there]
  if missing:
    name = missing[0]
    raise ValueError(
        f'There is no column {", ".join(missing)}.'
        f'{checks.did_you_mean(name, columns)} The columns are'
        f' {sorted(columns)}. If it has another name, give that:'
        f' column_names={{{name!r}: ...}}.'
        + f' If there is none: column_names={{{name!r}: None}}.'
        * (name in OPTIONAL)
    )
  [action, *_] = columns_lib.below(rlds.ACTION, names)
  counted = _TERMINALS if _TERMINALS in columns else names[action]
  num_rows = int(np.prod(columns[counted].shape[:1]))
  names |= {name: name for name in _other_fields(columns, num_rows)}
  specs = {
      field: _row_spec(columns, name, num_rows) for field, name in names.items()
  }
  for field in columns_lib.below(rlds.REWARD, specs):
    specs[field] = _squeezed(specs[field])
  has_next = bool(columns_lib.below(NEXT + _OBSERVATIONS, columns))
  for field in columns_lib.below(rlds.OBSERVATION, names) if has_next else ():
    name, spec = NEXT + names[field], specs[field]
    if name not in columns or _row_spec(columns, name, num_rows) != spec:
      found = _row_spec(columns, name, num_rows) if name in columns else None
      raise ValueError(
          f'There must be a {name} for each {names[field]}, or for none, with'
          f' rows of {spec.dtype.name} {spec.shape}, but there is {found}.'
      )
  terminals = _flag(columns, _TERMINALS, num_rows)
  is_end = terminals | _flag(columns, _TIMEOUTS, num_rows)
  is_end[-1:] = True
  bounds = np.concatenate([[0], np.flatnonzero(is_end) + 1])
  if max_episode_steps is not None:
    checks.check_positive('max_episode_steps', max_episode_steps)
    starts = [
        np.arange(start, end, max_episode_steps)
        for start, end in zip(bounds[:-1], bounds[1:])
    ]
    bounds = np.concatenate([*starts, bounds[-1:]])
  return FlatLayout(names, specs, has_next, bounds, terminals[bounds[1:] - 1])


def _other_fields(
    columns: Mapping[str, columns_lib.AnyColumn], num_rows: int
) -> List[str]:
  """Returns the names of all other columns with a row for each step."""
  found, left_out = [], []
  for name, column in columns.items():
    top = name.split('/')[0]
    if top in (*USED, _METADATA):
      continue
    if top in steps_lib.get_rlds_step_features():
      raise ValueError(
          f'The column {name} has the name of a field of RLDS, which is made'
          f' from other columns: {", ".join(USED)}. Rename it, or leave it'
          ' out.'
      )
    if columns_lib.has_rows(column, num_rows):
      found.append(name)
    else:
      left_out.append(f'{name} {column.shape}')
  what = f'columns that do not have {num_rows} rows of numbers or strings'
  columns_lib.log_left_out(what, left_out)
  return found


def _row_spec(columns, name: str, num_rows: int) -> tf.TensorSpec:
  spec = columns_lib.checked_spec(name, columns[name])
  if len(columns[name]) != num_rows:
    raise ValueError(
        f'The column {name} has {len(columns[name])} rows, but {_TERMINALS} has'
        f' {num_rows}. A row must be a transition in both.'
    )
  return spec


def _squeezed(spec: tf.TensorSpec) -> tf.TensorSpec:
  """Returns the spec of a number whose rows may be `[1]`."""
  return tf.TensorSpec([], spec.dtype) if spec.shape == [1] else spec


def _flag(columns, name: str, num_rows: int) -> np.ndarray:
  """Returns the values of a flag, bool `[N]`; False if it is not there."""
  if name not in columns:
    return np.zeros(num_rows, bool)
  spec = _squeezed(_row_spec(columns, name, num_rows))
  if spec.shape.rank or spec.dtype == tf.string:
    raise ValueError(
        f'The column {name} must be one bool or number a row, but its rows are'
        f' {spec.dtype.name} {spec.shape}.'
    )
  values = np.reshape(columns[name][:], [-1])
  wrong = np.flatnonzero((values != 0) & (values != 1))
  if wrong.size:
    raise ValueError(
        f'The column {name} must be 0 or 1, but is {values[wrong[0]]} in row'
        f' {wrong[0]}.'
    )
  return values.astype(bool)
