"""Reads data of any format, by the name of the format or by its files."""

import inspect
import os
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Union,
)

import gin
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import other_formats
from rlds2reverb.episodes import checks
from rlds2reverb.formats import calvin
from rlds2reverb.formats import d3rlpy_buffers
from rlds2reverb.formats import flat_arrays
from rlds2reverb.formats import imitation
from rlds2reverb.formats import lerobot
from rlds2reverb.formats import maniskill
from rlds2reverb.formats import minari
from rlds2reverb.formats import parquet_tables
from rlds2reverb.formats import python_dicts
from rlds2reverb.formats import robomimic
from rlds2reverb.formats import ted
from rlds2reverb.formats import torchrl
from rlds2reverb.formats import zarr_buffers

# The readers of paths, by the names of `other_formats.find`. Gin knows each by
# the name of its function.
READERS: Dict[str, Callable[..., tf.data.Dataset]] = {
    'calvin': calvin.load_calvin,
    'd3rlpy': d3rlpy_buffers.load_d3rlpy,
    'hdf5': flat_arrays.load_flat_arrays,
    'imitation': imitation.load_imitation,
    'lerobot': lerobot.load_lerobot,
    'maniskill': maniskill.load_maniskill,
    'minari': minari.load_minari,
    'npz': flat_arrays.load_flat_arrays,
    'parquet': parquet_tables.load_parquet,
    'robomimic': robomimic.load_robomimic,
    'torchrl': torchrl.load_torchrl,
    'zarr': zarr_buffers.load_zarr,
}

# The readers of data in memory; see `load`.
IN_MEMORY: Dict[str, Callable[..., tf.data.Dataset]] = {
    'arrays': flat_arrays.from_flat_arrays,
    'episodes': python_dicts.from_episodes,
    'ted': ted.from_ted,
}

# Formats that cannot be recognized by their files.
_FLAT = ('hdf5', 'npz')


def find_format(path: files.PathLike) -> Optional[str]:
  """Returns the name of the format of the data at a path, or None.

  None says that it is RLDS, or that its files do not tell.
  """
  found = other_formats.find(files.expand(path))
  return found if found in READERS else None


def load(
    data: Union[
        files.PathLike,
        Mapping[str, Any],
        Iterable[Mapping[str, Any]],
        Callable[[], Iterable[Mapping[str, Any]]],
    ],
    format: Optional[str] = None,
    **options: Any,
) -> tf.data.Dataset:
  """Reads a data set that is in any of the formats, on disk or in memory.

  Args:
    data: a file or a folder on the local disk, as the reader of the format
      takes it; or a name, if it takes names. Or data in memory, which must stay
      as it is while the data set is read: a dict of flat arrays or an open HDF5
      file of them; an iterable of episodes, or a function that returns one.
    format: one of `READERS`, or `IN_MEMORY` one of `"arrays"`, `"episodes"` and
      `"ted"`. By default the files tell; in memory, a dict is of `"arrays"`,
      and all else of `"episodes"`.
    **options: arguments of the reader, such as `leave_out` of `load_zarr`.

  Returns:
    A data set of episodes; see the reader of the format.

  Raises:
    ValueError: if the format is not known or not that of the files, if its
      reader has no such option, or for the reasons that the reader has. Where
      the files have another format, the error names it.
  """
  # pylint: disable=redefined-builtin
  if not isinstance(data, (str, os.PathLike)):
    format = format or ('arrays' if isinstance(data, Mapping) else 'episodes')
    checks.check_choice('The format of data in memory', format, IN_MEMORY)
    _check_options(IN_MEMORY[format], format, options)
    return IN_MEMORY[format](data, **options)
  local = files.expand_local(data, 'A data set of another format')
  format = format or find_format(data)
  if format is None:
    raise ValueError(
        f'The format of {local} is not known. It must be one of'
        f' {", ".join(READERS)}.{other_formats.hint(local)}'
    )
  checks.check_choice('The format of files', format, READERS)
  hint = other_formats.hint(local, but=_FLAT if format in _FLAT else (format,))
  # Anything with the columns of flat arrays can be flat arrays.
  if format not in _FLAT and hint.startswith(other_formats.IT_HOLDS):
    raise ValueError(f'{local} is not of the format {format}.{hint}')
  reader = READERS[format]
  try:
    _check_options(reader, format, options)
    # A call by gin would add lines of its own to errors.
    bound = gin.get_bindings(reader)
    return inspect.unwrap(reader)(data, **{**bound, **options})
  except ValueError as e:
    if not hint:
      raise
    raise ValueError(f'{e}{hint}') from e


def _check_options(reader, name: str, options: Mapping[str, Any]) -> None:
  for option in options:
    known = option_names(reader)
    checks.check_known(f'The reader of {name}', 'option', option, known)


def option_names(reader: Callable[..., tf.data.Dataset]) -> List[str]:
  """Returns the names of the options that a reader has."""
  return list(inspect.signature(reader).parameters)[1:]
