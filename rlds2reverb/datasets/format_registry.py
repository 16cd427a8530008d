"""The registry of formats: their names, how they are detected, and readers.

`formats.load` reads all formats except RLDS, which `load_episodes` reads.
Errors about a path name the actual format of its data.
"""

from collections.abc import Collection
from collections.abc import Iterator
import gzip
import os
import re
from typing import Any, NamedTuple, NoReturn
import zipfile
import zlib

from rlds2reverb.datasets import files
from rlds2reverb.datasets import json_files

# The errors that h5py raises for damaged files.
HDF5_ERRORS = KeyError, OSError, RuntimeError, SystemError, TypeError

_PARQUET = '.parquet'


class Format(NamedTuple):
  """A format of recorded episodes.

  Attributes:
    description: a noun phrase for messages.
    reader: the `module.function` of `rlds2reverb.formats` that reads the
      format; empty for RLDS.
    folder_files: names of files that identify a folder of the format.
    hdf5_names: sets of names at the top of an HDF5 file, or below `data`, that
      identify a file of the format. `#` is a number at the end of a name.
    extensions: the extensions of files that may be of the format, even if their
      content has no known names.
    has_names: whether the reader takes names of data sets, too.
    is_generic: whether files of any other format may be read as this format.
    related: other formats whose files may be read as this format.
    libraries: the libraries of the extra, which the reader imports.
    extra: the extra of this package that the reader needs, if any.
  """

  description: str
  reader: str
  folder_files: tuple[str, ...] = ()
  hdf5_names: tuple[frozenset[str], ...] = ()
  extensions: tuple[str, ...] = ()
  has_names: bool = False
  is_generic: bool = False
  related: tuple[str, ...] = ()
  libraries: tuple[str, ...] = ()
  extra: str = ''


# The first format that fits is detected, so special formats come first.
FORMATS: dict[str, Format] = {
    'calvin': Format(
        'a CALVIN data set',
        'calvin.load_calvin',
        folder_files=('ep_start_end_ids.npy',),
    ),
    'lerobot': Format(
        'a LeRobot data set',
        'lerobot.load_lerobot',
        folder_files=('meta/info.json',),
        has_names=True,
        libraries=('av',),
        extra='video',
    ),
    'imitation': Format(
        'trajectories of imitation',
        'imitation.load_imitation',
        folder_files=('state.json',),
    ),
    'robomimic': Format(
        'a data set of robomimic',
        'robomimic.load_robomimic',
        hdf5_names=(frozenset(['data/demo_#']),),
    ),
    'd3rlpy': Format(
        'a replay buffer of d3rlpy',
        'd3rlpy_buffers.load_d3rlpy',
        hdf5_names=(frozenset(['columns', 'num_episodes', 'version']),),
    ),
    'torchrl': Format(
        'a storage of TorchRL',
        'torchrl.load_torchrl',
        folder_files=('storage_metadata.json', 'storage/storage_metadata.json'),
        # The number of transitions, and trajectories.
        hdf5_names=(frozenset(['_len', 'traj_#']),),
    ),
    'maniskill': Format(
        'trajectories of ManiSkill',
        'maniskill.load_maniskill',
        hdf5_names=(frozenset(['traj_#']),),
    ),
    'zarr': Format(
        'a Zarr replay buffer',
        'zarr_buffers.load_zarr',
        folder_files=('meta/.zgroup', 'meta/zarr.json'),
        libraries=('numcodecs', 'zarr'),
        extra='zarr',
    ),
    'minari': Format(
        'a Minari data set',
        'minari.load_minari',
        folder_files=(
            'main_data.hdf5',
            'data/main_data.hdf5',
            'metadata.json',
            'data/metadata.json',
        ),
        has_names=True,
    ),
    'rlds': Format('an RLDS data set', '', folder_files=('dataset_info.json',)),
    'hdf5': Format(
        'flat arrays',
        'flat_arrays.load_flat_arrays',
        hdf5_names=tuple(
            frozenset([name]) for name in ('observations', 'actions', 'rewards')
        ),
        extensions=('.hdf5', '.h5'),
        is_generic=True,
    ),
    'npz': Format(
        'NumPy arrays',
        'flat_arrays.load_flat_arrays',
        extensions=('.npz',),
        is_generic=True,
    ),
    'parquet': Format(
        'tables of parquet',
        'parquet_tables.load_parquet',
        extensions=(_PARQUET,),
        related=('rllib',),
    ),
    'rllib': Format(
        'experience of RLlib',
        'rllib.load_rllib',
        related=('parquet',),  # RLlib writes tables.
        libraries=('msgpack',),
        extra='rllib',
    ),
}

# The start of the first line of a file of RLlib, and the ends of its names.
_RLLIB = re.compile(rb'\s*\{\s*"type":\s*"(SampleBatch|MultiAgentBatch)"')
_RLLIB_FILES = ('.json', '.json.gz', '.zip')
# The columns of RLlib's tables: transitions, or episodes in msgpack.
_RLLIB_COLUMNS = {'obs', 'actions', 'eps_id'}
_RLLIB_EPISODES = ['item']
# RLlib writes <environment>/<run>/<file>. The first folders and files may be
# empty or damaged, so this many are read.
_MAX_LEVELS = 3
_MAX_FILES = 20


