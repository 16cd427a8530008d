"""HDF5 files on the local disk."""

import graphlib
import math
import os
from typing import Any, Dict, List, Optional, Tuple

import h5py
from h5py import h5d
from h5py import h5l

from rlds2reverb.datasets import files
from rlds2reverb.episodes import limits

# A file may say with a few links that its groups are nested without end.
_MOST_LEVELS = 100
_MOST_PATHS_PER_GROUP = 100


def names_in(path: str) -> List[str]:
  """Returns the names of the groups and data sets at the top of an HDF5 file.

  The file must hold all of its data itself, unless the user allows the place:
  HDF5 would follow its links to any file on this machine that the user may
  read. See `limits.check_place`.

  Args:
    path: the path of a file, as `files.expand_local` returns it.

  Raises:
    ValueError: if there is no such file, if it is not a whole HDF5 file, if
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
      _check_contents(file, os.path.getsize(path))
      endless = _find_endless(file)
  except PermissionError:
    raise
  # Damage is an error of many classes in h5py.
  except (KeyError, OSError, RuntimeError, SystemError, TypeError) as e:
    files.check_not_pointer(path)
    raise ValueError(f'{path} is not a whole HDF5 file: {e}.') from e
  if not names:
    raise ValueError(f'{path} is an HDF5 file with nothing in it.')
  if endless:
    raise ValueError(
        f'{path} has {endless}, so it cannot be read as a tree of groups.'
        ' Remove the link with `del file[name]`.'
    )
  return names


def _check_contents(file: h5py.File, file_bytes: int) -> None:
  """Raises a ValueError if a part is elsewhere, too large or has no text name.

  Args:
    file: the file.
    file_bytes: its size.
  """
  folder = os.path.dirname(os.path.abspath(file.filename))

  def find(target: str) -> str:
    # HDF5 looks in the folder of the file, then in the working directory.
    near = os.path.join(folder, target)
    return near if os.path.exists(near) else target

  def check(name: bytes, link: h5l.LinkInfo) -> None:
    where = f'{name.decode(errors="replace")} of {file.filename}'
    try:
      name.decode('utf-8')
    except UnicodeDecodeError as e:  # h5py has bytes in place of such names.
      raise ValueError(f'{where} has a name that is not UTF-8.') from e
    if link.type == h5l.TYPE_EXTERNAL:
      target = os.fsdecode(file.id.links.get_val(name)[0])
      limits.check_place(
          f'{where} is a link into another file. It', find(target)
      )
    # A soft link holds a path. Its target is in this file, or behind an
    # external link, which is visited itself.
    if link.type != h5l.TYPE_HARD:
      return
    found = h5py.h5o.open(file.id, name)
    if not isinstance(found, h5d.DatasetID):
      return
    properties = found.get_create_plist()
    for index in range(properties.get_external_count()):
      limits.check_place(
          f'{where} has its values in another file. It',
          os.fsdecode(properties.get_external(index)[0]),
      )
    if properties.get_layout() == h5d.VIRTUAL:
      for index in range(properties.get_virtual_count()):
        source = os.fsdecode(properties.get_virtual_filename(index))
        limits.check_place(
            f'{where} is a virtual data set of parts of files. It',
            file.filename if source == '.' else find(source),
        )
    size = math.prod(found.shape or ()) * found.dtype.itemsize
    limits.check_expanded(where, size, file_bytes)

  def visit(name: bytes, link: h5l.LinkInfo) -> Optional[ValueError]:
    try:
      check(name, link)
    except ValueError as e:
      return e  # h5py loses errors of a visitor.
    return None

  # h5py's high-level objects would take twice as long.
  error = file.id.links.visit(visit, info=True)
  if error is not None:
    raise error


def _find_endless(file: h5py.File) -> Optional[str]:
  """Returns which group contains itself or is too deep, or None.

  Call it after `_check_contents`, because it follows links into other files.
  """
  addresses = {b'': _address(file.id)}
  names = {addresses[b'']: '/'}
  # The groups in each group, a group as often as links lead to it.
  children: Dict[Any, List[Any]] = {addresses[b'']: []}

  def visit(name: bytes, unused_link: h5l.LinkInfo) -> None:
    try:
      found = h5py.h5o.open(file.id, name)
    except (KeyError, OSError, RuntimeError):
      return  # A soft link that leads nowhere.
    if isinstance(found, h5py.h5g.GroupID):
      address = addresses[name] = _address(found)
      names.setdefault(address, name.decode(errors='replace'))
      children.setdefault(address, [])
      children[addresses[name.rpartition(b'/')[0]]].append(address)

  file.id.links.visit(visit, info=True)
  levels, num_paths = {}, {}
  try:
    order = list(graphlib.TopologicalSorter(children).static_order())
  except graphlib.CycleError as e:
    return f'a group that contains itself, {names[e.args[1][0]]}'
  for group in order:
    levels[group] = 1 + max((levels[c] for c in children[group]), default=0)
    num_paths[group] = 1 + sum(num_paths[c] for c in children[group])
    if levels[group] > _MOST_LEVELS:
      return f'groups of more than {_MOST_LEVELS} levels in {names[group][:80]}'
    if num_paths[group] > _MOST_PATHS_PER_GROUP * len(children):
      return (
          f'links in {names[group][:80]} that repeat the same groups too often'
      )
  return None


def _address(group: Any) -> Tuple[int, int]:
  """Returns the number of the file of a group, and its place there."""
  info = h5py.h5o.get_info(group)
  return info.fileno, info.addr
