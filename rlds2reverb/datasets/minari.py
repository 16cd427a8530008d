"""Minari data sets in HDF5: a group an episode.

    episode_0/observations  [T + 1, ...], or a group of them (Dict, Tuple)
              actions       [T, ...], or a group of them
              rewards, terminations, truncations  [T]
              infos         a group; [T + 1, ...], the first of `reset`

The format is that of minari.farama.org (read with Minari 0.5.4). It is read
without Minari, which needs another NumPy than TensorFlow.
"""

import json
import os
import re
from typing import Any, Dict, Iterator, List, Set, Tuple

from absl import logging
import h5py
import numpy as np
import rlds
import tensorflow as tf

from rlds2reverb.datasets import columns as columns_lib
from rlds2reverb.datasets import files
from rlds2reverb.episodes import packs

_FILES = (os.path.join('data', 'main_data.hdf5'), 'main_data.hdf5')
_METADATA_FILE = 'metadata.json'
_EPISODE = re.compile(r'episode_(\d+)')
_FIELDS = {
    rlds.OBSERVATION: 'observations',
    rlds.ACTION: 'actions',
    rlds.REWARD: 'rewards',
}
_TERMINATIONS = 'terminations'
_TRUNCATIONS = 'truncations'
_USED = (*_FIELDS.values(), _TERMINATIONS, _TRUNCATIONS)
_STRING = tf.TensorSpec([], tf.string)


def find_file(path: files.PathLike) -> str:
  """Returns the path of the HDF5 file in a Minari data set, or of a file.

  Args:
    path: of the file, or of the folder of a Minari data set.

  Raises:
    ValueError: if there is none, or it is at a URL.
  """
  path = files.expand_local(path, 'An HDF5 file')
  for candidate in path, *(os.path.join(path, name) for name in _FILES):
    if os.path.isfile(candidate):
      return candidate
  if os.path.isdir(path):
    raise ValueError(
        f'There is no HDF5 file in {path}: a Minari data set has one of'
        f' {_FILES}.'
    )
  raise ValueError(f'There is no HDF5 file {path}.')


def is_minari(path: str) -> bool:
  """Returns whether all that an HDF5 file has are Minari's episodes.

  Raises:
    ValueError: if it is not a whole HDF5 file, or there is nothing in it.
  """
  try:
    with h5py.File(path, 'r') as file:
      names = list(file)
  except PermissionError:
    raise
  except OSError as e:
    raise ValueError(f'{path} is not a whole HDF5 file: {e}') from e
  if not names:
    raise ValueError(f'{path} is an HDF5 file with nothing in it.')
  return all(map(_EPISODE.fullmatch, names))


def read_episodes(path: str) -> tf.data.Dataset:
  """Returns the RLDS data set of a Minari file; see `from_flat_arrays`."""
  with h5py.File(path, 'r') as file:
    groups = sorted(file, key=_episode_id)
    first = file[groups[0]]
    names = _names(first)
    images = _image_columns(os.path.dirname(path))

    def row_spec(name):
      # Where all JPEGs of an episode have as many bytes, they are one array.
      if name in images and first[name].ndim == 2:
        return tf.TensorSpec([], tf.string)
      return columns_lib.row_spec(first[name])

    spec = tf.nest.map_structure(row_spec, names)
    _read(first, names, spec)
  return packs.to_episodes(
      lambda: _packs(path, groups, names, spec), spec, len(groups)
  )


def _episode_id(group: str) -> int:
  return int(_EPISODE.fullmatch(group).group(1))


def _names(group: h5py.Group) -> Dict[str, Any]:
  """Returns the step's fields, every leaf the name of its column."""
  columns = columns_lib.leaves(group)
  names = {
      field: columns_lib.below(name, columns)
      for field, name in _FIELDS.items()
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
        'Left out: what does not have numbers or strings of each step: %s.',
        ', '.join(left_out),
    )
  tops = {name.split('/')[0] for name in kept}
  return {**names, **{top: columns_lib.below(top, kept) for top in tops}}


def _num_rows(name: str, length: int) -> Tuple[int, ...]:
  """Returns how many rows a column may have in an episode of T transitions."""
  field = name.split('/')[0]
  if field == _FIELDS[rlds.OBSERVATION]:
    return (length + 1,)
  return (length,) if field in _USED else (length, length + 1)


def _image_columns(directory: str) -> Set[str]:
  """Returns the columns whose spaces are images, as the metadata has them."""
  path = os.path.join(directory, _METADATA_FILE)
  if not files.exists(path):
    return set()
  with files.open_text(path) as f:
    metadata = json.load(f)
  found = set()
  for column, key in (
      (_FIELDS[rlds.OBSERVATION], 'observation_space'),
      (_FIELDS[rlds.ACTION], 'action_space'),
  ):
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
) -> Iterator[packs.Pack]:
  """Reads the episodes, one a pack: to open its columns costs the most."""
  with h5py.File(path, 'r') as file:
    for group in groups:
      steps, is_terminal = _read(file[group], names, spec)
      yield packs.Pack(
          steps,
          np.array([len(steps[rlds.REWARD])]),
          np.array([is_terminal]),
          np.array([_episode_id(group)]),
      )


def _read(group: h5py.Group, names: Any, spec: Any) -> Tuple[Any, bool]:
  """Reads an episode's steps `[T + 1, ...]`, and whether it is terminal."""
  terminations = group[_TERMINATIONS][:].astype(bool)
  length = len(terminations)
  if terminations[:-1].any():
    raise ValueError(
        f'{group.name} has a termination in row {terminations.argmax()}, but'
        f' {length} rows. An episode must end with it.'
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
