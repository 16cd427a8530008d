"""Arrays in NumPy's `.npz` files, read a part at a time.

`numpy.load` reads an array of such a file whole. Here rows are read, and
decompressed, in the order in which they are in the file.
"""

import contextlib
import os
from typing import Dict, Iterator, Tuple, Union
import zipfile

import numpy as np

_SUFFIX = '.npy'


class NpzColumn:
  """An array in an open file, whose rows are read when they are asked for.

  Reading forward is fast. Reading earlier rows starts again at the first.

  Attributes:
    dtype: the dtype.
    shape: the shape, `[N, ...]`.
  """

  def __init__(self, archive: zipfile.ZipFile, member: str):
    """Reads the head of an array.

    Args:
      archive: the open file.
      member: the name of the array's file in it.
    """
    self._archive = archive
    self._member = member
    self._open()
    self.shape, is_fortran, self.dtype = read_header(self._file)
    if is_fortran and len(self.shape) > 1:
      raise ValueError(
          f'The array {self.name} of {archive.filename} is in the order of'
          ' Fortran, which cannot be read by rows. Save it after'
          ' numpy.ascontiguousarray.'
      )

  @property
  def name(self) -> str:
    return self._member[: -len(_SUFFIX)]

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: Union[slice, np.ndarray]) -> np.ndarray:
    """Returns the rows of a slice, or of increasing indices."""
    if isinstance(rows, slice):
      begin, end, step = rows.indices(len(self))
      return self._read(begin, max(begin, end))[::step]
    if not len(rows):
      return self._read(0, 0)
    return self._read(rows[0], rows[-1] + 1)[np.asarray(rows) - rows[0]]

  def _open(self) -> None:
    self._file = self._archive.open(self._member)
    self._row = 0

  def _read(self, begin: int, end: int) -> np.ndarray:
    """Reads the rows from `begin` until `end`."""
    if begin < self._row:
      self._file.close()
      self._open()
      read_header(self._file)
    row_shape = self.shape[1:]
    row_bytes = self.dtype.itemsize * int(np.prod(row_shape))
    # A compressed file can be skipped only by reading it, a part at a time.
    for size in _parts((begin - self._row) * row_bytes):
      self._file.read(size)
    found = bytearray((end - begin) * row_bytes)
    view = memoryview(found)
    while view:
      part = self._file.read(min(len(view), 1 << 20))
      if not part:
        raise ValueError(
            f'The array {self.name} of {self._archive.filename} ends early.'
        )
      view[: len(part)] = part
      view = view[len(part) :]
    self._row = end
    return np.frombuffer(found, self.dtype).reshape(end - begin, *row_shape)


@contextlib.contextmanager
def open_columns(path: str) -> Iterator[Dict[str, NpzColumn]]:
  """Yields the arrays of a file by their names; scalars are left out.

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
    columns = (
        NpzColumn(archive, member)
        for member in archive.namelist()
        if member.endswith(_SUFFIX)
    )
    yield {column.name: column for column in columns if column.shape}


def read_header(file) -> Tuple[Tuple[int, ...], bool, np.dtype]:
  """Returns the shape, whether it is in Fortran order, and the dtype."""
  version = np.lib.format.read_magic(file)
  if version == (1, 0):
    return np.lib.format.read_array_header_1_0(file)
  return np.lib.format.read_array_header_2_0(file)


def _parts(size: int) -> Iterator[int]:
  while size > 0:
    yield min(size, 1 << 20)
    size -= 1 << 20
