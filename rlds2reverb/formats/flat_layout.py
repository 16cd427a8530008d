"""The columns of flat transitions, and the bounds of their episodes.

A table has a row for each transition. An episode ends according to flags,
episode ids, discontinuous observations or a maximum length:

    terminals           the row ends a terminal episode
    timeouts            the row ends a truncated episode
    episode_starts      the row begins an episode, so the previous row ends one
    an episode column   the next row has another id
    next_observations   the next row has another observation
    max_episode_steps   the episode has this number of rows
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import logging
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib

# The prefix of next observations, before the name of the observations.
NEXT = 'next_'

_OBSERVATIONS = columns_lib.NAMES[rlds.OBSERVATION]
_REWARDS = columns_lib.NAMES[rlds.REWARD]
_TERMINALS = 'terminals'
_TIMEOUTS = 'timeouts'
_STARTS = 'episode_starts'
_REQUIRED = (*columns_lib.NAMES.values(), _TERMINALS)
USED = (*_REQUIRED, _TIMEOUTS, _STARTS, NEXT + _OBSERVATIONS)
_METADATA = 'metadata'
# The columns that are optional for some readers.
OPTIONAL = (_REWARDS, _TERMINALS)
# Other names of columns, in Gymnasium, RLlib, Minari and Stable-Baselines.
_ALIASES = {
    _OBSERVATIONS: ('obs',),
    NEXT + _OBSERVATIONS: ('next_obs', 'new_obs'),
    _TERMINALS: ('terminateds', 'terminations', 'terminated'),
    _TIMEOUTS: ('truncateds', 'truncations', 'truncated'),
}
# The default names of episode columns.
_EPISODE_COLUMNS = (
    'episode_id',
    'episode_ids',
    'episode_index',
    'eps_id',
    'episode',
    'trajectory_id',
    'trajectory_ids',
    'traj_id',
    'traj_ids',
)
# The default names of step columns.
_STEP_COLUMNS = (
    'step',
    'steps',
    'step_id',
    'step_index',
    'step_idx',
    'timestep',
    'timesteps',
    'time_step',
    'frame_index',
    't',
    'timestamp',
    'timestamps',
)
_HOW_TO_END = (
    f'If a column of {_TIMEOUTS} or {_STARTS} has another name, pass'
    f' column_names={{{_TIMEOUTS!r}: ...}}. If a column identifies the episode'
    ' of a row, pass episode_column=.... If all episodes have the same length,'
    ' or there is only one episode, pass max_episode_steps=....'
)
_NO_ENDS = (
    f'The ends of episodes are unknown: there is no {_TERMINALS}, {_TIMEOUTS}'
    f' or {_STARTS}. {_HOW_TO_END}'
)
_MAX_LISTED = 5


class StepColumn(NamedTuple):
  """The name and the values, `[N]`, of a column that orders rows."""

  name: str
  values: np.ndarray


class _Flags(NamedTuple):
  """The flags of rows, bool `[N]` each."""

  terminals: np.ndarray
  timeouts: Any
  starts: np.ndarray

  def find_ends(self) -> np.ndarray:
    """Returns the rows that end an episode, bool `[N]`."""
    return self.terminals | self.timeouts | np.append(self.starts[1:], True)


class FlatLayout(NamedTuple):
  """The columns of step fields, and the rows of the episodes.

  Attributes:
    names: the names of the columns in the data, by step field. A missing reward
      is zeros.
    specs: the specs of one step, by step field.
    has_next: whether there are `next_observations`.
    bounds: int64 `[E + 1]`: the first row of each episode, and the number of
      rows.
    is_terminal: bool `[E]`: whether each episode is terminal.
    order: int64 `[N]`: the permutation that sorts the rows by episode, which
      `bounds` refer to; None if they are sorted.
    is_partial: bool `[E]`: whether rows of each episode may be missing; None if
      there are no unreadable files.
  """

  names: dict[str, str]
  specs: dict[str, tf.TensorSpec]
  has_next: bool
  bounds: np.ndarray
  is_terminal: np.ndarray
  order: np.ndarray | None = None
  is_partial: np.ndarray | None = None

  def columns_of(self, field: str) -> list[str]:
    """Returns the names of the columns of a field."""
    name = self.names[field]
    is_next = self.has_next and field.split('/')[0] == rlds.OBSERVATION
    return [name, NEXT + name] if is_next else [name]


class Files(NamedTuple):
  """The positions of files in the rows of flat transitions.

  Attributes:
    starts: the first row of each readable file, ascending from 0.
    gaps: the rows that follow an unreadable file; includes the number of rows
      if the last file is unreadable.
  """

  starts: Sequence[int]
  gaps: Sequence[int]


class FlatOptions(NamedTuple):
  """The options of readers of flat transitions; see `from_flat_arrays`."""

  max_episode_steps: int | None = None
  column_names: Mapping[str, str | None] | None = None
  episode_column: str | None = None
  step_column: str | None = None


def named_columns(
    columns: Mapping[str, columns_lib.AnyColumn], options: FlatOptions
) -> dict[str, columns_lib.AnyColumn]:
  """Renames columns to the expected names, `USED`.

  The precedence is: names in `column_names`, expected names, aliases.

  Raises:
    ValueError: if a column in `column_names` does not exist, or if one of its
      keys is neither in `USED` nor a column.
  """
  names = dict(options.column_names or {})
  tops = dict.fromkeys(name.split('/')[0] for name in columns)
  for name, column in names.items():
    accepted = USED if column is not None else [*USED, *tops]
    checks.check_choice('A key of column_names', name, accepted)
  observations = names.get(_OBSERVATIONS) or _OBSERVATIONS
  aliases = {
      **_ALIASES,
      NEXT
      + _OBSERVATIONS: (
          NEXT + observations,
          *_ALIASES[NEXT + _OBSERVATIONS],
      ),
  }
  used = {*names.values(), options.episode_column, options.step_column}
  for name, synonyms in aliases.items():
    matches = [
        alias for alias in synonyms if alias in tops and alias not in used
    ]
    if name not in names and name not in tops and matches:
      names[name] = matches[0]
  return columns_lib.renamed(columns, names)


def find_layout(
    columns: Mapping[str, columns_lib.AnyColumn],
    options: FlatOptions = FlatOptions(),
    may_lack: Collection[str] = (),
    files: Files = Files((), ()),
) -> FlatLayout:
  """Finds the columns of step fields, and the bounds of episodes.

  Args:
    columns: the columns by their names in the data; see `named_columns`.
    options: the options of the reader.
    may_lack: the optional columns, a subset of `OPTIONAL`.
    files: the files of the rows, if some are unreadable.

  Raises:
    ValueError: if a column is missing, unreadable, or differs from the
      terminals in the number of rows; if a flag is neither 0 nor 1; if there
      are no rows; if the ends of episodes are unknown; or if the rows of an
      episode are not contiguous and no step column orders them.
  """
  names_in_data = sorted(columns)
  columns = named_columns(columns, options)
  names = _find_fields(columns, options, may_lack, names_in_data)
  [action, *_] = columns_lib.below(rlds.ACTION, names)
  counted = _TERMINALS if _TERMINALS in columns else names[action]
  num_rows = int(np.prod(columns[counted].shape[:1]))
  has_next = bool(columns_lib.below(NEXT + _OBSERVATIONS, columns))
  id_column, ids = _find_ids(columns, num_rows, options.episode_column)
  has_ends = (
      any(name in columns for name in (_TERMINALS, _TIMEOUTS, _STARTS))
      or ids is not None
      or options.max_episode_steps is not None
  )
  if num_rows and not has_ends and not has_next:
    raise ValueError(_NO_ENDS)
  other_fields = _other_fields(columns, num_rows, {options.episode_column})
  names |= {name: name for name in other_fields}
  specs = _find_specs(columns, names, num_rows, has_next)
  if not num_rows:
    raise ValueError(
        f'There are no rows: {", ".join(sorted(columns))} are empty. A row must'
        ' be a transition.'
    )
  flags = _Flags(
      *[
          _flag(columns, name, num_rows)
          for name in (_TERMINALS, _TIMEOUTS, _STARTS)
      ]
  )
  order, is_cut = None, np.zeros(num_rows, bool)
  step = None
  if ids is not None:
    step = _find_steps(columns, num_rows, options.step_column)
    order, is_cut = group_rows(
        id_column,
        ids,
        step,
        # Values of a default column may repeat for later episodes.
        None if options.episode_column else flags.find_ends(),
        must_sort=options.step_column is not None,
    )
  if order is not None:
    flags = _Flags(*[flag[order] for flag in flags])
    columns = _reorder(columns, order, num_rows)
  fields = columns_lib.below(rlds.OBSERVATION, names) if has_next else ()
  observations = {names[field]: specs[field] for field in fields}
  is_end, jumps, late = _find_ends(columns, flags, is_cut, observations)
  if options.max_episode_steps is not None and order is None:
    # Restart the count after an unreadable file.
    is_end[[gap - 1 for gap in files.gaps if gap]] = True
  bounds = _find_bounds(is_end, options.max_episode_steps)
  is_closed = flags.terminals | flags.timeouts
  if options.max_episode_steps is None:
    if not has_ends and not jumps.any():
      raise ValueError(_NO_ENDS)
    is_marked = ids is not None or is_closed[-1]
    if num_rows > 1 and len(bounds) == 2 and not is_marked:
      logging.warning(
          'No row ends an episode, so all %d rows are read as one episode. %s',
          num_rows,
          _HOW_TO_END,
      )
  _warn_of_jumps(jumps, late, bounds, options.max_episode_steps)
  is_partial = None
  if files.gaps:
    is_full = np.diff(bounds) == (options.max_episode_steps or 0)
    is_closed[bounds[1:][is_full] - 1] = True
    first_steps = _first_steps(step, bounds, order)
    is_partial = _find_partial(
        bounds,
        order,
        files,
        is_closed,
        flags.starts,
        first_steps,
        ids is not None,
    )
  is_terminal = flags.terminals[bounds[1:] - 1]
  return FlatLayout(
      names, specs, has_next, bounds, is_terminal, order, is_partial
  )


def _reorder(columns, order: np.ndarray, num_rows: int) -> dict[str, Any]:
  """Returns the columns that have a value for each row, in another order."""
  return {
      name: columns_lib.reordered(column, order)
      for name, column in columns.items()
      if columns_lib.has_rows(column, num_rows)
  }


def _first_steps(step, bounds, order) -> np.ndarray | None:
  """Returns the first step number of each episode; None without a column."""
  if step is None:
    return None
  first_rows = bounds[:-1] if order is None else order[bounds[:-1]]
  return step.values[first_rows]


def _find_fields(
    columns, options: FlatOptions, may_lack, names_in_data: list[str]
) -> dict[str, str]:
  """Returns the columns of the fields of RLDS, by field.

  Raises:
    ValueError: if a required column is missing.
  """
  names = {
      field + column[len(name) :]: column
      for field, name in columns_lib.NAMES.items()
      for column in columns_lib.below(name, columns)
  }
  may_lack = {*may_lack}
  if _STARTS in columns or options.episode_column is not None:
    may_lack.add(_TERMINALS)
  if _REWARDS not in may_lack and _lacks_reward(columns):
    logging.warning('There is no column %s, so the rewards are 0.', _REWARDS)
    may_lack.add(_REWARDS)
  tops = {name.split('/')[0] for name in names.values()}
  available = {*columns, *tops, *may_lack}
  missing = [required for required in _REQUIRED if required not in available]
  if missing:
    raise ValueError(_missing(missing, columns, names_in_data))
  return names


def _find_specs(
    columns, names: Mapping[str, str], num_rows: int, has_next: bool
) -> dict[str, tf.TensorSpec]:
  """Returns the specs of one step, by field; checks next observations."""
  specs = {
      field: _row_spec(columns, name, num_rows) for field, name in names.items()
  }
  for field in columns_lib.below(rlds.REWARD, specs):
    specs[field] = _squeezed(specs[field])
  for field in columns_lib.below(rlds.OBSERVATION, names) if has_next else ():
    name, spec = NEXT + names[field], specs[field]
    row_spec = _row_spec(columns, name, num_rows) if name in columns else None
    if row_spec != spec:
      raise ValueError(
          f'There must be a {name} for each {names[field]}, or for none, with'
          f' rows of {spec.dtype.name} {spec.shape}, but it is {row_spec}.'
      )
  return specs


def _find_ends(
    columns, flags: _Flags, is_cut: np.ndarray, observations
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Finds the last rows of episodes.

  Args:
    columns: the columns.
    flags: the flags of all rows.
    is_cut: bool `[N]`: the last rows according to episode ids.
    observations: the specs of the columns with next observations, if any.

  Returns:
    bool `[N]` each: the last rows; those that only discontinuous observations
    mark; and the timeouts that are one row late.
  """
  jumps = late = np.zeros(len(flags.terminals), bool)
  if observations:
    differs = _find_jumps(columns, observations)
    jumps = differs & ~flags.find_ends() & ~is_cut
    # A timeout one row after such an end is late: it belongs to this end.
    no_timeouts = flags._replace(timeouts=np.False_)
    other_ends = no_timeouts.find_ends() | is_cut
    follows_jump = np.append(False, jumps[:-1])
    late = flags.timeouts & ~other_ends & ~differs & follows_jump
  on_time = flags._replace(timeouts=flags.timeouts & ~late)
  return on_time.find_ends() | is_cut | jumps, jumps, late


