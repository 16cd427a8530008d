"""TorchRL's episode data format (TED): RLDS episodes become TED, and come back.

    RLDS steps           o0 a0 r0   o1 a1 r1   o2 a2 r2   o3  -  -
    "transitions", root  o0 a0      o1 a1      o2 a2
                   next  o1 r0      o2 r1      o3 r2
                   done  F          F          T
    "flat"               o0 o1 o2 o3, and a0 a1 a2, r0 r1 r2, done

A transition is *terminated* if the step that it leads to is terminal,
*truncated* if that is last but not terminal, and *done* if either. An episode
that was cut short has neither, and keeps its unfinished tail.

This library keeps TED as columns; see `ted_columns`.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes
from rlds2reverb.formats import ted_columns

TRANSITION_FIELDS = (rlds.ACTION, rlds.REWARD)

_RESERVED = (*ted_columns.END_KEYS, ted_columns.NEXT, ted_columns.IS_INIT)


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
    if len(columns[ted_columns.DONE]):
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
  done, _ = ted_columns.find_ends(columns)
  for name, jumps in ted_columns.find_jumps(columns, done):
    if name != rlds.REWARD:
      raise ValueError(
          f'The {name} of a transition must be what the transition before it'
          ' leads to, or one of the two would be lost. They differ in the rows'
          f' {(1 + np.flatnonzero(jumps)).tolist()[:10]}.'
      )
  lengths = ted_columns.lengths_of(done)
  ted_columns.check_rows('TED', columns, len(done), len(lengths))
  return python_episodes.to_dataset(
      lambda: ted_columns.read_episodes(columns, lengths),
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
    for key in ted_columns.ENDS:
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
      for key in (*ted_columns.ENDS, rlds.IS_FIRST)
      if key in steps
  }
  is_last, is_terminal = (flags[key] for key in ted_columns.ENDS)
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
    columns[ted_columns.IS_INIT] = flags[rlds.IS_FIRST]
  done, terminated = is_last[1:], is_terminal[1:]
  ends = (done, terminated, done & ~terminated)
  return {**columns, **dict(zip(ted_columns.END_KEYS, ends))}


def _as_transitions(columns) -> dict[str, np.ndarray]:
  """Returns the columns of an episode before and after each transition."""
  count = len(columns[ted_columns.DONE])
  only_after = _tops((*ted_columns.END_KEYS, rlds.REWARD), columns)
  never = dict.fromkeys(ted_columns.END_KEYS, np.zeros(count, bool))
  current = {k: v[:count] for k, v in columns.items() if k not in only_after}
  following = {
      ted_columns.BELOW_NEXT + name: column[-count:]
      for name, column in columns.items()
      if name in only_after or len(column) > count
  }
  return {**current, **never, **following}


def _tops(tops: Sequence[str], names: Iterable[str]) -> list[str]:
  """Returns the names that are, or are below, some at the top."""
  return [name for name in names if name.split('/')[0] in tops]
