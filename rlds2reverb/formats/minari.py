"""Minari data sets. Their HDF5 files have a group for each episode:

    episode_0/observations  [T + 1, ...], or a group of them (Dict, Tuple)
              actions       [T, ...], or a group of them
              rewards, terminations, truncations  [T]
              infos         a group; [T + 1, ...], the first of `reset`

The format is that of minari.farama.org, as Minari 0.5.4 writes it. It is read
without Minari, which needs another version of NumPy than TensorFlow does. Those
in Arrow and parquet are in `minari_arrow`.
"""

import json
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from absl import logging
import gin
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import other_formats
from rlds2reverb.datasets import python_packs
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import minari_arrow

_FILES = (os.path.join('data', 'main_data.hdf5'), 'main_data.hdf5')
_METADATA_FILE = minari_arrow.METADATA_FILE
_EPISODE = re.compile(r'episode_(\d+)')
_FIELDS = minari_arrow.FIELDS
_TERMINATIONS = minari_arrow.TERMINATIONS
_TRUNCATIONS = 'truncations'
_USED = (*_FIELDS.values(), _TERMINATIONS, _TRUNCATIONS)
_STRING = tf.TensorSpec([], tf.string)


@gin.configurable(module='rlds2reverb')
def load_minari(name_or_directory: files.PathLike) -> tf.data.Dataset:
  """Reads the episodes of a Minari data set, in HDF5, Arrow or parquet.

  Args:
    name_or_directory: the directory of a data set, or its `main_data.hdf5`, on
      the local disk; or the name of a data set that Minari has downloaded, for
      example `D4RL/door/human-v2`. A name is looked up where Minari keeps its
      data sets: in `$MINARI_DATASETS_PATH`, or else in `~/.minari/datasets`.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, their
    steps stacked `[T + 1, ...]`. The step fields `observation`, `action` and
    `reward` have the dtypes of their columns, and `discount` is float32. Every
    other column with a row for each step or transition becomes a step field of
    its name. Images in JPEG stay encoded, for `decode_images`. An episode that
    is terminated and truncated at once is terminal.

  Raises:
    ValueError: if there is no such data set, if its file is not a whole one
      with Minari's episodes, if a part of it is in another file, or if the
      first episode lacks a column.
    InvalidArgumentError: while iterating, if an episode does not have the
      columns of the first, or as many rows as they need.
  """
  if not isinstance(name_or_directory, (str, os.PathLike)):
    raise ValueError(
        'load_minari takes the directory or the name of a Minari data set, but'
        f' has been given a {type(name_or_directory).__name__}. Pass a dict of'
        ' arrays to from_flat_arrays.'
    )
  path = _find_path(name_or_directory)
  folder = minari_arrow.find_folder(path)
  if folder is not None:
    return minari_arrow.load(folder)
  path = _find_file(path)
  group_names = hdf5.names_in(path)
  if not is_minari(group_names):
    raise ValueError(
        f'{path} is not a Minari data set: it has {group_names}, and not only'
        f' episodes such as episode_0.{other_formats.hint(path)}'
    )
  return _read_episodes(path, group_names)


def is_minari(names: Iterable[str]) -> bool:
  """Returns whether all names at the top of an HDF5 file are of episodes."""
  return all(map(_EPISODE.fullmatch, names))


def _find_path(name_or_directory: files.PathLike) -> str:
  """Returns the path of what has been given by its path or by its name."""
  path = files.expand_local(name_or_directory, 'A Minari data set')
  if not os.path.exists(path):
    by_name = _path_of_name(os.fspath(name_or_directory))
    if by_name is None or not os.path.exists(by_name):
      raise ValueError(
          f'There is no Minari data set {path}'
          + (f', and none at {by_name}.' if by_name else '.')
      )
    path = by_name
  return path


def _find_file(path: str) -> str:
  """Returns the path of the HDF5 file of a Minari data set."""
  for candidate in path, *(os.path.join(path, name) for name in _FILES):
    if os.path.isfile(candidate):
      return candidate
  raise ValueError(
      f'There is no HDF5 file in {path}: a Minari data set has one of {_FILES}.'
      f'{other_formats.hint(path)}'
  )


def _path_of_name(name: str) -> Optional[str]:
  """Returns where Minari keeps the data set of a name."""
  if name.startswith('~') or os.path.isabs(name):
    return None
  root = os.environ.get('MINARI_DATASETS_PATH')
  root = root or os.path.join('~', '.minari', 'datasets')
  return os.path.join(files.expand(root), name)


def _read_episodes(path: str, group_names: Iterable[str]) -> tf.data.Dataset:
  """Returns the RLDS data set of the episodes in a file."""
  groups = sorted(group_names, key=_episode_id)
  with h5py.File(path, 'r') as file:
    first = file[groups[0]]
    names = _names(first)
    images = _image_columns(os.path.dirname(path))

    def row_spec(name):
      # Where all JPEGs of an episode have as many bytes, Minari has stored them
      # as one array.
      if name in images and first[name].ndim == 2:
        return tf.TensorSpec([], tf.string)
      return columns_lib.row_spec(first[name])

    spec = tf.nest.map_structure(row_spec, names)
    _read(first, names, spec)
  return python_packs.to_episodes(
      lambda: _packs(path, groups, names, spec), spec, len(groups)
  )


