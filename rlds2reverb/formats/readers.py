"""All readers by the names of their formats, for whoever is given a path."""

import inspect
import os
from typing import Any, Callable, Dict, List, Optional

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
from rlds2reverb.formats import robomimic
from rlds2reverb.formats import torchrl
from rlds2reverb.formats import zarr_buffers

# By the names that `other_formats.find` has for what is at a path, functions
# of that path. Gin knows each by its own name.
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

# Formats whose files nothing else tells.
_FLAT = ('hdf5', 'npz')


def find_format(path: files.PathLike) -> Optional[str]:
  """Returns the name of the format of what is at a path, or None.

  None says that it is RLDS, or that its files do not tell.
  """
  found = other_formats.find(files.expand(path))
  return found if found in READERS else None


def load(
    path: files.PathLike, format: Optional[str] = None, **options: Any
) -> tf.data.Dataset:
  """Reads a data set that is in any of the formats.

  Args:
    path: a file or a folder on the local disk, as the reader of the format
      takes it; or a name, if it takes names.
    format: one of `READERS`. By default the files tell.
    **options: arguments of the reader, such as `leave_out` of `load_zarr`.

  Returns:
    A data set of episodes; see the reader of the format.

  Raises:
    ValueError: if the format is not known or not that of the files, if its
      reader has no such option, or for the reasons that the reader has. Where
      the files have another format, the error names it.
  """
  # pylint: disable=redefined-builtin
  if not isinstance(path, (str, os.PathLike)):
    raise ValueError(
        'formats.load takes the path of a data set, but has been given a'
        f' {type(path).__name__}. Pass a dict of arrays, or an open file, to'
        ' from_flat_arrays, and a list of episodes to from_episodes.'
    )
  local = files.expand_local(path, 'A data set of another format')
  if format is None:
    format = find_format(path)
    if format is None:
      raise ValueError(
          f'The format of {local} is not known. It must be one of'
          f' {", ".join(READERS)}.{other_formats.hint(local)}'
      )
  checks.check_choice('format', format, READERS)
  known = option_names(format)
  for name in options:
    if name not in known:
      raise ValueError(
          f'The reader of {format} has no option {name!r}.'
          f'{checks.did_you_mean(name, known)} It has'
          f' {", ".join(known) or "none"}.'
      )
  same = _FLAT if format in _FLAT else (format,)
  hint = other_formats.hint(local, but=same)
  # Flat arrays are whatever has their columns.
  if format not in _FLAT and _is_other(local, format):
    raise ValueError(f'{local} is not of the format {format}.{hint}')
  # A call by gin would add lines of its own to errors.
  reader = inspect.unwrap(READERS[format])
  bound = gin.get_bindings(READERS[format])
  try:
    return reader(path, **{**bound, **options})
  except ValueError as e:
    if not hint:
      raise
    raise ValueError(f'{e}{hint}') from e


def _is_other(path: str, asked: str) -> bool:
  """Returns whether files tell another format than that was asked for."""
  try:
    return other_formats.find(path) not in ('', asked)
  except (OSError, ValueError):
    return False  # The reader says what is wrong with them.


def option_names(format: str) -> List[str]:  # pylint: disable=redefined-builtin
  """Returns the names of the options that the reader of a format has."""
  return list(inspect.signature(READERS[format]).parameters)[1:]