def _find_bounds(
    is_end: np.ndarray, max_episode_steps: int | None
) -> np.ndarray:
  """Returns the bounds of episodes, `[E + 1]`, of limited length."""
  bounds = np.append(0, np.flatnonzero(is_end) + 1)
  if max_episode_steps is None:
    return bounds
  checks.check_positive('max_episode_steps', max_episode_steps)
  pieces = [
      np.arange(start, end, max_episode_steps)
      for start, end in zip(bounds[:-1], bounds[1:])
  ]
  return np.concatenate([*pieces, bounds[-1:]])


def _find_partial(
    bounds: np.ndarray,
    order: np.ndarray | None,
    files: Files,
    is_closed: np.ndarray,
    is_opened: np.ndarray,
    first_steps: np.ndarray | None,
    has_ids: bool,
) -> np.ndarray:
  """Returns whether each episode may have rows in an unreadable file.

  This is true for an episode with rows before and after the file, and for an
  episode that stops before the file or begins after it without a flag. The
  exception are files that contain complete episodes, as indicated by all other
  files that begin with an episode, or by ids if there are no other files.

  Args:
    bounds: the bounds of the episodes; see `FlatLayout`.
    order: the order of the rows; see `FlatLayout`.
    files: the files.
    is_closed: bool `[N]`: the rows with a flag that ends an episode.
    is_opened: bool `[N]`: the rows with a flag that begins an episode.
    first_steps: `[E]`: the first value of the step column of each episode, if
      the column exists. It identifies beginnings of episodes if it is the
      minimum in all episodes that are not next to a gap.
    has_ids: whether the rows have episode ids.
  """
  rows = np.arange(bounds[-1]) if order is None else order
  begins = np.minimum.reduceat(rows, bounds[:-1])
  ends = np.maximum.reduceat(rows, bounds[:-1]) + 1
  starts = np.asarray(files.starts, np.int64)
  known_ends = np.setdiff1d(starts[starts > 0], files.gaps)
  crosses = lambda row: (begins < row) & (row < ends)
  # If episodes are interleaved, some are open at any row.
  is_cut = order is not None or any(crosses(row).any() for row in known_ends)
  is_partial, is_after = np.zeros((2, len(begins)), bool)
  for gap in files.gaps:
    is_partial |= crosses(gap)
    previous = starts[starts < gap].max(initial=0)
    following = starts[starts > gap].min(initial=bounds[-1])
    if order is None:  # Only the episode next to the gap is open.
      previous, following = gap - 1, gap + 1
    # Without ids and other files, an episode may always continue.
    if is_cut or not (len(known_ends) or has_ids):
      is_open = ~is_closed[bounds[1:] - 1]
      is_partial |= is_open & (previous < ends) & (ends <= gap)
    is_after |= (gap <= begins) & (begins < following)
  if first_steps is not None:
    is_first = first_steps == first_steps.min()
    if is_first[~is_after & ~is_partial].all():
      return is_partial | (is_after & ~is_first)
  return is_partial | (is_cut & is_after & ~is_opened[bounds[:-1]])


