"""Finds the format of a data set by its files, also for hints in errors."""

import json
import os
import re
from typing import Collection
import zipfile

import h5py

from rlds2reverb.datasets import files

_HINTS = {
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
# What tells a folder of a format, in the order in which it is looked for.
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
}
_HDF5_SUFFIXES = ('.hdf5', '.h5')
_EPISODE = re.compile(r'episode_\d+')
_DEMO = re.compile(r'demo_\d+')
_TRAJECTORY = re.compile(r'traj_\d+')


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
      return f' It holds {_described(found)}.'
    if not found and files.is_folder(path):
      for name in files.names_in(path):
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
  if path.endswith(_HDF5_SUFFIXES):
    with h5py.File(path, 'r') as file:
      return _format_of_hdf5(file)
  return ''


def _described(found: str) -> str:
  reader = 'load_episodes' if found == 'rlds' else 'formats.load'
  return f'{_HINTS[found]}, which {reader} reads'


def _format_of_folder(path: str) -> str:
  """Returns the format of a folder by the names of its files."""
  for name, found in _FOLDERS.items():
    if files.exists(os.path.join(path, name)):
      return found
  for folder in path, os.path.join(path, 'data'):
    metadata = os.path.join(folder, 'metadata.json')
    if files.exists(metadata):
      with files.open_text(metadata) as f:
        if 'minari_version' in json.load(f):
          return 'minari'
  return 'rlds' if files.exists(os.path.join(path, 'dataset_info.json')) else ''


def _format_of_hdf5(file: h5py.File) -> str:
  """Returns the format of an HDF5 file by the names at its top."""
  names = list(file)
  if names and all(map(_EPISODE.fullmatch, names)):
    return 'minari'
  # A link to another file is not followed.
  is_here = isinstance(file.get('data', getlink=True), h5py.HardLink)
  if is_here and isinstance(file['data'], h5py.Group):
    if any(map(_DEMO.fullmatch, file['data'])):
      return 'robomimic'
  if {'num_episodes', 'version', 'columns'} <= set(names):
    return 'd3rlpy'
  if any(map(_TRAJECTORY.fullmatch, names)):
    # TorchRL's buffers say how many transitions they hold.
    return 'torchrl' if '_len' in names else 'maniskill'
  if {'observations', 'actions', 'rewards'} & set(names):
    return 'hdf5'
  return ''
