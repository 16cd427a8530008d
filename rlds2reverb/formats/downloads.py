"""Finds data sets of other libraries, and imports these libraries."""

import importlib
import os
from typing import Any

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry


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


def import_library(module: str, reason: str, format_name: str) -> Any:
  """Imports a library that an extra of this package installs.

  Args:
    module: the name of the module.
    reason: the start of the error, such as `Zarr is read through Zarr`.
    format_name: the name of the format that needs the library.

  Raises:
    ImportError: if it is not installed.
  """
  try:
    return importlib.import_module(module)
  except ImportError as e:
    extra = format_registry.FORMATS[format_name].extra
    raise ImportError(
        f'{reason}, which is not installed. Run `pip install'
        f" '.[{extra}]'` in a clone of rlds2reverb."
    ) from e