def group_rows(
    column: str,
    ids: np.ndarray,
    step: StepColumn | None = None,
    is_end: np.ndarray | None = None,
    *,
    must_sort: bool = False,
) -> tuple[np.ndarray | None, np.ndarray]:
  """Groups the rows of episodes, which may be interleaved.

  Args:
    column: the name of the column of ids, for errors.
    ids: `[N]`: the episode id of each row.
    step: the step column, if it exists.
    is_end: bool `[N]`: the rows that end an episode. An id that repeats after
      such a row begins another episode. By default ids are unique.
    must_sort: whether to sort all rows by the step column, even if the rows of
      each id are contiguous.

  Returns:
    int64 `[N]`: the permutation that sorts rows by episode, in the order of
    first rows; None if they are sorted. And bool `[N]`: the last rows of
    episodes after sorting.

  Raises:
    ValueError: if the rows of an id are not contiguous and there is no step
      column; or if two rows of an episode have the same step.
  """
  is_cut = np.append(ids[1:] != ids[:-1], True)
  lasts = np.flatnonzero(is_cut)
  begins = np.append(0, lasts[:-1] + 1)
  codes = np.unique(ids[begins], return_inverse=True)[1].reshape(-1)
  is_closed = np.zeros(len(lasts), bool) if is_end is None else is_end[lasts]
  # The episode of each run of equal ids, and the first run of each episode.
  episodes, first_runs, of_open = np.zeros(len(lasts), np.int64), [], {}
  for run, (code, closed) in enumerate(zip(codes.tolist(), is_closed.tolist())):
    episode = of_open.setdefault(code, len(first_runs))
    if episode == len(first_runs):
      first_runs.append(run)
    elif step is None:
      first = first_runs[episode]
      raise ValueError(
          f'The rows of an episode are not contiguous: {column} is'
          f' {_text(ids[begins[run]])} in rows {begins[first]} to'
          f' {lasts[first]}, and again from row {begins[run]}. Pass'
          ' step_column=..., the column that orders the rows of an episode, or'
          ' write the rows of an episode one after the other.'
      )
    episodes[run] = episode
    if closed:
      del of_open[code]
  if len(first_runs) == len(lasts) and not must_sort or step is None:
    return None, is_cut
  episode_of = np.repeat(episodes, lasts + 1 - begins)
  name, values = step
  order = np.lexsort((values, episode_of))
  episode_of, values = episode_of[order], values[order]
  is_cut = np.append(np.diff(episode_of) != 0, True)
  # Not `<=`, because a step may be NaN.
  unsorted = np.flatnonzero(~is_cut[:-1] & ~(values[1:] > values[:-1]))
  if unsorted.size:
    rows = sorted(order[unsorted[0] : unsorted[0] + 2].tolist())
    raise ValueError(
        f'{name} does not order the rows of an episode: it is'
        f' {_text(values[unsorted[0]])} in rows {rows[0]} and {rows[1]}, where'
        f' {column} is {_text(ids[rows[0]])}. Pass another step_column, or use'
        ' unique episode ids.'
    )
  is_sorted = bool((order == np.arange(len(order))).all())
  return None if is_sorted else order, is_cut


