"""HDF5 files on the local disk."""

import os
from typing import List, Optional

import h5py
from h5py import h5d
from h5py import h5l


def names_in(path: str) -> List[str]:
  """Returns the names of the groups and data sets at the top of an HDF5 file.

  The file must hold all of its data itself: HDF5 would follow its links to any
  file on this machine that the user may read.

  Args:
    path: the path of a file, as `files.expand_local` returns it.

  Raises:
    ValueError: if there is no such file, if it is not a whole HDF5 file, if
      there is nothing in it, or if a part of it is in another file.
    PermissionError: if the user may not read it.
  """
  if not os.path.isfile(path):
    raise ValueError(f'There is no HDF5 file {path}.')
  try:
    with h5py.File(path, 'r') as file:
      names = list(file)
      elsewhere = _find_elsewhere(file)
  except PermissionError:
    raise
  except OSError as e:
    raise ValueError(f'{path} is not a whole HDF5 file: {e}.') from e
  if not names:
    raise ValueError(f'{path} is an HDF5 file with nothing in it.')
  if elsewhere is not None:
    raise ValueError(
        f'{path} has {elsewhere}. Such a file can make its reader read any file'
        ' of this machine, so it is refused. If you trust it, write the values'
        ' of its data sets into a file of their own, with'
        ' `copy.create_dataset(name, data=file[name])`.'
    )
  return names


def _find_elsewhere(file: h5py.File) -> Optional[str]:
  """Returns which part of a file is in another file, or None."""

  def visit(name: bytes, link: h5l.LinkInfo) -> Optional[str]:
    where = name.decode(errors='replace')
    if link.type == h5l.TYPE_EXTERNAL:
      return f'a link into another file, {where}'
    # A soft link holds a path. Its target is in this file, or behind an
    # external link, which is found itself.
    if link.type != h5l.TYPE_HARD:
      return None
    found = h5py.h5o.open(file.id, name)
    if isinstance(found, h5d.DatasetID):
      properties = found.get_create_plist()
      if properties.get_external_count():
        return f'values in another file, those of {where}'
      if properties.get_layout() == h5d.VIRTUAL:
        return f'a virtual data set, {where}, of parts of other files'
    return None

  # h5py's high-level objects would take twice as long.
  return file.id.links.visit(visit, info=True)
