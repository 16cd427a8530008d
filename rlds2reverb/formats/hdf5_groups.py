"""Episodes in the groups of an HDF5 file: robomimic, ManiSkill and Minari.

Each group has the columns of an episode, `[T, ...]`, or `[T + 1, ...]` with the
last observation. A `GroupLayout` says how the formats differ.
"""

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Pattern,
    Sequence,
)

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
      of the episode; or empty, if the observations have it themselves.
    unused: the names of columns that are no step fields.
    help: advice for the error if a group has no observations or actions.
  """

  group: Pattern[str]
  names: Dict[str, str]
  terminal: str
  next_observations: str = ''
  unused: Sequence[str] = ()
  help: str = ''

  def numbers(self, names: Iterable[str]) -> Dict[str, int]:
    """Returns the names of groups among `names`, by their numbers."""
    matches = filter(None, map(self.group.fullmatch, names))
    numbers = {one.group(): int(one.group(1)) for one in matches}
    return dict(sorted(numbers.items(), key=lambda item: item[1]))


def load(
    path: str,
    layout: GroupLayout,
    groups: Dict[str, int],
    fields_of: Callable[[h5py.Group], Dict[str, Any]] = lambda group: {},
    prepare: Callable[[Any], Dict[str, Any]] = lambda columns: columns,
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
    left_out = _left_out(columns_lib.leaves(file[next(iter(groups))]), layout)

  def read() -> python_episodes.Episodes:
    with h5py.File(path, 'r') as file:
      for name, number in groups.items():
        columns = columns_lib.leaves(file[name])
        for one in left_out:
          columns.pop(one, None)
        after = layout.next_observations
        yield python_episodes.make_episode(
            _steps(f'{name} of {path}', prepare(columns), layout),
            number,
            columns.get(layout.terminal, np.zeros(0))[-1:],
            fields_of(file[name]),
            has_last=not after
            or any(
                len(columns[one]) for one in columns_lib.below(after, columns)
            ),
        )

  return python_episodes.to_dataset(read, len(groups))


def _left_out(columns: Dict[str, Any], layout: GroupLayout) -> List[str]:
  """Returns the columns without a row for each step, and warns of them."""
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
  what = 'columns without numbers or strings for each step'
  columns_lib.log_left_out(what, left_out)
  return left_out


def _steps(
    where: str, columns: Dict[str, Any], layout: GroupLayout
) -> Dict[str, Any]:
  """Returns the step fields of an episode."""
  names, after = layout.names, layout.next_observations
  tops = dict.fromkeys(name.split('/')[0] for name in columns)
  required = names[rlds.OBSERVATION], names[rlds.ACTION]
  columns_lib.check_has(where, required, tops, layout.help)
  there = {field: name for field, name in names.items() if name in tops}
  steps = columns_lib.renamed(
      columns, {**there, **dict.fromkeys((after, *layout.unused))}
  )
  observed = columns_lib.below(rlds.OBSERVATION, steps)
  length = len(steps[columns_lib.below(rlds.ACTION, steps)[0]])
  following = {
      rlds.OBSERVATION + name[len(after) :]: columns[name]
      for name in columns_lib.below(after, columns)
  }
  try:
    for name in dict.fromkeys((*observed, *following)) if following else ():
      rows = [steps[name][:], following[name][length - 1 :]]
      steps[name] = np.concatenate(rows)
  except (KeyError, ValueError) as e:
    raise ValueError(
        f'{where} has other fields below {after} than below'
        f' {names[rlds.OBSERVATION]}: {e}'
    ) from e
  return columns_lib.nest(steps)