def _text(value: object) -> str:
  return (
      value.decode(errors='replace') if isinstance(value, bytes) else f'{value}'
  )


def _missing(
    missing: list[str], columns: Iterable[str], names: list[str]
) -> str:
  """Returns an error message that lists missing columns and `names`."""
  name = missing[0]
  text = (
      f'There is no column {", ".join(missing)}.'
      f'{checks.did_you_mean(name, names)} The columns are {names}. If it has'
      f' another name, pass column_names={{{name!r}: ...}}.'
  )
  if name == _TERMINALS and _TIMEOUTS not in columns:
    return f'{text} {_NO_ENDS}'
  if name in OPTIONAL:
    text += f' If there is none, pass column_names={{{name!r}: None}}.'
  return text


def _lacks_reward(columns: Mapping[str, columns_lib.AnyColumn]) -> bool:
  """Returns whether no column is a reward or may be a reward."""
  if columns_lib.below(_REWARDS, columns):
    return False
  if not columns_lib.below(columns_lib.NAMES[rlds.ACTION], columns):
    return False
  may_be = [
      name
      for name, column in columns.items()
      if name.split('/')[0] not in (*USED, _METADATA, *_STEP_COLUMNS)
      and column.dtype.kind == 'f'
      and column.shape[1:] in ((), (1,))
      and len(column.shape) > 0
  ]
  return not may_be and not checks.did_you_mean(_REWARDS, columns)