def _episode_id(group: str) -> int:
  return int(_EPISODE.fullmatch(group).group(1))


def _names(group: h5py.Group) -> Dict[str, Any]:
  """Returns the fields of a step; every leaf is the name of its column."""
  columns = columns_lib.leaves(group)
  names = {
      field: columns_lib.below(name, columns) for field, name in _FIELDS.items()
  }
  missing = [_FIELDS[field] for field, found in names.items() if not found]
  missing += [name for name in [_TERMINATIONS] if name not in columns]
  if missing:
    raise ValueError(
        f'The episode {group.name} of {group.file.filename} has no'
        f' {", ".join(missing)}. It has {sorted(columns)}.'
    )
  length = len(columns[_TERMINATIONS])
  kept, left_out = [], []
  for name, column in columns.items():
    if name.split('/')[0] not in _USED:
      fits = columns_lib.is_readable(column) and (
          len(column) in _num_rows(name, length)
      )
      (kept if fits else left_out).append(name)
  if left_out:
    logging.warning(
        'Left out: columns without numbers or strings for each step: %s.',
        ', '.join(left_out),
    )
  tops = dict.fromkeys(name.split('/')[0] for name in kept)
  return {**names, **{top: columns_lib.below(top, kept) for top in tops}}


def _num_rows(name: str, length: int) -> Tuple[int, ...]:
  """Returns the numbers of rows a column may have for `length` transitions."""
  field = name.split('/')[0]
  if field == _FIELDS[rlds.OBSERVATION]:
    return (length + 1,)
  return (length,) if field in _USED else (length, length + 1)


def _image_columns(directory: str) -> Set[str]:
  """Returns the columns that hold images, according to the metadata."""
  path = os.path.join(directory, _METADATA_FILE)
  if not files.exists(path):
    return set()
  with files.open_text(path) as f:
    metadata = json.load(f)
  found = set()
  for column, key in minari_arrow.SPACES.items():
    if key in metadata:
      found |= _image_boxes(json.loads(metadata[key]), column)
  return found


def _image_boxes(space: Dict[str, Any], name: str) -> Set[str]:
  """Returns the columns of `space`, which is at `name`, that are images."""
  below = space.get('subspaces')
  if below is None:
    is_image = space['type'] == 'Box' and (
        space['dtype'] == 'uint8' and len(space['shape']) > 1
    )
    return {name} if is_image else set()
  if isinstance(below, list):
    below = {f'_index_{index}': one for index, one in enumerate(below)}
  return set().union(
      *(_image_boxes(one, f'{name}/{key}') for key, one in below.items())
  )


def _packs(
    path: str, groups: List[str], names: Any, spec: Any
) -> Iterator[python_packs.PythonPack]:
  """Reads each episode as a pack of its own."""
  # Larger packs would gain little: opening the columns takes the most time.
  with h5py.File(path, 'r') as file:
    for group in groups:
      steps, is_terminal = _read(file[group], names, spec)
      yield python_packs.PythonPack(
          steps,
          np.array([len(steps[rlds.REWARD])]),
          np.array([is_terminal]),
          {python_packs.EPISODE_ID: np.array([_episode_id(group)])},
      )


def _read(group: h5py.Group, names: Any, spec: Any) -> Tuple[Any, bool]:
  """Reads an episode's steps `[T + 1, ...]`, and whether it is terminal."""
  terminations = group[_TERMINATIONS][:].astype(bool)
  length = len(terminations)
  if terminations[:-1].any():
    raise ValueError(
        f'{group.name} has a termination in row {terminations.argmax()}, but'
        f' {length} rows. A termination must be in the last row.'
    )

  def read(name, row_spec):
    if name not in group:
      raise ValueError(
          f'{group.name} has no {name}, which the first episode has.'
      )
    column = group[name]
    if len(column) not in _num_rows(name, length):
      raise ValueError(
          f'{group.name}/{name} has {len(column)} rows, but {_TERMINATIONS} has'
          f' {length}: expected {_num_rows(name, length)}.'
      )
    if row_spec not in (columns_lib.row_spec(column), _STRING):
      raise ValueError(
          f'The rows of {group.name}/{name} are {column.dtype}'
          f' {column.shape[1:]}, but those of the first episode are'
          f' {row_spec.dtype.name} {row_spec.shape}.'
      )
    steps = columns_lib.zeros(length + 1, row_spec)
    steps[: len(column)] = columns_lib.read(column, slice(None), row_spec)
    return steps

  steps = tf.nest.map_structure(read, names, spec)
  return steps, bool(terminations[-1:].any())
