"""TED's columns, see `columns`, by the paths of their fields, in either form.

The drawing in `ted` shows them. In the flat form, fields of steps have one row
more for each episode than fields of transitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import types
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

# What TorchRL's `InitTracker` calls the first step of an episode.
IS_INIT = 'is_init'
NEXT = 'next'
DONE, TERMINATED, TRUNCATED = END_KEYS = ('done', 'terminated', 'truncated')
ENDS = (rlds.IS_LAST, rlds.IS_TERMINAL)
BELOW_NEXT = NEXT + '/'
# How much of a column is compared at a time.
_CHUNK_BYTES = 8 << 20


# The data for which TED has no place, by the paths of their fields.
Rest = Mapping[str, np.ndarray]
# In it, int64 `[E]`: how many steps each episode has.
NUM_STEPS = 'num_steps'
# Below these, the fields of the last step of each episode that has one,
# `[L, ...]`, whose action and reward are in no transition; and the other fields
# of the episodes, `[E, ...]`.
LAST_STEP = 'last_step/'
METADATA = 'metadata/'


def is_flat(columns: Mapping[str, columns_lib.AnyColumn]) -> bool:
  """Returns whether columns are of the flat form."""
  return not any(name.startswith(BELOW_NEXT) for name in columns)


def find_ends(columns: Mapping[str, columns_lib.AnyColumn]) -> Any:
  """Returns which transitions are done, and which terminated, bool `[N]`."""
  prefix = '' if is_flat(columns) else BELOW_NEXT
  sizes = {
      key: columns[prefix + key][:]
      for key in END_KEYS
      if prefix + key in columns
  }
  if DONE not in sizes and TERMINATED not in sizes:
    raise ValueError(
        f'TED must have {prefix}{DONE}, or whether a transition is terminated'
        f' or truncated, to say where episodes end, but has {sorted(columns)}.'
    )
  for column in sizes.values():
    if column.size != len(column):
      raise ValueError(
          'TED must say of each transition whether it is done, but says it in'
          f' the shape {column.shape}.'
      )
  flags = {key: column.ravel().astype(bool) for key, column in sizes.items()}
  done = np.any([*flags.values()], axis=0)
  return done, flags.get(TERMINATED, done & ~flags.get(TRUNCATED, np.False_))


def lengths_of(is_end: np.ndarray) -> np.ndarray:
  """Returns each episode's number of transitions; the last need not end."""
  ends = 1 + np.flatnonzero(is_end[:-1])
  return np.diff([0, *ends, len(is_end)])


def check_rows(place: str, columns, capacity: int, num_episodes: int) -> None:
  """Checks that columns have a row for each transition, or for each step."""
  flat = is_flat(columns)
  for name, column in columns.items():
    is_of_steps = flat and len(column) >= capacity + num_episodes
    if len(column) != capacity and not is_of_steps:
      raise ValueError(
          f'{name} of {place} has {len(column)} rows, but must have {capacity}'
          + f' or {capacity + num_episodes}' * flat
          + '.'
      )


