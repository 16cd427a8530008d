"""What other libraries bring: their data sets by name, and themselves."""

import importlib
import os
from typing import Any

from rlds2reverb.datasets import files


def find(
    name_or_directory: files.PathLike,
    what: str,
    root: str = '',
    marker: str = '',
) -> str:
  """Returns the path of a data set that is given by its path or its name.

  Args:
    name_or_directory: the path, or the name that the data set has in `root`.
    what: what it is a data set of, for errors.
    root: the folder in which a library keeps its data sets, if it has one.
    marker: the path of a file that such a data set has.

  Raises:
    ValueError: if there is no such data set.
  """
  name = os.fspath(name_or_directory)
  places = [files.expand_local(name, f'A {what} data set')]
  if root and not name.startswith('~') and not os.path.isabs(name):
    places.append(os.path.join(files.expand(root), name))
  for place in places:
    if os.path.exists(os.path.join(place, marker) if marker else place):
      return place
  has = marker and f': it must have a {marker}'
  raise ValueError(
      f'There is no {what} data set {", and none at ".join(places)}{has}.'
  )


def load(module: str, what: str, extra: str) -> Any:
  """Returns a module of a library that an extra of this package installs.

  Args:
    module: the name of the module.
    what: what is read through which library, for the error.
    extra: the name of the extra.

  Raises:
    ImportError: if it is not installed.
  """
  try:
    return importlib.import_module(module)
  except ImportError as e:
    raise ImportError(
        f'{what}, which is not installed. Run `pip install'
        f" '.[{extra}]'` in a clone of rlds2reverb."
    ) from e
