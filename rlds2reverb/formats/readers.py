"""All readers by the names of their formats, for whoever is given a path."""

import inspect
from typing import Any, Callable, Dict, List, Optional

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
    'hdf5': flat_arrays.load_hdf5,
    'imitation': imitation.load_imitation,
    'lerobot': lerobot.load_lerobot,
    'maniskill': maniskill.load_maniskill,
    'minari': minari.load_minari,
    'npz': flat_arrays.load_npz,
    'parquet': parquet_tables.load_parquet,
    'robomimic': robomimic.load_robomimic,
    'torchrl': torchrl.load_torchrl,
    'zarr': zarr_buffers.load_zarr,
}


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
    path: a file or a folder, as the reader of the format takes it.
    format: one of `READERS`. By default the files tell.
    **options: arguments of the reader, such as `leave_out` of `load_zarr`.

  Returns:
    A data set of episodes; see the reader of the format.

  Raises:
    ValueError: if the format is not known, if its reader has no such option, or
      for the reasons that the reader has.
  """
  # pylint: disable=redefined-builtin
  format = format or find_format(path)
  if format is None:
    local = files.expand_local(path, 'A data set of another format')
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
  return READERS[format](path, **options)


def option_names(format: str) -> List[str]:  # pylint: disable=redefined-builtin
  """Returns the names of the options that the reader of a format has."""
  return list(inspect.signature(READERS[format]).parameters)[1:]
