"""TorchRL's episode data format (TED): RLDS episodes become TED, and come back.

    RLDS steps           o0 a0 r0   o1 a1 r1   o2 a2 r2   o3  -  -
    "transitions", root  o0 a0      o1 a1      o2 a2
                   next  o1 r0      o2 r1      o3 r2
                   done  F          F          T
    "flat"               o0 o1 o2 o3, and a0 a1 a2, r0 r1 r2, done

A transition is *terminated* if the step that it leads to is terminal,
*truncated* if that is last but not terminal, and *done* if either. An episode
that was cut short has neither, and keeps its unfinished tail.

Inside, TED is its *columns*: NumPy arrays by the paths of their fields.
"""

from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

TRANSITIONS, FLAT = FORMS = ('transitions', 'flat')
TRANSITION_FIELDS = (rlds.ACTION, rlds.REWARD)
# What TorchRL's `InitTracker` calls the first step of an episode.
IS_INIT = 'is_init'
NEXT = 'next'
DONE, TERMINATED, TRUNCATED = END_KEYS = ('done', 'terminated', 'truncated')

_BELOW_NEXT = NEXT + '/'
_ENDS = (rlds.IS_LAST, rlds.IS_TERMINAL)
_RESERVED = (*END_KEYS, NEXT, IS_INIT)


class Rest(NamedTuple):
  """What TED has no place for.

  Attributes:
    num_steps: int64 `[E]`: how many steps each episode has.
    last_step: by the paths of step fields, the last step of each episode that
      has one, `[L, ...]`. Its action and reward are in no transition.
    metadata: by their paths, the other fields of the episodes, `[E, ...]`.
  """

  num_steps: np.ndarray
  last_step: Dict[str, np.ndarray]
  metadata: Dict[str, np.ndarray]


def to_ted(
    rlds_data: tf.data.Dataset,
    form: str = TRANSITIONS,
    *,
    transition_fields: Sequence[str] = TRANSITION_FIELDS,
) -> Dict[str, Any]:
  """Returns all episodes of an RLDS data set in TorchRL's format, in memory.

  Args:
    rlds_data: an RLDS data set with `is_last` and `is_terminal`.
    form: `"transitions"`, a root of what is known before each transition, and
      below `next` what is known after it; or `"flat"`, as TorchRL's `TED2Flat`,
      every observation once.
    transition_fields: the step fields that are known of a transition, and not
      at a step: they have no row for the last step.

  Returns:
    A nest of arrays. A leaf is `[N, ...]` for `N` transitions, or, in the flat
    form, `[N + E, ...]` where it is known at every step of `E` episodes. The
    flags are bool, `is_first` is named `is_init`, and all dtypes are kept. What
    is left out: fields of episodes, and episodes without a transition.

  Raises:
    ValueError: if there is no transition, a step has no flags, a field has a
      name that TED uses, or `form` is neither of the two.
    InvalidArgumentError: if a step that is last or terminal is not the end of
      its episode, or stacked fields differ in length.
  """
  checks.check_choice('form', form, FORMS)
  parts = []
  for episode in stacked(rlds_data).as_numpy_iterator():
    columns, names = to_columns(episode[rlds.STEPS], transition_fields)
    if not len(columns[DONE]):
      continue
    if form == TRANSITIONS:
      never = np.zeros_like(columns[DONE])
      columns = {
          **{
              name: column[:-1] if name in names else column
              for name, column in columns.items()
              if name.split('/')[0] not in (*END_KEYS, rlds.REWARD)
          },
          **{key: never for key in END_KEYS},
          **{
              _BELOW_NEXT + name: column[1:] if name in names else column
              for name, column in columns.items()
              if name in names or name.split('/')[0] in (*END_KEYS, rlds.REWARD)
          },
      }
    parts.append(columns)
  if not parts:
    raise ValueError('There is no transition.')
  return nest(
      {
          name: np.concatenate([part[name] for part in parts])
          for name in parts[0]
      }
  )


