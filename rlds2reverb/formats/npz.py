"""Arrays in NumPy's `.npz` files, read a part at a time.

`numpy.load` reads an array of such a file whole. Here rows are read, and
decompressed, in the order in which they are in the file.
"""

import contextlib
import os
from typing import Dict, Iterator, Tuple
import zipfile

import numpy as np

from rlds2reverb.formats import columns


@contextlib.contextmanager
def open_columns(path: str) -> Iterator[Dict[str, columns.Column]]:
  """Yields the arrays of a file by their names; scalars are left out.

  Reading a column forward is fast. Reading earlier rows starts again at the
  first, if the file is compressed.

  Args:
    path: the path of a file, as `files.expand_local` returns it.

  Raises:
    ValueError: if there is no such file, or if it is not a whole one.
  """
  if not os.path.isfile(path):
    raise ValueError(f'There is no npz file {path}.')
  try:
    archive = zipfile.ZipFile(path)
  except zipfile.BadZipFile as e:
    raise ValueError(f'{path} is not a whole npz file: {e}.') from e
  with archive:
    found = {
        name: _column(archive, name)
        for name in (one.removesuffix('.npy') for one in archive.namelist())
    }
    yield {name: column for name, column in found.items() if column.shape}


def read_header(file) -> Tuple[Tuple[int, ...], bool, np.dtype]:
  """Returns the shape, whether it is in Fortran order, and the dtype."""
  if np.lib.format.read_magic(file) == (1, 0):
    return np.lib.format.read_array_header_1_0(file)
  return np.lib.format.read_array_header_2_0(file)


def _column(archive: zipfile.ZipFile, array: str) -> columns.Column:
  """Returns the rows of an array."""
  file = archive.open(f'{array}.npy')
  name = f'The array {array} of {archive.filename}'
  shape, is_fortran, dtype = read_header(file)
  start = file.tell()
  if is_fortran and len(shape) > 1:
    raise ValueError(
        f'{name} is in the order of Fortran, which cannot be read by rows. Save'
        ' it after numpy.ascontiguousarray.'
    )

  def read(begin: int, end: int) -> np.ndarray:
    if dtype.hasobject:
      raise ValueError(f'{name} {columns.RUNS_CODE}')
    rows = np.empty((end - begin, *shape[1:]), dtype)
    place = start + begin * rows[:1].nbytes
    if place != file.tell():  # After a jump, checksums are not looked at.
      file.seek(place)
    content = file.read(rows.nbytes)
    if len(content) < rows.nbytes:
      raise ValueError(f'{name} ends early.')
    return np.frombuffer(content, dtype).reshape(rows.shape)

  return columns.Column(dtype, shape, read)
