"""Finds the format of a data set by its files, also for hints in errors."""

import json
import os
import re
from typing import Collection, List
import zipfile

import h5py

from rlds2reverb.datasets import files

# What data of each format is.
FORMATS = {
    'calvin': 'a CALVIN data set',
    'd3rlpy': 'a replay buffer of d3rlpy',
    'hdf5': 'flat arrays',
    'imitation': 'trajectories of imitation',
    'lerobot': 'a LeRobot data set',
    'maniskill': 'trajectories of ManiSkill',
    'minari': 'a Minari data set',
    'npz': 'NumPy arrays',
    'parquet': 'tables of parquet',
    'rlds': 'an RLDS data set',
    'robomimic': 'a data set of robomimic',
    'torchrl': 'a storage of TorchRL',
    'zarr': 'a Zarr replay buffer',
}
# How a sentence begins that is about the path itself.
IT_HOLDS = ' It holds '

# A file that a folder of each format has, in the order in which they are looked
# for.
_FOLDERS = {
    'ep_start_end_ids.npy': 'calvin',
    'meta/info.json': 'lerobot',
    'state.json': 'imitation',
    'storage_metadata.json': 'torchrl',
    'storage/storage_metadata.json': 'torchrl',
    'meta/.zgroup': 'zarr',
    'meta/zarr.json': 'zarr',
    'main_data.hdf5': 'minari',
    'data/main_data.hdf5': 'minari',
    'metadata.json': 'minari',
    'data/metadata.json': 'minari',
    'dataset_info.json': 'rlds',
}
# What an HDF5 file of each format has, likewise; # is a number at the end.
_HDF5 = (
    ({'data/demo_#'}, 'robomimic'),
    ({'columns', 'num_episodes', 'version'}, 'd3rlpy'),
    # TorchRL's buffers say how many transitions they hold.
    ({'_len', 'traj_#'}, 'torchrl'),
    ({'traj_#'}, 'maniskill'),
    ({'observations'}, 'hdf5'),
    ({'actions'}, 'hdf5'),
    ({'rewards'}, 'hdf5'),
)


def hint(path: str, but: Collection[str] = ()) -> str:
  """Returns a sentence that names the reader for the data at a path.

  Args:
    path: a file or a folder, as `files.expand` returns it.
    but: formats, by their keys here, that are not named if the path itself has
      them.

  Returns:
    The sentence with a space before it, for the end of an error; or an empty
    string if the format is not known.
  """
  try:
    found = find(path)
    if found and found not in but:
      return f'{IT_HOLDS}{_described(found)}.'
    for name in () if found else files.names_in(path):
      found = find(os.path.join(path, name))
      if found:
        return f' {name} in it holds {_described(found)}.'
  except (OSError, ValueError):
    pass  # The caller is about to raise an error already.
  return ''


def find(path: str) -> str:
  """Returns the name of the format of the data at a path.

  Args:
    path: a file or a folder, as `files.expand` returns it.

  Returns:
    One of the names of `formats.readers.READERS`, or `rlds`; or an empty string
    if it is not known.

  Raises:
    OSError, ValueError: if a file that would tell is damaged.
  """
  if files.is_folder(path):
    return _format_of_folder(path)
  if files.is_url(path) or not os.path.isfile(path):
    return ''
  if path.endswith(('.parquet', '.zarr.zip')):
    return 'zarr' if path.endswith('.zip') else 'parquet'
  if path.endswith('.npz'):
    try:
      with zipfile.ZipFile(path) as file:
        return 'imitation' if 'indices.npy' in file.namelist() else 'npz'
    except zipfile.BadZipFile as e:
      raise ValueError(f'{path} is not a whole npz file: {e}.') from e
  if path.endswith(('.hdf5', '.h5')):
    with h5py.File(path, 'r') as file:
      names = {re.sub(r'\d+$', '#', name) for name in _names_in(file)}
    if names == {'episode_#'}:
      return 'minari'
    return next((found for has, found in _HDF5 if has <= names), '')
  return ''


def _described(found: str) -> str:
  reader = 'load_episodes' if found == 'rlds' else 'formats.load'
  return f'{FORMATS[found]}, which {reader} reads'


def _format_of_folder(path: str) -> str:
  """Returns the format of a folder by the names of its files."""
  for name, found in _FOLDERS.items():
    file = os.path.join(path, name)
    if not files.exists(file):
      continue
    if not name.endswith('metadata.json') or found != 'minari':
      return found
    with files.open_text(file) as f:
      if 'minari_version' in json.load(f):
        return found
  return ''


def _names_in(file: h5py.File) -> List[str]:
  """Returns the names at the top of an HDF5 file, and below `data`."""
  names = list(file)
  # A link to another file is not followed.
  is_here = isinstance(file.get('data', getlink=True), h5py.HardLink)
  if is_here and isinstance(file['data'], h5py.Group):
    names += [f'data/{name}' for name in file['data']]
  return names
