"""Finds the format of a data set by its files, also for hints in errors."""

import gzip
import os
import re
from typing import Collection, Iterator, List
import zipfile
import zlib

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
    'rllib': 'experience of RLlib',
    'robomimic': 'a data set of robomimic',
    'torchrl': 'a storage of TorchRL',
    'zarr': 'a Zarr replay buffer',
}
_PARQUET = '.parquet'
_EXTENSIONS = {
    '.hdf5': 'hdf5',
    '.h5': 'hdf5',
    '.npz': 'npz',
    _PARQUET: 'parquet',
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
# How the first line of a file of RLlib begins, and what such a file ends with.
_RLLIB = re.compile(rb'\s*\{\s*"type":\s*"(SampleBatch|MultiAgentBatch)"')
_RLLIB_FILES = ('.json', '.json.gz', '.zip')
# The columns of RLlib's tables: transitions, or episodes in msgpack.
_RLLIB_COLUMNS = {'obs', 'actions', 'eps_id'}
_RLLIB_EPISODES = ['item']
# RLlib writes <environment>/<run>/<file>. So many folders and files are looked
# at, as the first ones may be empty or damaged.
_MAX_LEVELS = 3
_MAX_LOOKED_AT = 20
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
  if path.endswith('.zarr.zip'):
    return 'zarr'
  if path.endswith(_PARQUET):
    return 'rllib' if _is_rllib(path) else 'parquet'
  if path.endswith('.npz'):
    try:
      with zipfile.ZipFile(path) as file:
        return 'imitation' if 'indices.npy' in file.namelist() else 'npz'
    except (RuntimeError, zipfile.BadZipFile) as e:
      files.check_not_pointer(path)
      raise ValueError(f'{path} is not a whole npz file: {e}.') from e
  if path.endswith(_RLLIB_FILES):
    return 'rllib' if _is_rllib(path) else ''
  if path.endswith(('.hdf5', '.h5')):
    try:
      with h5py.File(path, 'r') as file:
        names = {re.sub(r'\d+$', '#', name) for name in _names_in(file)}
    except PermissionError:
      raise
    except (KeyError, OSError, RuntimeError) as e:  # All are of h5py.
      files.check_not_pointer(path)
      raise ValueError(f'{path} is not a whole HDF5 file: {e}.') from e
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
    if 'minari_version' in files.read_json_object(file):
      return found
  # Hugging Face `datasets` writes `train-00000-of-00002.parquet`, and keeps
  # such files below `data` in a repository.
  for folder in (path, os.path.join(path, 'data')):
    tables = [n for n in files.names_in(folder) if n.endswith(_PARQUET)]
    if tables:
      paths = [os.path.join(folder, name) for name in tables[:_MAX_LOOKED_AT]]
      is_rllib = not files.is_url(folder) and any(map(_is_rllib, paths))
      return 'rllib' if is_rllib else 'parquet'
  if files.is_url(path):
    return ''
  return 'rllib' if any(map(_is_rllib, _files_below(path))) else ''


def _files_below(path: str) -> Iterator[str]:
  """Yields some files of RLlib's kinds in a folder, and in those in it."""
  folders = [path]
  for _ in range(_MAX_LEVELS):
    below: List[str] = []
    for folder in folders:
      paths = [os.path.join(folder, name) for name in files.names_in(folder)]
      found = [one for one in paths if one.endswith((*_RLLIB_FILES, _PARQUET))]
      yield from found[:_MAX_LOOKED_AT]
      below += [one for one in paths if os.path.isdir(one)][:_MAX_LOOKED_AT]
    folders = below[:_MAX_LOOKED_AT]


def _is_rllib(path: str) -> bool:
  """Returns whether a local file has what RLlib writes; False if damaged."""
  try:
    if path.endswith(_PARQUET):
      from pyarrow import parquet  # pylint: disable=g-import-not-at-top

      names = parquet.read_schema(path).names
      return names == _RLLIB_EPISODES or _RLLIB_COLUMNS <= {*names}
    if path.endswith('.zip'):
      with zipfile.ZipFile(path) as archive:
        members = [one for one in archive.namelist() if one.endswith('.json')]
        if not members:
          return False
        with archive.open(members[0]) as lines:
          return bool(_RLLIB.match(lines.read(64)))
    with gzip.open(path) if path.endswith('.gz') else open(path, 'rb') as lines:
      return bool(_RLLIB.match(lines.read(64)))
  except PermissionError:
    raise
  except (
      ImportError,
      EOFError,
      OSError,
      RuntimeError,
      ValueError,
      zipfile.BadZipFile,
      zlib.error,
  ):
    return False


def by_extension(path: str) -> str:
  """Returns the format that the extension of a file tells, whatever it holds.

  Args:
    path: a file, as `files.expand` returns it.

  Returns:
    One of the names that `find` returns, or an empty string.
  """
  if files.is_folder(path) or files.is_url(path):
    return ''
  _, extension = os.path.splitext(path)
  return _EXTENSIONS.get(extension, '')


def _names_in(file: h5py.File) -> List[str]:
  """Returns the names at the top of an HDF5 file, and below `data`."""
  names = list(file)
  # A link to another file is not followed.
  is_here = isinstance(file.get('data', getlink=True), h5py.HardLink)
  if is_here and isinstance(file['data'], h5py.Group):
    names += [f'data/{name}' for name in file['data']]
  # Names that are not UTF-8 are bytes. The readers refuse them.
  return [name for name in names if isinstance(name, str)]
