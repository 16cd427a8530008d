"""Validation of HDF5 files, and episodes in groups as robomimic has them.

The format named `hdf5` is flat arrays, which `flat_arrays` reads.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import graphlib
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

# A few links in a file can nest its groups without end.
_MAX_DEPTH = 100
_MAX_PATHS_PER_GROUP = 100


def check_file(path: str) -> list[str]:
  """Validates an HDF5 file, and returns the names at its top level.

  HDF5 follows links to any file that the user may read, so links to other files
  are rejected unless `limits.check_place` allows them.

  Args:
    path: the path of a file, as `files.expand_local` returns it.

  Raises:
    ValueError: if the file does not exist, is incomplete or empty, or has parts
      in other files; if a group contains itself or is nested too deeply; or if
      a data set exceeds the size limit.
    PermissionError: if the user may not read the file.
  """
  if not os.path.isfile(path):
    raise ValueError(f'There is no HDF5 file {path}.')
  try:
    with h5py.File(path, 'r') as file:
      names = list(file)
      problem = _check_contents(file, os.path.getsize(path))
  except PermissionError:
    raise
  except format_registry.HDF5_ERRORS as e:
    files.check_not_pointer(path)
    raise ValueError(f'{path} is not a complete HDF5 file: {e}.') from e
  if not names:
    raise ValueError(f'{path} is an empty HDF5 file.')
  if problem:
    raise ValueError(
        f'{path} has {problem}, so it cannot be read as a tree of groups.'
        ' Remove the link with `del file[name]`.'
    )
  return names


def _check_contents(file: h5py.File, file_bytes: int) -> str | None:
  """Visits every group and data set of a file once.

  Args:
    file: the file.
    file_bytes: the size of the file.

  Returns:
    A description of a group that contains itself or is nested too deeply, or
    None.

  Raises:
    ValueError: if a part is in another file, is too large, or has a name that
      is not UTF-8.
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
    except UnicodeDecodeError as e:  # h5py returns such names as bytes.
      raise ValueError(f'The name of {place()} is not UTF-8.') from e
    if link.type == h5l.TYPE_EXTERNAL:
      target = os.fsdecode(file.id.links.get_val(name)[0])
      limits.check_place(
          f'{place()} is a link into another file. It', find(target)
      )
    # The target of a soft link is in this file, or behind an external link,
    # which is visited separately.
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
      return e  # h5py would discard an exception.
    return None

  # h5py's low-level API is twice as fast.
  error = file.id.links.visit(visit, info=True)
  if error is not None:
    raise error
  # Opened last, after all links to other files have been checked.
  for name in soft_links:
    try:
      child = h5py.h5o.open(file.id, name)
    except format_registry.HDF5_ERRORS:
      continue  # The link is broken.
    if isinstance(child, h5g.GroupID):
      groups.add(name, child)
  return groups.find_excessive_nesting()


class _Groups:
  """The graph of the groups of a file."""

  def __init__(self, file: h5py.File):
    root = self._get_address(file.id)
    self._addresses = {b'': root}
    self._names = {root: '/'}
    # The children of each group, once per link.
    self._children: dict[Any, list[Any]] = {root: []}

  def add(self, name: bytes, group: h5g.GroupID) -> None:
    """Adds the target of a link."""
    address = self._addresses[name] = self._get_address(group)
    self._names.setdefault(address, name.decode(errors='replace'))
    self._children.setdefault(address, [])
    parent = self._addresses[name.rpartition(b'/')[0]]
    self._children[parent].append(address)

  def find_excessive_nesting(self) -> str | None:
    """Describes a group that contains itself or is nested too deeply."""
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
      if levels[group] > _MAX_DEPTH:
        return f'groups nested more than {_MAX_DEPTH} levels deep in {name}'
      if num_paths[group] > _MAX_PATHS_PER_GROUP * len(self._children):
        return f'links in {name} that repeat the same groups too often'
    return None

  def _get_address(self, group: Any) -> tuple[int, int]:
    """Returns the file number of a group, and its address in the file."""
    info = h5py.h5o.get_info(group)
    return info.fileno, info.addr