def find_jumps(
    columns: Mapping[str, columns_lib.AnyColumn],
    done: np.ndarray,
    first: int = 0,
) -> Iterator[tuple[str, np.ndarray]]:
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
    current, following = columns[name], columns.get(BELOW_NEXT + name)
    if following is None or name in END_KEYS:
      continue
    chunk = max(_CHUNK_BYTES // max(current[:1].nbytes, 1), 1)
    jumps = ~done[:-1]
    for begin in range(0, len(jumps), chunk):
      count = min(chunk, len(jumps) - begin)
      jumps[begin : begin + count] &= ~columns_lib.equal_rows(
          _ring_rows(current, first + begin + 1, count),
          _ring_rows(following, first + begin, count),
      )
    if jumps.any():
      yield name, jumps


def read_episodes(
    columns: Mapping[str, columns_lib.AnyColumn],
    lengths: np.ndarray,
    extra: Rest = types.MappingProxyType({}),
    first: int = 0,
    file: str = '',
) -> python_episodes.Episodes:
  """Yields the episodes of columns, oldest first.

  Args:
    columns: the columns, of either form.
    lengths: int64 `[E]`: how many transitions each episode has, if it has any.
    extra: the data beside the columns, if there is any.
    first: the row of the oldest transition; rows before it follow the last.
    file: the path of the file or folder of the columns, for errors.
  """
  done, terminated = find_ends(columns)
  places = _places(columns, len(done))
  begin = start = num_last = 0

  def read_one(index: int, count: int) -> python_episodes.PythonEpisode:
    length = max(count - 1, 0)
    last = slice(num_last, num_last + (count > 0))
    known_last = _rows_below(extra, LAST_STEP, last)
    # The last transition, if there is one.
    end_row, num_ends = first + begin + length - 1, min(length, 1)
    ends = known_last.get(rlds.IS_LAST, _ring_rows(done, end_row, num_ends))
    terminal = known_last.get(
        rlds.IS_TERMINAL, _ring_rows(terminated, end_row, num_ends)
    )
    is_last = np.zeros(count, bool)
    is_last[-1:] = ends.any()
    steps = {rlds.IS_LAST: is_last}
    for name, (column, following) in places.items():
      has_all_steps = following is column
      if has_all_steps:
        current, end = np.split(column[start : start + count], [length])
      else:
        current = _ring_rows(column, first + begin, length)
        end = np.zeros((min(count, 1), *column.shape[1:]), column.dtype)
        if following is not None and length:
          end = _ring_rows(following, end_row, 1)
      steps[name] = _joined(name, current, end, known_last.get(name))
    metadata = _rows_below(extra, METADATA, slice(index, index + 1))
    return python_episodes.PythonEpisode(
        columns_lib.nest(steps),
        columns_lib.row(count),
        columns_lib.row(bool(terminal.any())),
        columns_lib.row(index),
        columns_lib.nest(metadata),
        columns_lib.row(True),
    )

  for index, count in enumerate(extra.get(NUM_STEPS, lengths + 1).tolist()):
    yield python_episodes.attempt(read_one, index, count, file=file)
    # A field of steps has a row more for each episode.
    begin, start = begin + max(count - 1, 0), start + count * (count > 1)
    num_last += count > 0


def _ring_rows(
    column: columns_lib.AnyColumn, begin: int, count: int
) -> np.ndarray:
  """Returns `count` rows from `begin` on; row 0 follows the last row."""
  begin %= max(len(column), 1)
  rows = column[begin : begin + count]
  if len(rows) == count:
    return rows
  return np.concatenate([rows, column[: count - len(rows)]])


def without_episodes(extra: Rest, episodes: np.ndarray) -> Rest:
  """Returns the data beside the columns without that of some episodes."""
  num_steps = extra[NUM_STEPS]
  last_steps = np.cumsum(num_steps > 0) - 1
  return {
      name: np.delete(
          column,
          last_steps[episodes] if name.startswith(LAST_STEP) else episodes,
          axis=0,
      )
      for name, column in extra.items()
  }


def _rows_below(extra: Rest, place: str, rows: Any) -> dict[str, Any]:
  return {
      name.removeprefix(place): column[rows]
      for name, column in extra.items()
      if name.startswith(place)
  }


def _places(
    columns: Mapping[str, columns_lib.AnyColumn], capacity: int
) -> dict[str, tuple[columns_lib.AnyColumn, columns_lib.AnyColumn | None]]:
  """Returns the rows of each field, by the names of RLDS, and of those after.

  They are the same column if it has a row for each step, and not for each of
  the `capacity` transitions.
  """
  flat = is_flat(columns)
  places = {}
  for name in dict.fromkeys(
      column.removeprefix(BELOW_NEXT) for column in columns
  ):
    following = columns.get(BELOW_NEXT + name)
    column = columns.get(name, following)
    if flat and len(column) != capacity:
      following = column
    elif name == rlds.REWARD and following is not None:
      column, following = following, None
    if name not in END_KEYS:
      places[rlds.IS_FIRST if name == IS_INIT else name] = column, following
  return places


def _joined(
    name: str,
    current: np.ndarray,
    end: np.ndarray,
    known_last: np.ndarray | None,
) -> np.ndarray:
  """Returns the steps of a field; its last one may be known."""
  # A field of one number has the shape `[1]` in TorchRL.
  shape = (current if known_last is None else known_last).shape[1:]
  is_one = name == rlds.REWARD and known_last is None and shape == (1,)
  if is_one or name == rlds.IS_FIRST:
    shape = ()
  parts = current, end if known_last is None else known_last
  return np.concatenate([part.reshape(len(part), *shape) for part in parts])


TRANSITION_FIELDS = (rlds.ACTION, rlds.REWARD)

_RESERVED = (*END_KEYS, NEXT, IS_INIT)


def to_ted(
    rlds_data: tf.data.Dataset,
    *,
    flat: bool = False,
    transition_fields: Sequence[str] = TRANSITION_FIELDS,
) -> dict[str, Any]:
  """Returns all episodes of an RLDS data set in TorchRL's format, in memory.

  Args:
    rlds_data: an RLDS data set with `is_last` and `is_terminal`.
    flat: whether every observation is there once, as TorchRL's `TED2Flat` gives
      it. Else the root has the values before each transition, and `next` those
      after it.
    transition_fields: the step fields that belong to transitions rather than
      steps, and have no row for the last step.

  Returns:
    A nest of arrays. A leaf is `[N, ...]` for `N` transitions, or, in the flat
    form, `[N + E, ...]` for all steps of `E` episodes. The flags are bool,
    `is_first` is named `is_init`, and all dtypes are kept. Fields of episodes,
    and episodes without a transition, are left out.

  Raises:
    ValueError: if there is no transition, a step has no flags, a field has a
      name that TED uses.
    InvalidArgumentError: if a step that is last or terminal is not the end of
      its episode, or stacked fields differ in length.
  """
  parts = []
  for episode in stacked(rlds_data).as_numpy_iterator():
    columns = to_columns(episode[rlds.STEPS], transition_fields)
    if len(columns[DONE]):
      parts.append(columns if flat else _as_transitions(columns))
  if not parts:
    raise ValueError('There is no transition.')
  join = lambda name: np.concatenate([part[name] for part in parts])
  return columns_lib.nest({name: join(name) for name in parts[0]})


def from_ted(data: Mapping[str, Any]) -> tf.data.Dataset:
  """Returns the RLDS episodes of data in TorchRL's format.

  Args:
    data: a nest of arrays, of either form of `to_ted`. An episode ends with
      each transition that is done, and with the last one.

  Returns:
    A data set of episodes with stacked steps `[T + 1, ...]`, as
    `formats.load` returns it. A field that only transitions have is zero in
    the last step.

  Raises:
    ValueError: if no flag says where episodes end, if a transition does not
      lead to the step after it, or if fields differ in length.
  """
  if not isinstance(data, Mapping):
    raise ValueError(
        f'TED must be a dict of fields, but is a {type(data).__name__}.'
    )
  columns = {
      name: np.asarray(leaf) for name, leaf in columns_lib.leaves(data).items()
  }
  done, _ = find_ends(columns)
  for name, jumps in find_jumps(columns, done):
    if name != rlds.REWARD:
      raise ValueError(
          f'The {name} of a transition must be what the transition before it'
          ' leads to, or one of the two would be lost. They differ in the rows'
          f' {(1 + np.flatnonzero(jumps)).tolist()[:10]}.'
      )
  lengths = lengths_of(done)
  check_rows('TED', columns, len(done), len(lengths))
  return python_episodes.to_dataset(
      lambda: read_episodes(columns, lengths),
      len(lengths),
      num_compared=1,
  )


def stacked(rlds_data: tf.data.Dataset) -> tf.data.Dataset:
  """Returns episodes whose steps are stacked, and checked.

  Raises:
    ValueError: if these are no RLDS episodes, they have no flags, or a field
      has a name that TED uses.
  """

  def stack(episode):
    steps = steps_lib.stack_steps(episode[rlds.STEPS])
    steps_lib.check_dense(steps)
    for key in ENDS:
      paths.find(steps, (key,))
    reserved = sorted(set(_RESERVED) & set(steps))
    if reserved:
      raise ValueError(
          f'TED uses the fields {reserved}. Rename those of the steps first:'
          f' RenameFields({{{reserved[0]!r}: ...}}).'
      )
    return {**episode, rlds.STEPS: steps_lib.check_equal_lengths(steps)}

  steps_lib.check_has_steps('An element of rlds_data', rlds_data.element_spec)
  return rlds_data.map(stack)


def to_columns(
    steps: Any, transition_fields: Sequence[str] = TRANSITION_FIELDS
) -> dict[str, np.ndarray]:
  """Returns the columns of an episode in the flat form.

  Raises:
    InvalidArgumentError: if a step that is last or terminal is not the end.
  """
  columns = paths.leaves(steps)
  flags = {
      key: np.reshape(columns.pop(key), [-1]).astype(bool)
      for key in (*ENDS, rlds.IS_FIRST)
      if key in steps
  }
  is_last, is_terminal = (flags[key] for key in ENDS)
  for invalid, rule in (
      (is_terminal & ~is_last, 'Terminal step must be the last step of an'),
      (
          is_last[:-1],
          'Last step of an episode must end it, and steps follow in an',
      ),
  ):
    if invalid.any():
      raise tf.errors.InvalidArgumentError(
          None,
          None,
          f'{rule} episode. At step {np.flatnonzero(invalid).tolist()}.',
      )
  for name in _tops(transition_fields, columns):
    columns[name] = columns[name][:-1]
  if rlds.IS_FIRST in flags:
    columns[IS_INIT] = flags[rlds.IS_FIRST]
  done, terminated = is_last[1:], is_terminal[1:]
  ends = (done, terminated, done & ~terminated)
  return {**columns, **dict(zip(END_KEYS, ends))}


def _as_transitions(columns) -> dict[str, np.ndarray]:
  """Returns the columns of an episode before and after each transition."""
  count = len(columns[DONE])
  only_after = _tops((*END_KEYS, rlds.REWARD), columns)
  never = dict.fromkeys(END_KEYS, np.zeros(count, bool))
  current = {k: v[:count] for k, v in columns.items() if k not in only_after}
  following = {
      BELOW_NEXT + name: column[-count:]
      for name, column in columns.items()
      if name in only_after or len(column) > count
  }
  return {**current, **never, **following}


def _tops(tops: Sequence[str], names: Iterable[str]) -> list[str]:
  """Returns the names that are, or are below, some at the top."""
  return [name for name in names if name.split('/')[0] in tops]
