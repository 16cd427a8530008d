"""Arrays in NumPy's `.npz` files, read in chunks.

`numpy.load` reads entire arrays. This module reads and decompresses rows as a
stream.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import io
import math
import os
import struct
from typing import Any
import zipfile
import zlib

import numpy as np

from rlds2reverb.datasets import files
from rlds2reverb.episodes import limits
from rlds2reverb.formats import columns

# The limit of NumPy.
_MAX_HEADER_BYTES = 10_000


@contextlib.contextmanager
def open_columns(path: str) -> Iterator[dict[str, columns.LazyColumn]]:
  """Yields the arrays of a file by name, except for scalars.

  Sequential reads are fast. Reading earlier rows of a compressed file restarts
  at the first row.

  Args:
    path: the path of a file, as `files.expand_local` returns it.

  Raises:
    ValueError: if the file does not exist or is incomplete.
  """
  if not os.path.isfile(path):
    raise ValueError(f'There is no npz file {path}.')
  try:
    archive = zipfile.ZipFile(path)
  except (RuntimeError, zipfile.BadZipFile) as e:
    files.check_not_pointer(path)
    raise ValueError(f'{path} is not a complete npz file: {e}.') from e
  with archive:
    _check_expansion(archive, path)
    arrays = {
        name: _column(archive, name)
        for name in (
            member.removesuffix('.npy') for member in archive.namelist()
        )
    }
    yield {name: column for name, column in arrays.items() if column.shape}


def _check_expansion(archive: zipfile.ZipFile, path: str) -> None:
  """Raises a ValueError if an npz file expands beyond the limit."""
  size = sum(member.file_size for member in archive.infolist())
  limits.check_expanded(path, size, os.path.getsize(path))


def read_arrays(path: str, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
  """Reads arrays of an npz file; all of them by default.

  Raises:
    EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile, zlib.error: if
      the file is damaged, lacks an array, or expands beyond the limit.
  """
  with zipfile.ZipFile(path) as archive:
    _check_expansion(archive, path)
    arrays = {}
    for name in names or [
        member.removesuffix('.npy') for member in archive.namelist()
    ]:
      info = archive.getinfo(f'{name}.npy')
      with archive.open(info) as file:
        arrays[name] = read_array(file, info.file_size)
    return arrays


def read_array(file: Any, size: int) -> np.ndarray:
  """Reads an array in NumPy's `.npy` format.

  Unlike `numpy.load`, it does not allocate more memory than the file size.

  Args:
    file: a file that is open for reading.
    size: the size of the file in bytes.

  Raises:
    ValueError: if the shape does not match the size, or for arrays of objects.
  """
  shape, is_fortran, dtype = read_header(file)
  if dtype.hasobject:
    raise ValueError('Object arrays cannot be loaded.')
  num_bytes = math.prod(shape) * dtype.itemsize
  if size - file.tell() != num_bytes:
    raise ValueError(f'its shape {shape} does not match its {size} bytes')
  array = np.frombuffer(file.read(num_bytes), dtype, math.prod(shape))
  return array.reshape(shape, order='F' if is_fortran else 'C')


def read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
  """Returns the shape, whether the order is Fortran, and the dtype.

  Raises:
    ValueError: if the header is incomplete.
  """
  is_first = np.lib.format.read_magic(file) == (1, 0)
  size_format = '<H' if is_first else '<I'
  packed = file.read(struct.calcsize(size_format))
  if len(packed) == struct.calcsize(size_format):
    # NumPy would allocate up to 4 GiB for a header.
    [size] = struct.unpack(size_format, packed)
    if size > _MAX_HEADER_BYTES:
      raise ValueError(
          f'its header has {size} bytes, more than {_MAX_HEADER_BYTES}'
      )
    packed += file.read(size)
  header = io.BytesIO(packed)
  if is_first:
    return np.lib.format.read_array_header_1_0(header)
  return np.lib.format.read_array_header_2_0(header)


def _column(archive: zipfile.ZipFile, array: str) -> columns.LazyColumn:
  """Returns an array as a column."""
  file = archive.open(f'{array}.npy')
  failed: tuple[int, str] | None = None
  name = f'The array {array} of {archive.filename}'
  shape, is_fortran, dtype = read_header(file)
  start = file.tell()
  expected = start + math.prod(shape) * dtype.itemsize
  stored = archive.getinfo(f'{array}.npy').file_size
  if not dtype.hasobject and expected != stored:
    raise ValueError(
        f'{name} must have {expected} bytes, for {dtype} {list(shape)}, but has'
        f' {stored}.'
    )
  if is_fortran and len(shape) > 1:
    raise ValueError(
        f'{name} has Fortran order, which cannot be read in rows. Save it after'
        ' numpy.ascontiguousarray.'
    )

  def read(begin: int, end: int) -> np.ndarray:
    if dtype.hasobject:
      raise ValueError(f'{name} {columns.RUNS_CODE}')
    nonlocal failed
    rows = np.empty((end - begin, *shape[1:]), dtype)
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    place = start + begin * row_bytes
    # A decompressor may return anything after an error.
    if failed and place + rows.nbytes > failed[0]:
      raise ValueError(failed[1])
    try:
      if place != file.tell():  # Seeking disables the checksum.
        file.seek(place)
      content = file.read(rows.nbytes)
    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as e:
      failed = place, f'{name} is damaged: {e}.'
      raise ValueError(failed[1]) from e
    if len(content) < rows.nbytes:
      raise ValueError(f'{name} ends early.')
    return np.frombuffer(content, dtype).reshape(rows.shape)

  return columns.LazyColumn(dtype, shape, read)
