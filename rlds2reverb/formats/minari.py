"""Minari data sets, in HDF5, Arrow or parquet.

    main_data.hdf5    a group for each episode, `episode_0` and so on
    data/0            Arrow and parquet: a folder for each episode, with T + 1
                      rows in part-0.arrow or part-0.parquet; the last row has
                      the last observation and infos, and is padded
    metadata.json     the spaces of observations and actions, the format

    observations      [T + 1, ...], or nested groups (Dict, Tuple)
    actions           [T, ...], or nested groups
    rewards, terminations, truncations  [T]
    infos             a group; [T + 1, ...], the first row is from `reset`

minari.farama.org documents the format, as of version 0.5.4. Minari itself is
not used, because it requires another version of NumPy than TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator
import glob
import os
from typing import Any

from etils import epy
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import downloads
from rlds2reverb.formats import hdf5_files
from rlds2reverb.formats import python_episodes

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import pyarrow as pa

_FILES = (os.path.join('data', 'main_data.hdf5'), 'main_data.hdf5')
_SPACES = {'observations': 'observation_space', 'actions': 'action_space'}
_TERMINATIONS = 'terminations'
_INFOS = 'infos'
_TEXT = tf.TensorSpec([], tf.string)
_LAYOUT = hdf5_files.GroupLayout(
    'episode',
    columns_lib.NAMES,
    _TERMINATIONS,
    unused=(_TERMINATIONS, 'truncations'),
)


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_minari(name_or_directory: files.PathLike) -> tf.data.Dataset:
  """Reads the episodes of a Minari data set, in HDF5, Arrow or parquet.

  Args:
    name_or_directory: the local directory of a data set, or its
      `main_data.hdf5`; or the name of a downloaded data set, for example
      `D4RL/door/human-v2`, in `$MINARI_DATASETS_PATH` or else in
      `~/.minari/datasets`.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, with
    stacked steps `[T + 1, ...]`. The step fields `observation`, `action` and
    `reward` have the dtypes of their columns, and `discount` is float32. Every
    other column with a row for each step or transition becomes a step field of
    the same name. JPEG images stay encoded, for `decode_images`. An episode
    that is both terminated and truncated is terminal.

  Raises:
    ValueError: if the data set does not exist, is incomplete, or has parts in
      other files; or if the first episode lacks a column.
    InvalidArgumentError: while iterating, if the columns of an episode differ
      from the first episode, or have wrong numbers of rows.
  """
  root = os.environ.get('MINARI_DATASETS_PATH') or '~/.minari/datasets'
  path = downloads.find(name_or_directory, 'Minari', root)
  file = next(
      filter(os.path.isfile, (os.path.join(path, name) for name in _FILES)),
      path,
  )
  is_file = os.path.isfile(file)
  folders = [path, os.path.join(path, 'data')]
  for folder in [os.path.dirname(file)] if is_file else folders:
    data_format, spaces = _read_metadata(folder)
    if data_format in ('arrow', 'parquet'):
      return _load_tables(folder, data_format, spaces)
  if not is_file:
    raise ValueError(
        f'{path} is not a Minari data set: it must contain one of {_FILES}, or'
        ' a metadata.json whose data_format is arrow or parquet.'
    )
  names = hdf5_files.check_file(file)
  groups = _LAYOUT.numbers(names)
  if len(groups) < len(names):
    raise ValueError(
        f'{file} is not a Minari data set: it must contain only episodes such'
        f' as episode_0, but has {names}.'
    )

  def prepare(place: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns of an episode, with JPEG images as strings."""
    columns_lib.check_has(place, [_TERMINATIONS], columns)
    early = np.flatnonzero(columns[_TERMINATIONS][:-1])
    if len(early):
      raise ValueError(
          f'{place} has a termination in row {early[0]} of'
          f' {len(columns[_TERMINATIONS])}. A termination must be in the last'
          ' row.'
      )
    for name, column in columns.items():
      shape = spaces.get(name, {}).get('shape', ())
      # If all JPEG images of an episode have the same number of bytes, Minari
      # stores them as one array.
      if len(shape) > 1 and column.dtype == np.uint8 and column.ndim == 2:
        columns[name] = columns_lib.read(column, slice(None), _TEXT)
    return columns

  return hdf5_files.read_groups(file, _LAYOUT, groups, prepare=prepare)