def has_truncations(
    columns: Collection[str], options: FlatOptions = FlatOptions()
) -> bool:
  """Returns whether a column or an option marks ends of truncated episodes."""
  return (
      any(name in columns for name in (_TIMEOUTS, _STARTS))
      or bool(columns_lib.below(NEXT + _OBSERVATIONS, columns))
      or find_episode_column(columns) is not None
      or options.max_episode_steps is not None
  )


def with_last_observations(
    columns: Mapping[str, Any], index: int
) -> tuple[dict[str, Any], Any]:
  """Appends the last of `next_observations` to the observations of an episode.

  Args:
    columns: the columns of the episode, by the names in `USED`, and single
      values. Flags may be per episode or per step.
    index: the index of the episode, for errors.

  Returns:
    The columns without flags and `next_observations`; and the terminals, or
    False.

  Raises:
    ValueError: if the episode ends before its last row, according to timeouts,
      starts or discontinuous observations.
  """
  columns = dict(columns)
  terminals = columns.pop(_TERMINALS, False)
  ends = {_TIMEOUTS: np.ravel(columns.pop(_TIMEOUTS, False))[:-1]}
  ends[_STARTS] = np.ravel(columns.pop(_STARTS, False))[1:]
  following = {
      name.removeprefix(NEXT): columns.pop(name)
      for name in columns_lib.below(NEXT + _OBSERVATIONS, columns)
  }
  current = {name: columns.get(name) for name in following}
  for name, rows in following.items():
    first = current[name]
    if first is None or first.shape != rows.shape:
      shape = None if first is None else first.shape
      raise ValueError(
          f'{NEXT}{name} of episode {index} have the shape {rows.shape}, but'
          f' {name} {shape}.'
      )
  if following:
    both = {
        **current,
        **{NEXT + name: rows for name, rows in following.items()},
    }
    specs = {name: columns_lib.row_spec(rows) for name, rows in current.items()}
    ends[NEXT + _OBSERVATIONS] = _find_jumps(both, specs)
  for name, invalid in ends.items():
    if invalid.any():
      raise ValueError(
          f'Episode {index} ends before its last row, according to {name}'
          f' after row {np.flatnonzero(invalid)[0]}. Write each episode to a'
          ' separate row.'
      )
  for name, rows in following.items():
    columns[name] = np.concatenate([current[name], rows[-1:]])
  return columns, terminals


