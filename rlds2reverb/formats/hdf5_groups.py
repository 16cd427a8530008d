"""Episodes in the groups of an HDF5 file: robomimic, ManiSkill and Minari.

Each group has the columns of an episode, `[T, ...]`, or `[T + 1, ...]` with the
last observation. A `GroupLayout` says how the formats differ.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import itertools
from typing import Any, NamedTuple

import h5py
import tensorflow as tf

from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes


class GroupLayout(NamedTuple):
  """The places of the columns of an episode in its group.

  Attributes:
    prefix: how the name of a group begins, before its number.
    names: the names of the columns of observations, actions and rewards, by the
      fields of a step.
    terminal: the column whose last value says whether the episode is terminal.
    has_last: see `python_episodes.make_episode`.
    unused: the names of columns that are no step fields.
    help: advice for the error if a group has no observations or actions.
  """

  prefix: str
  names: dict[str, str]
  terminal: str
  has_last: bool | None = True
  unused: Sequence[str] = ()
  help: str = ''

  def numbers(self, names: Iterable[str]) -> dict[str, int]:
    """Returns the names of groups among `names`, by their numbers."""
    numbers = {
        int(number): name
        for name in names
        for prefix, number in [name.rsplit('_', 1)] * ('_' in name)
        if prefix == self.prefix and number.isdecimal()
    }
    return {numbers[number]: number for number in sorted(numbers)}


def load(
    path: str,
    layout: GroupLayout,
    groups: dict[str, int],
    fields_of: Callable[[h5py.Group], dict[str, Any]] = lambda group: {},
    prepare: Callable[
        [str, Any], dict[str, Any]
    ] = lambda place, columns: columns,
) -> tf.data.Dataset:
  """Reads the episodes in the groups of a file.

  Args:
    path: the path of the file, which `hdf5.names_in` has checked.
    layout: where the columns are.
    groups: the paths of the groups, with the numbers that identify episodes.
    fields_of: returns the fields of the episode in a group.
    prepare: changes the columns of a group, whose name for errors comes first.

  Returns:
    A data set of episodes, in the order of `groups`.
  """
  names = layout.names
  with h5py.File(path, 'r') as file:
    left_out = _find_left_out(file, layout, groups, prepare)
  description = 'columns without numbers or strings for each step'
  columns_lib.log_left_out(description, left_out)

  def read_group(file: h5py.File, group: str) -> python_episodes.PythonEpisode:
    place = f'{group} of {path}'
    columns = prepare(place, columns_lib.leaves(group_of(file, group)))
    tops = dict.fromkeys(name.split('/')[0] for name in columns)
    required = names[rlds.OBSERVATION], names[rlds.ACTION]
    columns_lib.check_has(place, required, tops, layout.help)
    present = {field: name for field, name in names.items() if name in tops}
    steps = columns_lib.renamed(
        columns, {**present, **dict.fromkeys((*layout.unused, *left_out))}
    )
    return python_episodes.make_episode(
        columns_lib.nest(steps),
        groups[group],
        columns[layout.terminal][-1:] if layout.terminal in columns else False,
        fields_of(file[group]),
        layout.has_last,
    )

  def read() -> python_episodes.Episodes:
    with h5py.File(path, 'r') as file:
      for group in groups:
        yield python_episodes.attempt(
            read_group, file, group, place=f'{group} of {path}', file=path
        )

  return python_episodes.to_dataset(read, len(groups))


def group_of(file: h5py.File, name: str) -> h5py.Group:
  """Returns a group of a file.

  Raises:
    ValueError: if it is damaged, or is not a group.
  """
  try:
    group = file[name]
  except (KeyError, OSError, RuntimeError) as e:
    text = e.args[0] if e.args else e
    raise ValueError(f'{name} of {file.filename} is damaged: {text}.') from e
  if not isinstance(group, h5py.Group):
    raise ValueError(
        f'{name} of {file.filename} must be a group with the columns of an'
        f' episode, but is a {type(group).__name__}.'
    )
  return group


def first_groups(file: h5py.File, groups: Iterable[str]) -> list[h5py.Group]:
  """Returns the groups of the first episodes that are not damaged."""

  def found() -> Iterator[h5py.Group]:
    for name in groups:
      with contextlib.suppress(ValueError):
        yield group_of(file, name)

  return [*itertools.islice(found(), python_episodes.NUM_COMPARED)]


def _find_left_out(file, layout, groups, prepare) -> list[str]:
  """Returns the columns that no episode among the first has for its steps."""
  used = {*layout.names.values(), *layout.unused}
  is_of_steps: dict[str, bool] = collections.defaultdict(bool)
  for group in first_groups(file, groups):
    try:
      columns = prepare(group.name, columns_lib.leaves(group))
    except Exception:  # pylint: disable=broad-exception-caught
      continue  # The episode is a fault, which is told when it is read.
    length = len(columns.get(layout.terminal, ())) or len(
        columns.get(layout.names[rlds.ACTION], ())
    )
    for name, column in columns.items():
      if name.split('/')[0] not in used:
        is_of_steps[name] |= columns_lib.has_rows(column, length, length + 1)
  return [name for name, is_one in is_of_steps.items() if not is_one]
