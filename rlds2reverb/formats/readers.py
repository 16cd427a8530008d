"""Reads data of any format, by the name of the format or by its files."""

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


def _import_loader(path: str) -> Callable[..., tf.data.Dataset]:
  module, name = path.split('.')
  return getattr(importlib.import_module(f'rlds2reverb.formats.{module}'), name)


# The loaders of paths, by the names of their formats. The name of a loader in
# gin is the name of its function.
READERS: dict[str, Callable[..., tf.data.Dataset]] = {
    name: _import_loader(spec.loader)
    for name, spec in sorted(format_registry.FORMATS.items())
    if spec.loader
}

# The loaders of data in memory; see `load`.
IN_MEMORY: dict[str, Callable[..., tf.data.Dataset]] = {
    'arrays': flat_arrays.from_flat_arrays,
    'episodes': python_dicts.from_episodes,
    'ted': ted.from_ted,
}


def find_format(path: files.PathLike) -> str | None:
  """Returns the name of the format of the data at a path, or None.

  A file whose content has no known names has the format of its extension; its
  columns may be named by `column_names`. None is returned for RLDS, and if the
  files do not identify the format.
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
  """Reads a data set that is in any of the formats, on disk or in memory.

  Args:
    data: a file or a folder on the local disk, or a name, as the reader of the
      format takes it. Or data in memory, which must not change while the data
      set is read: a dict of flat arrays or an open HDF5 file with these; an
      iterable of episodes, or a function that returns one.
    format: the name of a format of files, one of `READERS`; or of data in
      memory: `"arrays"`, `"episodes"` or `"ted"`. By default it is detected. In
      memory, a dict has the format `"arrays"`, and other data `"episodes"`.
    **options: arguments of the reader, such as `leave_out` of `load_zarr`.

  Returns:
    A data set of episodes; see the reader of the format.

  Raises:
    ValueError: if the format is not known or differs from the format of the
      files, if its reader has no such option, or for the reasons of the reader.
      If the files have another format, the error names it.
  """
  # pylint: disable=redefined-builtin
  if not isinstance(data, (str, os.PathLike)):
    format = format or ('arrays' if isinstance(data, Mapping) else 'episodes')
    checks.check_choice('The format of data in memory', format, IN_MEMORY)
    _check_options(IN_MEMORY[format], format, options)
    return IN_MEMORY[format](data, **options)
  local = files.expand_local(data, 'A data set of another format')
  reader = READERS.get(format or '')
  # The readers report missing files, but a wrong option would come first.
  if not files.exists(local) and (
      format is None
      or reader
      and not format_registry.FORMATS[format].has_names
      and not options.keys() <= {*option_names(reader)}
  ):
    raise ValueError(_missing(os.fspath(data), local, format))
  if format is None:
    format = find_format(data)
    # If there are names of columns, these are not the columns of RLlib.
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
        f" 'hdf5').{format_registry.hint(local)}"
    )
  checks.check_choice('The format of files', format, READERS)
  reader = READERS[format]
  try:
    _check_options(reader, format, options)
    # A call by gin would add lines to errors.
    bound = gin.get_bindings(reader)
    return inspect.unwrap(reader)(data, **{**bound, **options})
  except ValueError as e:
    same_reader = [name for name, other in READERS.items() if other is reader]
    hint = format_registry.hint(local, same_reader)
    if not hint or hint in str(e):
      raise
    raise ValueError(f'{e}{hint}') from e


def _missing(data: str, local: str, format: str | None) -> str:
  """Returns a sentence about a path that does not exist."""
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
    names = option_names(reader)
    checks.check_known(f'The reader of {name}', 'option', option, names)


def option_names(reader: Callable[..., tf.data.Dataset]) -> list[str]:
  """Returns the names of the options of a reader."""
  return list(inspect.signature(reader).parameters)[1:]
