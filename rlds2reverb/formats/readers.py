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
from rlds2reverb.formats import rllib
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
    'rllib': rllib.load_rllib,
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

# Formats whose readers take the name of a data set, too.
_WITH_NAMES = ('lerobot', 'minari')
# The formats that the files of another one may be, too: RLlib writes tables.
_ALSO = {'rllib': ('rllib', 'parquet'), 'parquet': ('parquet', 'rllib')}
# Formats that cannot be recognized by their files.
_FLAT = ('hdf5', 'npz')


def find_format(path: files.PathLike) -> Optional[str]:
  """Returns the name of the format of the data at a path, or None.

  A file whose content has no known names has the format of its extension:
  `column_names` says what its columns are called. None says that it is RLDS, or
  that its files do not tell.
  """
  path = files.expand(path)
  found = other_formats.find(path)
  if not found and os.path.isfile(path):
    found = other_formats.by_extension(path)
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
  # The readers say what is missing, but a wrong option would come first.
  if not files.exists(local) and (
      format is None
      or format in READERS
      and format not in _WITH_NAMES
      and not options.keys() <= {*option_names(READERS[format])}
  ):
    raise ValueError(_missing(os.fspath(data), local, format))
  same = _FLAT if format in _FLAT else _ALSO.get(format or '', (format or '',))
  if format is None:
    format = find_format(data)
    # The names of the columns are given, so they are not those of RLlib.
    if format == 'rllib' and not options.keys() <= {
        *option_names(READERS[format])
    }:
      format = 'parquet'
  elif format in READERS and format not in _FLAT:
    # Anything with the columns of flat arrays can be flat arrays.
    hint = other_formats.hint(local, but=same)
    if hint.startswith(other_formats.IT_HOLDS):
      raise ValueError(f'{local} is not of the format {format}.{hint}')
  if format is None:
    raise ValueError(
        f'The format of {local} is not known. It must be one of'
        f' {", ".join(READERS)}: formats.load({os.fspath(data)!r},'
        f" 'hdf5').{other_formats.hint(local)}"
    )
  checks.check_choice('The format of files', format, READERS)
  reader = READERS[format]
  try:
    _check_options(reader, format, options)
    # A call by gin would add lines of its own to errors.
    bound = gin.get_bindings(reader)
    return inspect.unwrap(reader)(data, **{**bound, **options})
  except ValueError as e:
    same = _FLAT if format in _FLAT else (format,)
    if format == 'rllib':
      same = _ALSO[format]
    hint = other_formats.hint(local, but=same)
    if not hint:
      raise
    raise ValueError(f'{e}{hint}') from e


def _missing(data: str, local: str, format: Optional[str]) -> str:
  """Returns the sentence that says that a path does not exist."""
  # pylint: disable=redefined-builtin
  message = f'There is no file or folder {local}.{files.hint(local)}'
  if format is None and not data.startswith(('/', '~', '.')):
    message += (
        ' If it is the name of a data set, give its format:'
        f" formats.load({data!r}, 'lerobot')."
    )
  return message


def _check_options(reader, name: str, options: Mapping[str, Any]) -> None:
  for option in options:
    known = option_names(reader)
    checks.check_known(f'The reader of {name}', 'option', option, known)


def option_names(reader: Callable[..., tf.data.Dataset]) -> List[str]:
  """Returns the names of the options that a reader has."""
  return list(inspect.signature(reader).parameters)[1:]