def find_episode_column(columns: Iterable[str]) -> str | None:
  """Returns the column with a default name of episode columns."""
  return next((name for name in _EPISODE_COLUMNS if name in columns), None)


def _find_ids(
    columns, num_rows: int, name: str | None
) -> tuple[str, np.ndarray | None]:
  """Returns the name and the values of the episode column, if it exists."""
  if name is None:
    name = find_episode_column(columns)
    if name is None or not _is_scalar(columns[name], num_rows):
      return '', None
  else:
    checks.check_known('The data', 'column', name, columns)
    if not _is_scalar(columns[name], num_rows):
      raise ValueError(
          f'The column {name} must have an episode id for each of {num_rows}'
          f' rows, a number or a string, but is {columns[name].dtype}'
          f' {columns[name].shape}.'
      )
  return name, _values(columns[name])


def _find_steps(columns, num_rows: int, name: str | None) -> StepColumn | None:
  """Returns the step column, if it exists."""
  if name is not None:
    checks.check_known('The data', 'column', name, columns)
  for candidate in _STEP_COLUMNS if name is None else (name,):
    column = columns.get(candidate)
    if column is not None and _is_scalar(column, num_rows):
      if column.dtype.kind in 'iuf':
        return StepColumn(candidate, _values(column))
  if name is not None:
    raise ValueError(
        f'The column {name} must have a number for each of {num_rows} rows,'
        f' which orders the rows of an episode, but is {columns[name].dtype}'
        f' {columns[name].shape}.'
    )
  return None


def _is_scalar(column: columns_lib.AnyColumn, num_rows: int) -> bool:
  return columns_lib.has_rows(column, num_rows) and (
      column.shape[1:] in ((), (1,))
  )


def _values(column: columns_lib.AnyColumn) -> np.ndarray:
  """Returns the values of a column of scalars, `[N]`."""
  spec = _squeezed(columns_lib.row_spec(column))
  values = columns_lib.read(column, slice(None), spec)
  if spec.dtype == tf.string:
    return np.array([_text(value) for value in values.reshape(-1)])
  return values.reshape(-1)


