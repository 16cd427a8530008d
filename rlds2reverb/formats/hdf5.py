"""HDF5 files on the local disk."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import graphlib
import itertools
import math
import os
from typing import Any, NamedTuple

from etils import epy
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import h5py
  from h5py import h5d
  from h5py import h5g
  from h5py import h5l

# A file may say with a few links that its groups are nested without end.
_MOST_LEVELS = 100
_MOST_PATHS_PER_GROUP = 100


def names_in(path: str) -> list[str]:
  """Returns the names of the groups and data sets at the top of an HDF5 file.

  The file must hold all of its data itself, unless the user allows the place:
  HDF5 would follow its links to any file on this machine that the user may
  read. See `limits.check_place`.

  Args:
    path: the path of a file, as `files.expand_local` returns it.

  Raises:
    ValueError: if there is no such file, if it is not a complete HDF5 file, if
      there is nothing in it, if a part of it is in another file, if a group
      contains itself or is nested too deeply, or if a data set is larger than
      the limit.
    PermissionError: if the user may not read it.
  """
  if not os.path.isfile(path):
    raise ValueError(f'There is no HDF5 file {path}.')
  try:
    with h5py.File(path, 'r') as file:
      names = list(file)
      endless = _check_contents(file, os.path.getsize(path))
  except PermissionError:
    raise
  # Damage is an error of many classes in h5py.
  except (KeyError, OSError, RuntimeError, SystemError, TypeError) as e:
    files.check_not_pointer(path)
    raise ValueError(f'{path} is not a complete HDF5 file: {e}.') from e
  if not names:
    raise ValueError(f'{path} is an HDF5 file with nothing in it.')
  if endless:
    raise ValueError(
        f'{path} has {endless}, so it cannot be read as a tree of groups.'
        ' Remove the link with `del file[name]`.'
    )
  return names


def _check_contents(file: h5py.File, file_bytes: int) -> str | None:
  """Visits all groups and data sets of a file, each once.

  Args:
    file: the file.
    file_bytes: its size.

  Returns:
    The description of a group that contains itself or is nested too deeply, or
    None.

  Raises:
    ValueError: if a part is in another file, is too large, or has a name that
      is not text.
  """
  folder = os.path.dirname(os.path.abspath(file.filename))
  groups = _Groups(file)
  soft_links: list[bytes] = []

  def find(target: str) -> str:
    # HDF5 looks in the folder of the file, then in the working directory.
    near = os.path.join(folder, target)
    return near if os.path.exists(near) else target

  def check(name: bytes, link: h5l.LinkInfo) -> None:
    place = lambda: f'{name.decode(errors="replace")} of {file.filename}'
    try:
      name.decode('utf-8')
    except UnicodeDecodeError as e:  # h5py has bytes in place of such names.
      raise ValueError(f'{place()} has a name that is not UTF-8.') from e
    if link.type == h5l.TYPE_EXTERNAL:
      target = os.fsdecode(file.id.links.get_val(name)[0])
      limits.check_place(
          f'{place()} is a link into another file. It', find(target)
      )
    # A soft link holds a path. Its target is in this file, or behind an
    # external link, which is visited itself.
    if link.type != h5l.TYPE_HARD:
      soft_links.append(name)
      return
    item = h5py.h5o.open(file.id, name)
    if isinstance(item, h5g.GroupID):
      groups.add(name, item)
    if not isinstance(item, h5d.DatasetID):
      return
    properties = item.get_create_plist()
    for index in range(properties.get_external_count()):
      limits.check_place(
          f'{place()} has its values in another file. It',
          os.fsdecode(properties.get_external(index)[0]),
      )
    if properties.get_layout() == h5d.VIRTUAL:
      for index in range(properties.get_virtual_count()):
        source = os.fsdecode(properties.get_virtual_filename(index))
        limits.check_place(
            f'{place()} is a virtual data set of parts of files. It',
            file.filename if source == '.' else find(source),
        )
    size = math.prod(item.shape or ()) * item.dtype.itemsize
    if size > file_bytes:
      limits.check_expanded(place(), size, file_bytes)

  def visit(name: bytes, link: h5l.LinkInfo) -> ValueError | None:
    try:
      check(name, link)
    except ValueError as e:
      return e  # h5py loses errors of a visitor.
    return None

  # h5py's high-level objects would take twice as long.
  error = file.id.links.visit(visit, info=True)
  if error is not None:
    raise error
  # Now that all links into other files are allowed.
  for name in soft_links:
    try:
      child = h5py.h5o.open(file.id, name)
    except (KeyError, OSError, RuntimeError):
      continue  # A link that leads nowhere.
    if isinstance(child, h5g.GroupID):
      groups.add(name, child)
  return groups.find_endless()


class _Groups:
  """The groups of a file, with the links between them."""

  def __init__(self, file: h5py.File):
    root = self._get_address(file.id)
    self._addresses = {b'': root}
    self._names = {root: '/'}
    # The groups in each group, a group as often as links lead to it.
    self._children: dict[Any, list[Any]] = {root: []}

  def add(self, name: bytes, group: h5g.GroupID) -> None:
    """Adds the group that a link leads to."""
    address = self._addresses[name] = self._get_address(group)
    self._names.setdefault(address, name.decode(errors='replace'))
    self._children.setdefault(address, [])
    parent = self._addresses[name.rpartition(b'/')[0]]
    self._children[parent].append(address)

  def find_endless(self) -> str | None:
    """Returns which group contains itself or is nested too deeply, or None."""
    levels: dict[Any, int] = {}
    num_paths: dict[Any, int] = {}
    try:
      order = list(graphlib.TopologicalSorter(self._children).static_order())
    except graphlib.CycleError as e:
      return f'a group that contains itself, {self._names[e.args[1][0]]}'
    for group in order:
      name = self._names[group][:80]
      children = self._children[group]
      levels[group] = 1 + max((levels[child] for child in children), default=0)
      num_paths[group] = 1 + sum(num_paths[child] for child in children)
      if levels[group] > _MOST_LEVELS:
        return f'groups of more than {_MOST_LEVELS} levels in {name}'
      if num_paths[group] > _MOST_PATHS_PER_GROUP * len(self._children):
        return f'links in {name} that repeat the same groups too often'
    return None

  def _get_address(self, group: Any) -> tuple[int, int]:
    """Returns the number of the file of a group, and its address there."""
    info = h5py.h5o.get_info(group)
    return info.fileno, info.addr


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


def read_groups(
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
    columns = prepare(place, columns_lib.leaves(open_group(file, group)))
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


def open_group(file: h5py.File, name: str) -> h5py.Group:
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
        yield open_group(file, name)

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
