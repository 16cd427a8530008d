"""Episodes in the groups of an HDF5 file: robomimic, ManiSkill and Minari.

Each group has the columns of an episode, `[T, ...]`, or `[T + 1, ...]` with the
last observation. A `GroupLayout` says how the formats differ.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Pattern, Sequence

from absl import logging
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes


class GroupLayout(NamedTuple):
  """The places of the columns of an episode in its group.

  Attributes:
    group: matches the name of a group, which has one number in it.
    names: the names of the columns of observations, actions and rewards, by the
      fields of a step.
    terminal: the column whose last value says whether the episode is terminal.
    next_observations: the name of next observations, whose last one is the last
      of the episode; or None, if the observations have it themselves.
    unused: the names of columns that are no step fields.
    help: advice for the error if a group has no observations or actions.
  """

  group: Pattern[str]
  names: Dict[str, str]
  terminal: str
  next_observations: Any = None
  unused: Sequence[str] = ()
  help: str = ''

  def numbers(self, names: Sequence[str]) -> Dict[str, int]:
    """Returns the names of groups among `names`, by their numbers."""
    found = {name: self.group.fullmatch(name) for name in names}
    numbers = {name: int(one.group(1)) for name, one in found.items() if one}
    return dict(sorted(numbers.items(), key=lambda item: item[1]))


def load(
    path: str,
    layout: GroupLayout,
    groups: Dict[str, int],
    fields_of: Callable[[h5py.Group], Dict[str, Any]] = lambda group: {},
    prepare: Callable[
        [Dict[str, Any]], Dict[str, Any]
    ] = lambda columns: columns,
) -> tf.data.Dataset:
  """Reads the episodes in the groups of a file.

  Args:
    path: the path of the file, which `hdf5.names_in` has checked.
    layout: where the columns are.
    groups: the paths of the groups, with the numbers that identify episodes.
    fields_of: returns the fields of the episode in a group.
    prepare: changes the columns of a group.

  Returns:
    A data set of episodes, in the order of `groups`.
  """
  with h5py.File(path, 'r') as file:
    left_out = _left_out(file[next(iter(groups))], layout)

  def read() -> python_episodes.Episodes:
    with h5py.File(path, 'r') as file:
      for name, number in groups.items():
        columns = prepare(_columns(file[name], left_out))
        steps, is_terminal = _steps(f'{name} of {path}', columns, layout)
        yield python_episodes.make_episode(
            steps, number, is_terminal, fields_of(file[name])
        )

  return python_episodes.to_dataset(read, len(groups))


def _columns(group: h5py.Group, left_out) -> Dict[str, Any]:
  return {
      name: column
      for name, column in columns_lib.leaves(group).items()
      if name not in left_out
  }


def _left_out(group: h5py.Group, layout: GroupLayout) -> List[str]:
  """Returns the columns without a row for each step, and warns of them."""
  columns = columns_lib.leaves(group)
  used = (*layout.names.values(), layout.next_observations, *layout.unused)
  length = len(columns.get(layout.terminal, ())) or len(
      columns.get(layout.names[rlds.ACTION], ())
  )
  left_out = [
      name
      for name, column in columns.items()
      if name.split('/')[0] not in used
      and not (
          columns_lib.is_readable(column)
          and len(column) in (length, length + 1)
      )
  ]
  if left_out:
    logging.warning(
        'Left out: columns without numbers or strings for each step: %s.',
        ', '.join(left_out),
    )
  return left_out


def _steps(where: str, columns: Dict[str, Any], layout: GroupLayout) -> Any:
  """Returns the step fields of an episode, and whether it is terminal."""
  following = columns_lib.nested(layout.next_observations, columns)
  is_terminal = columns.get(layout.terminal, np.zeros(0))[-1:]
  steps = columns_lib.to_fields(
      where,
      columns,
      layout.names,
      (*layout.unused, layout.next_observations),
      layout.help,
  )
  length = len(tf.nest.flatten(steps[rlds.ACTION])[0])
  num_rows = {
      rlds.OBSERVATION: length + (layout.next_observations is None),
      rlds.REWARD: length,
  }
  for field, expected in num_rows.items():
    for leaf in tf.nest.flatten(steps.get(field, ())):
      if len(leaf) != expected:
        raise ValueError(
            f'{where} has {len(leaf)} rows of {layout.names[field]}, but'
            f' {length} of {layout.names[rlds.ACTION]}: expected {expected}.'
        )
  if following:
    try:
      steps[rlds.OBSERVATION] = tf.nest.map_structure(
          lambda here, after: np.concatenate([here[:], after[length - 1 :]]),
          steps[rlds.OBSERVATION],
          following,
      )
    except (TypeError, ValueError) as e:
      raise ValueError(
          f'{where} has other fields below {layout.next_observations} than'
          f' below {layout.names[rlds.OBSERVATION]}: {e}'
      ) from e
  return steps, is_terminal
