"""HDF5 files on the local disk."""

import os
from typing import List

import h5py

from rlds2reverb.datasets import formats


def names_in(path: str) -> List[str]:
  """Returns the names of the groups and data sets at the top of an HDF5 file.

  Args:
    path: the path of a file, as `files.expand_local` returns it.

  Raises:
    ValueError: if there is no such file, if it is not a whole HDF5 file, or if
      there is nothing in it.
    PermissionError: if it must not be read.
  """
  if not os.path.isfile(path):
    raise ValueError(f'There is no HDF5 file {path}.{formats.hint(path)}')
  try:
    with h5py.File(path, 'r') as file:
      names = list(file)
  except PermissionError:
    raise
  except OSError as e:
    raise ValueError(
        f'{path} is not a whole HDF5 file: {e}.{formats.hint(path)}'
    ) from e
  if not names:
    raise ValueError(f'{path} is an HDF5 file with nothing in it.')
  return names