def from_ted(data: Mapping[str, Any]) -> tf.data.Dataset:
  """Returns the RLDS episodes of data in TorchRL's format.

  Args:
    data: a nest of arrays, of either form of `to_ted`. An episode ends with
      each transition that is done, and with the last one.

  Returns:
    A data set of episodes with stacked steps `[T + 1, ...]`, as
    `from_episodes` returns it. What is known of transitions alone has zeros in
    the last step.

  Raises:
    ValueError: if nothing says where episodes end, if a step is not what the
      transition before it leads to, or fields differ in length.
  """
  if not isinstance(data, Mapping):
    raise ValueError(
        f'TED must be a dict of fields, but is a {type(data).__name__}.'
    )
  columns = {
      name: np.asarray(leaf) for name, leaf in columns_lib.leaves(data).items()
  }
  done, _ = find_ends(columns)
  for name in sorted(columns):
    after = columns.get(_BELOW_NEXT + name)
    if after is None or name in (*END_KEYS, rlds.REWARD):
      continue
    wrong = 1 + np.flatnonzero(
        differ(columns[name][1:], after[:-1]) & ~done[:-1]
    )
    if len(wrong):
      raise ValueError(
          f'The {name} of a transition must be what the transition before it'
          ' leads to, or one of the two would be lost. They differ in the rows'
          f' {wrong.tolist()[:10]}.'
      )
  lengths = lengths_of(done)
  check_rows('TED', columns, len(done), len(lengths))
  return python_episodes.to_dataset(
      lambda: read_episodes(columns, lengths), len(lengths)
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
    for key in _ENDS:
      paths.find(steps, (key,))
    taken = sorted(set(_RESERVED) & set(steps))
    if taken:
      raise ValueError(
          f'TED has fields {taken} of its own. Rename those of the steps first:'
          f' RenameFields({{{taken[0]!r}: ...}}).'
      )
    return {**episode, rlds.STEPS: steps_lib.with_equal_lengths(steps)}

  spec = rlds_data.element_spec
  if not isinstance(spec, dict) or rlds.STEPS not in spec:
    raise ValueError(
        f'An RLDS episode must be a dict with {rlds.STEPS!r}, but is {spec}.'
    )
  return rlds_data.map(tf.autograph.experimental.do_not_convert(stack))


def to_columns(steps: Any, transition_fields=TRANSITION_FIELDS) -> Any:
  """Returns the columns of an episode in the flat form, and those at steps.

  Raises:
    InvalidArgumentError: if a step that is last or terminal is not the end.
  """
  steps = dict(steps)
  is_last, is_terminal = (
      np.reshape(steps.pop(key), [-1]).astype(bool) for key in _ENDS
  )
  for wrong, rule in (
      (is_terminal & ~is_last, 'Terminal step must be the last step of an'),
      (
          is_last[:-1],
          'Last step of an episode must end it, and steps follow in an',
      ),
  ):
    if wrong.any():
      raise tf.errors.InvalidArgumentError(
          None,
          None,
          f'{rule} episode. At step {np.flatnonzero(wrong).tolist()}.',
      )
  if rlds.IS_FIRST in steps:
    flag = np.reshape(steps.pop(rlds.IS_FIRST), [-1])
    steps[IS_INIT] = flag.astype(bool)
  columns = dict(paths.leaves(steps))
  at_steps = [
      name for name in columns if name.split('/')[0] not in transition_fields
  ]
  columns = {
      name: column if name in at_steps else column[:-1]
      for name, column in columns.items()
  }
  done, terminated = is_last[1:], is_terminal[1:]
  columns.update(zip(END_KEYS, (done, terminated, done & ~terminated)))
  return columns, at_steps


def find_ends(columns: Mapping[str, np.ndarray]) -> Any:
  """Returns which transitions are done, and which terminated, bool `[N]`."""
  is_below = any(name.startswith(_BELOW_NEXT) for name in columns)
  prefix = _BELOW_NEXT if is_below else ''
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
  """Returns how many transitions each episode has; the last need not end."""
  ends = 1 + np.flatnonzero(is_end[:-1])
  return np.diff([0, *ends, len(is_end)])


def check_rows(where: str, columns, capacity: int, num_episodes: int) -> None:
  """Checks that columns have a row for each transition, or for each step."""
  is_flat = not any(name.startswith(_BELOW_NEXT) for name in columns)
  for name, column in columns.items():
    is_enough = len(column) >= capacity + num_episodes
    if len(column) != capacity and not (is_flat and is_enough):
      raise ValueError(
          f'{name} of {where} has {len(column)} rows, but must have {capacity}'
          + f' or {capacity + num_episodes}' * is_flat
          + '.'
      )


def differ(here: np.ndarray, there: np.ndarray) -> np.ndarray:
  """Returns which rows differ, bool `[N]`; NaN is like NaN."""
  same = here == there
  if np.issubdtype(here.dtype, np.floating):
    same |= np.isnan(here) & np.isnan(there)
  return ~same.reshape(len(here), -1).all(1)


def read_episodes(
    columns: Mapping[str, np.ndarray],
    lengths: np.ndarray,
    rest: Optional[Rest] = None,
    first: int = 0,
) -> Iterator[python_episodes.PythonEpisode]:
  """Yields the episodes of columns, oldest first.

  Args:
    columns: the columns, of either form.
    lengths: int64 `[E]`: how many transitions each episode has; only those of
      episodes that have one.
    rest: what is beyond the columns, if it is known.
    first: where the oldest transition is; those before it follow the last.
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
          rest.last_step[key].reshape(-1)[num_last] for key in _ENDS
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
        name[len(_BELOW_NEXT) :]
        for name in columns
        if name.startswith(_BELOW_NEXT)
    ]
    root = [name for name in columns if not name.startswith(_BELOW_NEXT)]
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
      last: its index among the last steps; None if it has no step.
    """
    steps = {}
    for name in self._names:
      below = _BELOW_NEXT + name
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
      # One number a transition is `[1]` in TorchRL.
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