def _find_jumps(
    columns: Mapping[str, columns_lib.AnyColumn],
    observations: Mapping[str, tf.TensorSpec],
) -> np.ndarray:
  """Returns the rows whose next observation is not the next row, bool `[N]`.

  Args:
    columns: the columns.
    observations: the specs of the rows of each column of observations.
  """
  num_rows = len(columns[next(iter(observations))])
  differs = np.zeros(num_rows, bool)
  for name, spec in observations.items():
    differs[:-1] |= columns_lib.find_jumps(
        columns[name], columns[NEXT + name], spec
    )
  return differs


def _warn_of_jumps(
    jumps: np.ndarray,
    late: np.ndarray,
    bounds: np.ndarray,
    max_episode_steps: int | None,
) -> None:
  """Warns of episodes that end only at discontinuous observations."""
  ends = bounds[1:] - 1
  is_jump = jumps[ends]
  if max_episode_steps is not None:  # It explains these ends.
    is_jump &= np.diff(bounds) != max_episode_steps
  if not is_jump.any():
    return
  rows = ', '.join(map(str, ends[is_jump][:_MAX_LISTED].tolist()))
  num_jumps, num_late = np.count_nonzero(is_jump), np.count_nonzero(late)
  if num_jumps > _MAX_LISTED:
    rows += ', ...'
  notes = ''
  if num_late:
    notes += (
        f' {num_late} {_TIMEOUTS} are one row late, and end no other episode.'
    )
  if num_jumps > len(jumps) // 2:
    notes += (
        ' Most rows are discontinuous: they may be shuffled, or have next'
        ' observations several steps ahead.'
    )
  logging.warning(
      '%d of %d episodes end without a flag: %s%s of the row are not the %s of'
      ' the next row. These episodes are truncated. They end in the rows'
      ' %s.%s',
      num_jumps,
      len(ends),
      NEXT,
      _OBSERVATIONS,
      _OBSERVATIONS,
      rows,
      notes,
  )


def _other_fields(
    columns: Mapping[str, columns_lib.AnyColumn],
    num_rows: int,
    unused: Collection[str | None],
) -> list[str]:
  """Returns the names of other columns with a row for each step."""
  names, skipped = [], []
  for name, column in columns.items():
    top = name.split('/')[0]
    if top in (*USED, _METADATA) or name in unused:
      continue
    if top in steps_lib.get_rlds_step_features():
      raise ValueError(
          f'The column {name} has the name of an RLDS field, which is computed'
          f' from other columns: {", ".join(USED)}. Rename it, or skip it with'
          f' column_names={{{top!r}: None}}.'
      )
    if columns_lib.has_rows(column, num_rows):
      names.append(name)
    else:
      skipped.append(f'{name} {column.shape}')
  description = (
      f'columns that do not have {num_rows} rows of numbers or strings'
  )
  columns_lib.warn_skipped(description, skipped)
  return names


def _row_spec(columns, name: str, num_rows: int) -> tf.TensorSpec:
  spec = columns_lib.checked_spec(name, columns[name])
  if len(columns[name]) != num_rows:
    raise ValueError(
        f'The column {name} has {len(columns[name])} rows, but {_TERMINALS} has'
        f' {num_rows}. A row must be a transition in both.'
    )
  return spec


def _squeezed(spec: tf.TensorSpec) -> tf.TensorSpec:
  """Returns the spec of a scalar whose rows may have shape `[1]`."""
  return tf.TensorSpec([], spec.dtype) if spec.shape == [1] else spec


def _flag(columns, name: str, num_rows: int) -> np.ndarray:
  """Returns the values of a flag, bool `[N]`; False by default."""
  if name not in columns:
    return np.zeros(num_rows, bool)
  spec = _squeezed(_row_spec(columns, name, num_rows))
  if spec.shape.rank or spec.dtype == tf.string:
    raise ValueError(
        f'The column {name} must have one bool or number per row, but its rows'
        f' are {spec.dtype.name} {spec.shape}.'
    )
  values = np.reshape(columns[name][:], [-1])
  invalid = np.flatnonzero((values != 0) & (values != 1))
  if invalid.size:
    raise ValueError(
        f'The column {name} must be 0 or 1, but is {values[invalid[0]]} in row'
        f' {invalid[0]}.'
    )
  return values.astype(bool)
