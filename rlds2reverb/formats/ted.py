"""TorchRL's episode data format (TED), from and to RLDS episodes.

    RLDS steps           o0 a0 r0   o1 a1 r1   o2 a2 r2   o3  -  -
    "transitions", root  o0 a0      o1 a1      o2 a2
                   next  o1 r0      o2 r1      o3 r2
                   done  F          F          T
    "flat"               o0 o1 o2 o3, and a0 a1 a2, r0 r1 r2, done

A transition is *terminated* if its next step is terminal, *truncated* if its
next step is last but not terminal, and *done* if either. The last transition of
an unfinished episode is not done.

In memory, TED is a dict of columns, see `columns`, by the paths of their
fields. In the flat form, step fields have one row more for each episode than
transition fields.
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
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

# The flag of the first step, as in TorchRL's `InitTracker`.
IS_INIT = 'is_init'
NEXT = 'next'
DONE, TERMINATED, TRUNCATED = END_KEYS = ('done', 'terminated', 'truncated')
ENDS = (rlds.IS_LAST, rlds.IS_TERMINAL)
BELOW_NEXT = NEXT + '/'
# The number of bytes that are compared at a time.
_CHUNK_BYTES = 8 << 20


# Data that TED cannot represent, by the paths of their fields.
Extra = Mapping[str, np.ndarray]
# Extra data: the number of steps of each episode, int64 `[E]`.
NUM_STEPS = 'num_steps'
# The prefixes of extra data: the fields of the last step of each episode that
# has one, `[L, ...]`, whose action and reward are not part of a transition; and
# other episode fields, `[E, ...]`.
LAST_STEP = 'last_step/'
METADATA = 'metadata/'


def is_flat(columns: Mapping[str, columns_lib.AnyColumn]) -> bool:
  """Returns whether columns have the flat form."""
  return not any(name.startswith(BELOW_NEXT) for name in columns)


def find_ends(columns: Mapping[str, columns_lib.AnyColumn]) -> Any:
  """Returns the flags of done and terminated transitions, bool `[N]`."""
  prefix = '' if is_flat(columns) else BELOW_NEXT
  sizes = {
      key: columns[prefix + key][:]
      for key in END_KEYS
      if prefix + key in columns
  }
  if DONE not in sizes and TERMINATED not in sizes:
    raise ValueError(
        f'TED must have {prefix}{DONE}, {prefix}{TERMINATED} or'
        f' {prefix}{TRUNCATED}, which mark the ends of episodes, but has'
        f' {sorted(columns)}.'
    )
  for column in sizes.values():
    if column.size != len(column):
      raise ValueError(
          'TED must have one done flag for each transition, but the flags have'
          f' the shape {column.shape}.'
      )
  flags = {key: column.ravel().astype(bool) for key, column in sizes.items()}
  done = np.any([*flags.values()], axis=0)
  return done, flags.get(TERMINATED, done & ~flags.get(TRUNCATED, np.False_))


def lengths_of(is_end: np.ndarray) -> np.ndarray:
  """Returns the number of transitions of each episode, int64 `[E]`."""
  ends = 1 + np.flatnonzero(is_end[:-1])
  return np.diff([0, *ends, len(is_end)])


def check_rows(place: str, columns, capacity: int, num_episodes: int) -> None:
  """Checks that columns have a row for each transition, or for each step."""
  flat = is_flat(columns)
  for name, column in columns.items():
    is_of_steps = flat and len(column) >= capacity + num_episodes
    if len(column) != capacity and not is_of_steps:
      expected = (
          f'{capacity} or {capacity + num_episodes}' if flat else capacity
      )
      raise ValueError(
          f'{name} of {place} has {len(column)} rows, but must have {expected}.'
      )


def find_jumps(
    columns: Mapping[str, columns_lib.AnyColumn],
    done: np.ndarray,
    first: int = 0,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the fields with discontinuous transitions.

  Args:
    columns: the columns, in either form.
    done: bool `[N]`: the transitions that end an episode, oldest first.
    first: the row of the oldest transition in a ring buffer.

  Yields:
    The name of a field, and bool `[N - 1]`: the transitions that are not done,
    and whose next value differs from the value of the next transition. NaN
    equals NaN.
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
    extra: Extra = types.MappingProxyType({}),
    first: int = 0,
    file: str = '',
) -> python_episodes.Episodes:
  """Yields the episodes of columns, oldest first.

  Args:
    columns: the columns, in either form.
    lengths: int64 `[E]`: the number of transitions of each episode that has
      any.
    extra: data that TED cannot represent.
    first: the row of the oldest transition in a ring buffer.
    file: the path of the file or folder of the columns, for errors.
  """
  done, terminated = find_ends(columns)
  places = _places(columns, len(done))
  begin = start = num_last = 0

  def read_one(index: int, count: int) -> python_episodes.PythonEpisode:
    length = max(count - 1, 0)
    last = slice(num_last, num_last + (count > 0))
    last_step = _rows_below(extra, LAST_STEP, last)
    # The last transition, if it exists.
    end_row, num_ends = first + begin + length - 1, min(length, 1)
    ends = last_step.get(rlds.IS_LAST, _ring_rows(done, end_row, num_ends))
    terminal = last_step.get(
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
      steps[name] = _append_last(name, current, end, last_step.get(name))
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
    # Step fields have an additional row for each episode.
    begin, start = begin + max(count - 1, 0), start + count * (count > 1)
    num_last += count > 0


def _ring_rows(
    column: columns_lib.AnyColumn, begin: int, count: int
) -> np.ndarray:
  """Returns `count` rows of a ring buffer, starting at `begin`."""
  begin %= max(len(column), 1)
  rows = column[begin : begin + count]
  if len(rows) == count:
    return rows
  return np.concatenate([rows, column[: count - len(rows)]])


def without_episodes(extra: Extra, episodes: np.ndarray) -> Extra:
  """Removes episodes from extra data."""
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


def _rows_below(extra: Extra, place: str, rows: Any) -> dict[str, Any]:
  return {
      name.removeprefix(place): column[rows]
      for name, column in extra.items()
      if name.startswith(place)
  }


def _places(
    columns: Mapping[str, columns_lib.AnyColumn], capacity: int
) -> dict[str, tuple[columns_lib.AnyColumn, columns_lib.AnyColumn | None]]:
  """Returns the columns of current and next values, by RLDS field.

  Both are the same column if it has a row for each step rather than for each of
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