def _read_metadata(folder: str) -> tuple[str, dict[str, Any]]:
  """Returns the format of a data set, and the spaces of its columns."""
  path = os.path.join(folder, 'metadata.json')
  if not files.exists(path):
    return '', {}
  metadata = json_files.read_json_object(path)
  spaces: dict[str, Any] = {}
  for column, key in _SPACES.items():
    if metadata.get(key) is not None:
      # A space is JSON in a string.
      text = json_files.get_json_value(metadata, key, str, path)
      place = f'{key!r} of {path}'
      spaces |= _leaves(
          json_files.parse_json_object(text, place), column, place
      )
  return (
      json_files.get_json_value(metadata, 'data_format', str, path, ''),
      spaces,
  )


def _leaves(
    space: dict[str, Any], name: str, place: str
) -> dict[str, dict[str, Any]]:
  """Returns the leaves of a space, whose column is `name`, by column."""
  if not isinstance(space, dict):
    raise ValueError(f'{place} must have an object for {name}, not {space!r}.')
  below = space.get('subspaces')
  if below is None:
    return {name: space}
  if isinstance(below, list):
    below = {f'_index_{index}': part for index, part in enumerate(below)}
  if not isinstance(below, dict):
    raise ValueError(f'{place} must have spaces for {name}, not {below!r}.')
  leaves: dict[str, Any] = {}
  for key, item in below.items():
    leaves |= _leaves(item, f'{name}/{key}', place)
  return leaves


def _load_tables(
    folder: str, data_format: str, spaces: dict[str, Any]
) -> tf.data.Dataset:
  """Reads the episodes in a folder of Arrow or parquet files."""
  ids = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
  if not ids:
    raise ValueError(f'There is no episode in {folder}.')
  skipped: set[str] = set()

  def read_one(index: int) -> python_episodes.PythonEpisode:
    paths = sorted(glob.glob(f'{glob.escape(folder)}/{index}/*.{data_format}'))
    if not paths:
      raise ValueError(f'There is no file *.{data_format} in {folder}/{index}.')
    table = pa.concat_tables(map(arrow.read_table, paths))
    return _episode(table, spaces, index, skipped)

  def place_of(index: int) -> tuple[str, str]:
    return os.path.join(folder, str(index)), ''

  dataset = python_episodes.to_dataset(
      lambda: python_episodes.attempt_each(read_one, ids, place_of), len(ids)
  )
  description = 'infos without numbers or strings for each step'
  columns_lib.warn_skipped(description, sorted(skipped))
  return dataset


def _episode(
    table: pa.Table, spaces: dict[str, Any], index: int, skipped: set[str]
) -> python_episodes.PythonEpisode:
  """Returns an episode; adds the names of unreadable infos to `skipped`."""
  required = (*columns_lib.NAMES.values(), _TERMINATIONS)
  columns_lib.check_has(f'Episode {index}', required, table.column_names)
  columns = {
      name: pa.concat_arrays(table[name].chunks) for name in table.column_names
  }
  steps = {}
  for field, name in columns_lib.NAMES.items():
    rows = len(table) - (field != rlds.OBSERVATION)
    for below in columns_lib.below(name, spaces) or [name]:
      column = columns[name]
      for key in below.split('/')[1:]:
        column = column.field(key.removeprefix('_index_'))
      is_struct = pa.types.is_struct(column.type)
      if is_struct and column.type.get_field_index('bytes') < 0:  # No image.
        raise ValueError(
            f'{below} of episode {index} has the parts'
            f' {[part.name for part in column.type]}, but metadata.json has no'
            f' {_SPACES.get(name)!r} that describes them.'
        )
      shape = spaces.get(below, {}).get('shape')
      steps[field + below[len(name) :]] = arrow.to_array(
          column.slice(0, rows), shape, below
      )
  infos = _infos(columns[_INFOS], _INFOS) if _INFOS in columns else ()
  for name, column, shape in infos:
    try:
      steps[name] = arrow.to_array(column, shape, name)
    except ValueError:
      skipped.add(name)
  terminations = columns[_TERMINATIONS].to_numpy(zero_copy_only=False)
  return python_episodes.make_episode(
      columns_lib.nest(steps), index, terminations[: len(table) - 1]
  )


def _infos(column: pa.StructArray, name: str) -> Iterator[tuple[str, Any, Any]]:
  """Yields the name of each info, its column, and its shape or None."""
  for field in column.type:
    below = f'{name}/{field.name}'
    if pa.types.is_struct(field.type):
      yield from _infos(column.field(field.name), below)
      continue
    shape = (field.metadata or {}).get(b'shape')
    if shape is not None:
      shape = [int(size) for size in shape.split(b',') if size]
    yield below, column.field(field.name), shape