def explain_missing_library(error: ImportError) -> NoReturn:
  """Raises an error that says how to install a library of a format.

  For `epy.lazy_imports(error_callback=explain_missing_library)`.

  Raises:
    ModuleNotFoundError: always.
  """
  library = (error.name or '').partition('.')[0]
  user, command = 'this data', f'`pip install {library}`'
  for spec in FORMATS.values():
    if library in spec.libraries:
      user = spec.description
      command = f"`pip install '.[{spec.extra}]'` in a clone of rlds2reverb"
  raise ModuleNotFoundError(
      f'Reading {user} requires {library}, which is not installed. Run'
      f' {command}.',
      name=library,
  ) from error


def hint(
    path: str, but: Collection[str] = (), *, search_folder: bool = True
) -> str:
  """Returns a sentence that names the function that reads the data at a path.

  Args:
    path: a file or a folder, as `files.expand` returns it.
    but: names of formats for which there is no sentence.
    search_folder: whether to name a file or folder in an unknown folder.

  Returns:
    The sentence with a space before it, for the end of an error; or an empty
    string if the format is not known.
  """
  try:
    name = detect(path)
    if name:
      return '' if name in but else f' It holds {_describe(name)}.'
    for file in files.names_in(path) if search_folder else ():
      name = detect(os.path.join(path, file))
      if name:
        return f' {file} in it holds {_describe(name)}.'
  except (OSError, ValueError):
    pass  # The caller is about to raise an error already.
  return ''


def _describe(name: str) -> str:
  function = 'formats.load' if FORMATS[name].reader else 'load_episodes'
  return f'{FORMATS[name].description}, which {function} reads'


def detect(path: str) -> str:
  """Returns the name of the format of the data at a path.

  Args:
    path: a file or a folder, as `files.expand` returns it.

  Returns:
    The name, or an empty string if the format is not known.

  Raises:
    OSError, ValueError: if a file that identifies the format is damaged.
  """
  if files.is_folder(path):
    return _detect_folder(path)
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
      raise ValueError(f'{path} is not a complete npz file: {e}.') from e
  if path.endswith(_RLLIB_FILES):
    return 'rllib' if _is_rllib(path) else ''
  if path.endswith(FORMATS['hdf5'].extensions):
    return _detect_hdf5(path)
  return ''


def detect_by_extension(path: str) -> str:
  """Returns the format of the extension of a file, regardless of its content.

  Args:
    path: a file, as `files.expand` returns it.

  Returns:
    The name, or an empty string if the extension is not known.
  """
  if files.is_folder(path) or files.is_url(path):
    return ''
  _, extension = os.path.splitext(path)
  for name, spec in FORMATS.items():
    if extension in spec.extensions:
      return name
  return ''


def _detect_folder(path: str) -> str:
  """Returns the format of a folder by the names of its files."""
  for name, spec in FORMATS.items():
    for file in spec.folder_files:
      file_path = os.path.join(path, file)
      if not files.exists(file_path):
        continue
      # Other programs write a metadata.json, too.
      if name != 'minari' or not file.endswith('metadata.json'):
        return name
      if 'minari_version' in json_files.read_json_object(file_path):
        return name
  # Hugging Face `datasets` writes `train-00000-of-00002.parquet`; in a
  # repository, such files are below `data`.
  for folder in (path, os.path.join(path, 'data')):
    tables = [n for n in files.names_in(folder) if n.endswith(_PARQUET)]
    if tables:
      paths = [os.path.join(folder, name) for name in tables[:_MAX_FILES]]
      is_rllib = not files.is_url(folder) and any(map(_is_rllib, paths))
      return 'rllib' if is_rllib else 'parquet'
  if files.is_url(path):
    return ''
  return 'rllib' if any(map(_is_rllib, _files_below(path))) else ''


def _detect_hdf5(path: str) -> str:
  """Returns the format of an HDF5 file by the names in it."""
  import h5py

  try:
    with h5py.File(path, 'r') as file:
      names = {re.sub(r'\d+$', '#', name) for name in _names_in(file)}
  except PermissionError:
    raise
  except HDF5_ERRORS as e:
    files.check_not_pointer(path)
    raise ValueError(f'{path} is not a complete HDF5 file: {e}.') from e
  if names == {'episode_#'}:
    return 'minari'
  for name, spec in FORMATS.items():
    if any(required <= names for required in spec.hdf5_names):
      return name
  return ''


def _names_in(file: Any) -> list[str]:
  """Returns the names at the top of an HDF5 file, and below `data`."""
  import h5py

  names = list(file)
  # A link to another file is not followed.
  is_here = isinstance(file.get('data', getlink=True), h5py.HardLink)
  if is_here and isinstance(file['data'], h5py.Group):
    names += [f'data/{name}' for name in file['data']]
  # Names that are not UTF-8 are bytes. The readers refuse them.
  return [name for name in names if isinstance(name, str)]


def _files_below(path: str) -> Iterator[str]:
  """Yields some files that may be RLlib's in a folder, and in its folders."""
  folders = [path]
  for _ in range(_MAX_LEVELS):
    below: list[str] = []
    for folder in folders:
      paths = [os.path.join(folder, name) for name in files.names_in(folder)]
      candidates = [p for p in paths if p.endswith((*_RLLIB_FILES, _PARQUET))]
      yield from candidates[:_MAX_FILES]
      below += [p for p in paths if os.path.isdir(p)][:_MAX_FILES]
    folders = below[:_MAX_FILES]


def _is_rllib(path: str) -> bool:
  """Returns whether RLlib has written a local file; False if it is damaged."""
  try:
    if path.endswith(_PARQUET):
      from pyarrow import parquet

      names = parquet.read_schema(path).names
      return names == _RLLIB_EPISODES or _RLLIB_COLUMNS <= {*names}
    if path.endswith('.zip'):
      with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.namelist() if m.endswith('.json')]
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