class GroupLayout(NamedTuple):
  """The layout of the group of an episode.

  Each column has rows `[T, ...]`, or `[T + 1, ...]` with the last observation.

  Attributes:
    prefix: the name of a group without its number.
    names: the names of the columns of observations, actions and rewards, by
      step field.
    terminal: the column whose last value is the terminal flag of the episode.
    has_last: see `python_episodes.make_episode`.
    unused: the names of columns that do not become step fields.
    help: a remedy for the error if a group has no observations or actions.
  """

  prefix: str
  names: dict[str, str]
  terminal: str
  has_last: bool | None = True
  unused: Sequence[str] = ()
  help: str = ''

  def numbers(self, names: Iterable[str]) -> dict[str, int]:
    """Returns the numbers of the groups among `names`, in ascending order."""
    numbers = {
        int(number): name
        for name in names
        for prefix, _, number in [name.rpartition('_')]
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
    path: the path of a file that `check_file` has validated.
    layout: the layout of a group.
    groups: the episode ids, by the paths of the groups.
    fields_of: returns the episode fields of a group.
    prepare: preprocesses the columns of a group, which is described by the
      first argument.

  Returns:
    A data set of episodes, in the order of `groups`.
  """
  names = layout.names
  with h5py.File(path, 'r') as file:
    skipped = _find_skipped(file, layout, groups, prepare)
  description = 'columns without numbers or strings for each step'
  columns_lib.warn_skipped(description, skipped)

  def read_group(file: h5py.File, name: str) -> python_episodes.PythonEpisode:
    place = f'{name} of {path}'
    group = open_group(file, name)
    columns = prepare(place, columns_lib.leaves(group))
    tops = dict.fromkeys(column.split('/')[0] for column in columns)
    required = names[rlds.OBSERVATION], names[rlds.ACTION]
    columns_lib.check_has(place, required, tops, layout.help)
    present = {field: top for field, top in names.items() if top in tops}
    steps = columns_lib.renamed(
        columns, {**present, **dict.fromkeys((*layout.unused, *skipped))}
    )
    return python_episodes.make_episode(
        columns_lib.nest(steps),
        groups[name],
        columns[layout.terminal][-1:] if layout.terminal in columns else False,
        fields_of(group),
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
    ValueError: if the item is damaged or is not a group.
  """
  try:
    group = file[name]
  except format_registry.HDF5_ERRORS as e:
    text = e.args[0] if e.args else e
    raise ValueError(f'{name} of {file.filename} is damaged: {text}.') from e
  if not isinstance(group, h5py.Group):
    raise ValueError(
        f'{name} of {file.filename} must be a group with the columns of an'
        f' episode, but is a {type(group).__name__}.'
    )
  return group


def first_groups(file: h5py.File, groups: Iterable[str]) -> list[h5py.Group]:
  """Returns the first groups that are not damaged."""
  opened: list[h5py.Group] = []
  for name in groups:
    if len(opened) < python_episodes.NUM_COMPARED:
      with contextlib.suppress(ValueError):
        opened.append(open_group(file, name))
  return opened


def _find_skipped(file, layout, groups, prepare) -> list[str]:
  """Returns the columns without a row for each step in all first episodes."""
  used = {*layout.names.values(), *layout.unused}
  is_of_steps: dict[str, bool] = collections.defaultdict(bool)
  for group in first_groups(file, groups):
    try:
      columns = prepare(group.name, columns_lib.leaves(group))
    except Exception:
      continue  # The fault is reported when the episode is read.
    length = len(columns.get(layout.terminal, ())) or len(
        columns.get(layout.names[rlds.ACTION], ())
    )
    for name, column in columns.items():
      if name.split('/')[0] not in used:
        is_of_steps[name] |= columns_lib.has_rows(column, length, length + 1)
  return [name for name in is_of_steps if not is_of_steps[name]]
