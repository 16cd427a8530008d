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
    name_or_directory: the path, or the name of the data set in `root`.
    library: the name of the library, for errors.
    root: the folder in which the library stores its data sets, if it has one.
    marker: the path of a file that such a data set has.

  Raises:
    ValueError: if there is no such data set.
  """
  name = os.fspath(name_or_directory)
  places = [files.expand_local(name, f'A {library} data set')]
  if root and not name.startswith('~') and not os.path.isabs(name):
    places.append(os.path.join(files.expand(root), name))
  for place in places:
    if os.path.exists(os.path.join(place, marker) if marker else place):
      return place
  has = marker and f': it must have a {marker}'
  raise ValueError(
      f'There is no {library} data set {", and none at ".join(places)}{has}.'
  )