def _append_last(
    name: str,
    current: np.ndarray,
    end: np.ndarray,
    last: np.ndarray | None,
) -> np.ndarray:
  """Returns the rows of a field, with the last row in `last` if given."""
  # Scalars have the shape `[1]` in TorchRL.
  shape = (current if last is None else last).shape[1:]
  is_column = name == rlds.REWARD and last is None and shape == (1,)
  if is_column or name == rlds.IS_FIRST:
    shape = ()
  parts = current, end if last is None else last
  return np.concatenate([part.reshape(len(part), *shape) for part in parts])


TRANSITION_FIELDS = (rlds.ACTION, rlds.REWARD)

_RESERVED = (*END_KEYS, NEXT, IS_INIT)


def to_ted(
    rlds_data: tf.data.Dataset,
    *,
    flat: bool = False,
    transition_fields: Sequence[str] = TRANSITION_FIELDS,
) -> dict[str, Any]:
  """Converts an RLDS data set to TorchRL's format, in memory.

  Args:
    rlds_data: an RLDS data set with `is_last` and `is_terminal`.
    flat: whether to store every observation once, as in TorchRL's `TED2Flat`.
      By default, the root has the values before each transition, and `next` has
      the values after it.
    transition_fields: the step fields that belong to transitions rather than
      steps, and have no row for the last step.

  Returns:
    A nest of arrays. A leaf is `[N, ...]` for `N` transitions, or, in the flat
    form, `[N + E, ...]` for all steps of `E` episodes. The flags are bool,
    `is_first` is renamed to `is_init`, and dtypes are kept. Episode fields, and
    episodes without a transition, are dropped.

  Raises:
    ValueError: if there is no transition, if the steps have no flags, or if a
      field has a reserved name of TED.
    InvalidArgumentError: if a last or terminal step is not the end of its
      episode, or if stacked fields differ in length.
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
  """Converts data in TorchRL's format to RLDS episodes.

  Args:
    data: a nest of arrays, in either form of `to_ted`. An episode ends with
      each transition that is done, and with the last transition.

  Returns:
    A data set of episodes with stacked steps `[T + 1, ...]`, as
    `formats.load` returns it. Transition fields are zero in the last step.

  Raises:
    ValueError: if there are no done flags, if transitions are discontinuous, or
      if fields differ in length.
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
          f'The {name} of a transition must equal next/{name} of the previous'
          ' transition, or one would be lost. They differ in the rows'
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
  """Stacks and validates the steps of episodes.

  Raises:
    ValueError: if the elements are not RLDS episodes, if they have no flags, or
      if a field has a reserved name of TED.
  """

  @pipelines.as_library_code
  def stack(episode):
    steps = steps_lib.stack_steps(episode[rlds.STEPS])
    steps_lib.check_dense(steps)
    for key in ENDS:
      paths.find(steps, (key,))
    reserved = sorted(set(_RESERVED) & set(steps))
    if reserved:
      raise ValueError(
          f'TED reserves the fields {reserved}. Rename the step fields first:'
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
    InvalidArgumentError: if a last or terminal step is not the end.
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
  """Converts columns of an episode from the flat form to transitions."""
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
  """Returns the names whose first key is in `tops`."""
  return [name for name in names if name.split('/')[0] in tops]
