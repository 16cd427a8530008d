"""Minari data sets. Their HDF5 files have a group for each episode:

    episode_0/observations  [T + 1, ...], or a group of them (Dict, Tuple)
              actions       [T, ...], or a group of them
              rewards, terminations, truncations  [T]
              infos         a group; [T + 1, ...], the first of `reset`

The format is that of minari.farama.org, as Minari 0.5.4 writes it. Minari
itself is not used: it needs another version of NumPy than TensorFlow does.
`minari_arrow` reads data sets in Arrow and parquet.
"""

import json
import os
import re
from typing import Any, Dict, Set

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import downloads
from rlds2reverb.formats import hdf5
from rlds2reverb.formats import hdf5_groups
from rlds2reverb.formats import minari_arrow

_FILES = (os.path.join('data', 'main_data.hdf5'), 'main_data.hdf5')
_TERMINATIONS = minari_arrow.TERMINATIONS
_LAYOUT = hdf5_groups.GroupLayout(
    re.compile(r'episode_(\d+)'),
    columns_lib.NAMES,
    _TERMINATIONS,
    unused=(_TERMINATIONS, 'truncations'),
)


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
  root = os.environ.get('MINARI_DATASETS_PATH') or '~/.minari/datasets'
  path = downloads.find(name_or_directory, 'Minari', root)
  for folder in path, os.path.join(path, 'data'):
    metadata = _read_metadata(folder)
    if metadata.get('data_format') in minari_arrow.FORMATS:
      return minari_arrow.load(folder, metadata)
  candidates = (path, *(os.path.join(path, name) for name in _FILES))
  file = next(filter(os.path.isfile, candidates), None)
  if file is None:
    raise ValueError(
        f'There is no HDF5 file in {path}: a Minari data set has one of'
        f' {_FILES}.'
    )
  names = hdf5.names_in(file)
  if not all(map(_LAYOUT.group.fullmatch, names)):
    raise ValueError(
        f'{file} is not a Minari data set: it has {names}, and not only'
        f' episodes such as episode_0.'
    )
  metadata = _read_metadata(os.path.dirname(file))
  images: Set[str] = set()
  for column, key in minari_arrow.SPACES.items():
    if key in metadata:
      images |= _image_boxes(json.loads(metadata[key]), column)
  return hdf5_groups.load(
      file,
      _LAYOUT,
      _LAYOUT.numbers(names),
      prepare=lambda columns: _prepare(columns, images),
  )


def _read_metadata(folder: str) -> Dict[str, Any]:
  path = os.path.join(folder, 'metadata.json')
  if not files.exists(path):
    return {}
  with files.open_text(path) as f:
    return json.load(f)


def _prepare(columns: Dict[str, Any], images: Set[str]) -> Dict[str, Any]:
  """Returns the columns of an episode, with JPEGs as strings."""
  columns_lib.check_has('An episode', [_TERMINATIONS], columns)
  terminations = columns[_TERMINATIONS]
  early = np.flatnonzero(terminations[:-1])
  if len(early):
    raise ValueError(
        f'{os.path.dirname(terminations.name)} has a termination in row'
        f' {early[0]}, but {len(terminations)} rows. A termination must be in'
        ' the last row.'
    )
  # Where all JPEGs of an episode have as many bytes, Minari has stored them as
  # one array.
  text = tf.TensorSpec([], tf.string)
  return {
      name: columns_lib.read(column, slice(None), text)
      if name in images and column.ndim == 2
      else column
      for name, column in columns.items()
  }


def _image_boxes(space: Dict[str, Any], name: str) -> Set[str]:
  """Returns the columns of `space`, which is at `name`, that are images."""
  below = space.get('subspaces')
  if below is None:
    is_bytes = space['type'] == 'Box' and space['dtype'] == 'uint8'
    return {name} if is_bytes and len(space['shape']) > 1 else set()
  if isinstance(below, list):
    below = {f'_index_{index}': one for index, one in enumerate(below)}
  return set().union(
      *(_image_boxes(one, f'{name}/{key}') for key, one in below.items())
  )
