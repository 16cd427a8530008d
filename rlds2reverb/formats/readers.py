"""Loads data of any format, which is given or detected."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import importlib
import inspect
import os
from typing import Any

import gin
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.episodes import checks
from rlds2reverb.formats import flat_arrays
from rlds2reverb.formats import python_dicts
from rlds2reverb.formats import ted


def _import_reader(path: str) -> Callable[..., tf.data.Dataset]:
  module, name = path.split('.')
  return getattr(importlib.import_module(f'rlds2reverb.formats.{module}'), name)


# The readers of files, by format. Gin uses the names of the functions.
READERS: dict[str, Callable[..., tf.data.Dataset]] = {
    name: _import_reader(spec.reader)
    for name, spec in sorted(format_registry.FORMATS.items())
    if spec.reader
}

# The readers of data in memory, by format; see `load`.
IN_MEMORY: dict[str, Callable[..., tf.data.Dataset]] = {
    'arrays': flat_arrays.from_flat_arrays,
    'episodes': python_dicts.from_episodes,
    'ted': ted.from_ted,
}


def find_format(path: files.PathLike) -> str | None:
  """Returns the name of the format of the data at a path, or None.

  If the content of a file is not recognized, its extension determines the
  format, so that `column_names` can specify its columns. The result is None for
  RLDS and for unknown formats.
  """
  path = files.expand(path)
  name = format_registry.detect(path)
  if not name and os.path.isfile(path):
    name = format_registry.detect_by_extension(path)
  return name if name in READERS else None


def load(
    data: (
        files.PathLike
        | Mapping[str, Any]
        | Iterable[Mapping[str, Any]]
        | Callable[[], Iterable[Mapping[str, Any]]]
    ),
    format: str | None = None,
    **options: Any,
) -> tf.data.Dataset:
  """Loads a data set of any format, from disk or from memory.

  Args:
    data: a local file or folder, or the name of a data set, depending on the
      format. Or data in memory, which must not change while the data set is
      read: a dict of flat arrays or an open HDF5 file with flat arrays; an
      iterable of episodes, or a function that returns an iterable.
    format: the name of a file format, one of `READERS`; or of a format in
      memory: `"arrays"`, `"episodes"` or `"ted"`. By default it is detected. In
      memory, the default is `"arrays"` for a dict and `"episodes"` otherwise.
    **options: arguments of the reader, such as `exclude` of `load_zarr`.

  Returns:
    A data set of episodes; see the reader of the format.

  Raises:
    ValueError: if the format is unknown or differs from the format of the
      files, or if the reader does not have an option; see also the reader. The
      message contains the actual format of the files.
  """
  if not isinstance(data, (str, os.PathLike)):
    format = format or ('arrays' if isinstance(data, Mapping) else 'episodes')
    checks.check_choice('The format of data in memory', format, IN_MEMORY)
    _check_options(IN_MEMORY[format], format, options)
    return IN_MEMORY[format](data, **options)
  local = files.expand_local(data, 'A data set of another format')
  reader = READERS.get(format or '')
  # The readers report missing files, but only after wrong options.
  if not files.exists(local) and (
      format is None
      or reader
      and not format_registry.FORMATS[format].has_names
      and not options.keys() <= {*option_names(reader)}
  ):
    raise ValueError(_missing(os.fspath(data), local, format))
  if format is None:
    format = find_format(data)
    # With options of the parquet reader, these are not tables of RLlib.
    if format == 'rllib' and not options.keys() <= {
        *option_names(READERS[format])
    }:
      format = 'parquet'
  elif reader and not format_registry.FORMATS[format].is_generic:
    accepted = format, *format_registry.FORMATS[format].related
    hint = format_registry.hint(local, accepted, search_folder=False)
    if hint:
      raise ValueError(f'{local} is not of the format {format}.{hint}')
  if format is None:
    raise ValueError(
        f'The format of {local} is not known. It must be one of'
        f' {", ".join(READERS)}: formats.load({os.fspath(data)!r},'
        f" format='hdf5').{format_registry.hint(local)}"
    )
  checks.check_choice('The format of files', format, READERS)
  reader = READERS[format]
  try:
    _check_options(reader, format, options)
    # A call through gin would append lines to errors.
    bound = gin.get_bindings(reader)
    return inspect.unwrap(reader)(data, **{**bound, **options})
  except ValueError as e:
    same_reader = [name for name, other in READERS.items() if other is reader]
    hint = format_registry.hint(local, same_reader)
    if not hint or hint in str(e):
      raise
    raise ValueError(f'{e}{hint}') from e


def _missing(data: str, local: str, format: str | None) -> str:
  """Returns an error message for a path that does not exist."""
  message = f'There is no file or folder {local}.{files.hint(local)}'
  if format is None and not data.startswith(('/', '~', '.')):
    message += (
        ' If it is the name of a data set, specify its format:'
        f" formats.load({data!r}, format='lerobot')."
    )
  return message


def _check_options(reader, name: str, options: Mapping[str, Any]) -> None:
  for option in options:
    names = option_names(reader)
    checks.check_known(f'The reader of {name}', 'option', option, names)


def option_names(reader: Callable[..., tf.data.Dataset]) -> list[str]:
  """Returns the names of the options of a reader."""
  return list(inspect.signature(reader).parameters)[1:]
