"""Finds the folders of data sets that other libraries have downloaded."""

import os

from rlds2reverb.datasets import files


def find(
    name_or_directory: files.PathLike,
    library: str,
    root: str = '',
    marker: str = '',
) -> str:
  """Returns the path of a data set.

  Args:
    name_or_directory: the path of the data set, or its name in `root`.
    library: the name of the library, for errors.
    root: the folder of downloaded data sets, if the library has one.
    marker: the relative path of a file that every data set has.

  Raises:
    ValueError: if the data set does not exist.
  """
  name = os.fspath(name_or_directory)
  places = [files.expand_local(name, f'A {library} data set')]
  if root and not name.startswith('~') and not os.path.isabs(name):
    places.append(os.path.join(files.expand(root), name))
  for place in places:
    if os.path.exists(os.path.join(place, marker) if marker else place):
      return place
  remedy = marker and f': it must contain {marker}'
  raise ValueError(
      f'There is no {library} data set {", and none at ".join(places)}{remedy}.'
  )
