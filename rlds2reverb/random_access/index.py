"""The index of a data set: the rows of its steps, and where its images are.

Opening an index needs no TensorFlow; building one does.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import re
from typing import Any

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.store import damage
from rlds2reverb.store import folders
from rlds2reverb.store import rows as store_rows

PathLike = str | os.PathLike

_DATASET_INFO = 'dataset_info.json'
# Files that this library writes next to the data.
_WRITTEN = re.compile(r'\.|statistics-.*\.json$|.*\.(source|statistics)\.json$')
# The sizes of the first files count, and only the names of further files.
_MAX_SIZES = 100_000


@dataclasses.dataclass(frozen=True)
class IndexedData:
  """A data set on disk, and how its steps become RLDS steps.

  Attributes:
    directory: the argument of `load_episodes`; or of `formats.load`, in which
      case the index holds a copy of the data.
    config: the argument of `map_fields`: the name of a config, or its file. Its
      transforms are applied, too. By default the steps are not mapped.
    split: the split.
    prepare: a function of a module, or a `functools.partial` of one, that is
      applied after that, from a data set of episodes to another; see
      `build_index`.
    weight: the data set is drawn in proportion to its weight. By default it is
      the number of items. Either all data sets have a weight, or none has.
    item_weights: a function from the `Items` of the data set to the weight of
      each item, such as `Items.episode_weights`, or `lambda items:
      items.column('priority')`. By default all are equal. With
      `replacement=False` the weights are a mask: items of weight 0 are skipped,
      and all other weights must be equal.
    options: further arguments of `formats.load`, such as
      `{'is_terminal': 'next.success'}` of LeRobot's reader, or `{'format':
      'lerobot'}` if the directory is a name.
  """

  directory: PathLike
  config: str | None = None
  split: str = 'train'
  prepare: Callable[[Any], Any] | None = None
  weight: float | None = None
  item_weights: Callable[[Any], Any] | None = None
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def identity(self) -> dict[str, Any]:
    """Returns everything apart from the data that determines the index."""
    # URLs and the names of TFDS data sets are not changed.
    directory = os.path.expanduser(os.fspath(self.directory))
    if os.path.isdir(directory):
      directory = os.path.abspath(directory)
    return {
        'directory': directory,
        'config': self.config,
        'split': self.split,
        'prepare': self.prepare and _name_function(self.prepare),
        # They are compared with options from a JSON file.
        'options': json.loads(json.dumps(dict(self.options))),
    }

  def map_episodes(self, episodes: Any) -> Any:
    """Returns the data set of the episodes that are indexed."""
    from rlds2reverb import fields
    from rlds2reverb import transforms

    if self.config is not None:
      episodes = fields.map_fields(episodes, self.config)
      episodes = transforms.transform_episodes(
          episodes, transforms.load_transforms(self.config)
      )
    return self.prepare(episodes) if self.prepare else episodes


def _name_function(function: Any) -> str:
  """Returns the name of `prepare`, with the arguments of a partial."""
  if isinstance(function, functools.partial):
    name = _name_function(function.func)
    text = f'{name}(*{function.args}, **{function.keywords})'
    if ' at 0x' not in text:
      return text
  elif hasattr(function, '__qualname__'):
    return f'{function.__module__}.{function.__qualname__}'
  raise ValueError(
      f'prepare is {function!r}, which an index cannot identify in other'
      ' processes. Define a function in a module, or a functools.partial of one'
      ' with numbers and strings.'
  )


class Index(store_rows.RowStore):
  """The steps of a data set, for random access.

  `build_index` builds it. It is read without TensorFlow, pickles as its paths,
  and may be read by any number of threads and processes, forked or spawned.

  Attributes:
    lengths: int64 `[E]`: the number of rows of each episode.
  """

  def __init__(
      self,
      folder: PathLike,
      data_dir: PathLike | None = None,
      check: bool = True,
  ):
    """Opens an index.

    Args:
      folder: the folder of the index.
      data_dir: the folder of the data set, if it has moved since. Not needed if
        the index has moved with it.
      check: whether all bytes of the index are compared with their checksums,
        and the files of the data set with the files that were indexed.

    Raises:
      FileNotFoundError: if there is no index, or a file of the data set is
        missing.
      OSError: if the index is damaged, or the data set has changed: it has
        other files or sizes than when it was indexed.
    """
    folder = expand_folder(folder)
    path = os.path.expanduser(os.fspath(data_dir or ''))
    with folders.naming_damage(folder):
      content = folders.read_marker(folder) or {}
      source, indexed_dir = content.get('source'), content.get('data_dir')
      if source and not path:
        # The data set may have moved together with the index.
        relative = os.path.normpath(os.path.join(folder, source['relative']))
        candidates = source['path'], relative
        path = next(filter(os.path.exists, candidates), '')
    if indexed_dir and not os.path.exists(path or indexed_dir):
      raise FileNotFoundError(
          f'The data set of the index {folder} is not in {path or indexed_dir}.'
          ' If it has moved, open the index with data_dir= its new folder, or'
          ' give its new directory in sources of open_batches.'
      )
    rows = store_rows.open_rows(
        folder,
        store_rows.INDEX,
        data_dir=path or None if indexed_dir else None,
        blocks=None if check else 0,
    )
    super().__init__(**vars(rows))
    with folders.naming_damage(folder):
      if check and path and source:
        _check_source(folder, path, source)
      self.lengths = self.arrays['lengths']
      if (
          self.lengths.dtype != np.int64
          or self.lengths.ndim != 1
          or (self.lengths < 0).any()
          or self.lengths.sum() != self.num_rows
      ):
        raise ValueError('the lengths of its episodes do not fit its rows')

  def __reduce__(self):
    data_dir = self.files and self.files.folder
    return type(self), (self.folder, data_dir, False)


def open_index(folder: str, source: IndexedData, num_processes: int) -> Index:
  """Opens the index of a data set, or builds it if it does not exist.

  If several processes need it at the same time, one builds it and the others
  wait.
  """
  path, marker = f'{folder}.source.json', os.path.join(folder, folders.MARKER)
  identity = source.identity()
  if not os.path.exists(marker):
    require_tensorflow(f'{folder} has no index yet, and building it')
    from rlds2reverb.datasets import files
    from rlds2reverb.random_access import building

    with files.one_at_a_time(folder):
      if not os.path.exists(marker):
        damage.refuse_link(path)
        files.write_text(path, json.dumps(identity))
        return building.build(source, folder, num_processes)
  saved = damage.read_json(path, f'Remove {folder} and build the index again.')
  different = [key for key in identity if identity[key] != saved.get(key)]
  data_dir = ''
  if different == ['directory']:
    data_dir = _find_moved_source(folder, saved['directory'], source)
  if different and not data_dir:
    raise ValueError(
        f'{folder} has an index that was made with another'
        f' {", ".join(different)}: {saved}, and not {identity}. Remove it, or'
        ' choose another folder.'
    )
  return Index(folder, data_dir)


def expand_folder(folder: PathLike) -> str:
  """Returns the absolute path of the folder of an index.

  Raises:
    ValueError: if it is a URL.
  """
  folder = os.fspath(folder)
  if '://' in folder:
    raise ValueError(f'An index must be on the local disk, but is at {folder}.')
  return os.path.abspath(os.path.expanduser(folder))


def require_tensorflow(task: str) -> None:
  """Raises a ModuleNotFoundError if TensorFlow is not installed.

  Args:
    task: the subject of the error.
  """
  try:
    importlib.import_module('tensorflow')
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f'{task} needs the full environment, with TensorFlow: {e.name} is not'
        ' installed here. `pip install .` in a clone makes it. Make the same'
        ' call there once; then it works here.',
        name=e.name,
    ) from e


def describe_source(path: str, split: str) -> dict[str, Any] | None:
  """Describes the files of a data set, so that changes can be detected.

  Args:
    path: a file or a folder; for a TFDS data set, the folder of the version.
    split: the split that is indexed, of a TFDS data set.

  Returns:
    The number of files and of bytes, and a digest of the names and sizes and,
    for TFDS, of the split in `dataset_info.json`. None if the path does not
    exist.
  """
  if not os.path.exists(path):
    return None
  files = [('', os.path.getsize(path))]
  if os.path.isdir(path):
    files = sorted(_list_files(path))
  info: Any = None
  info_path = os.path.join(path, _DATASET_INFO)
  if os.path.isfile(info_path):
    content = damage.read_json(info_path, 'Copy it from where it is complete.')
    info = content.get('splits', [])
    # Other splits may be added and removed.
    splits = {str(entry.get('name')) for entry in info}
    splits &= set(re.findall(r'\w+', split))
    if splits:
      info = [entry for entry in info if entry['name'] in splits]
      files = [
          file for file in files if splits & set(re.split(r'\W', file[0]))
      ] or files
  digest = hashlib.sha256(repr((files, info)).encode()).hexdigest()[:16]
  num_bytes = sum(size for _, size in files)
  return {'num_files': len(files), 'num_bytes': num_bytes, 'digest': digest}


def _list_files(folder: str) -> Iterator[tuple[str, int]]:
  """Yields the relative path and the size of each file of a data set."""
  count = 0
  for parent, children, names in os.walk(folder):
    if folders.MARKER in names:  # An index or prepared frames.
      children.clear()
      continue
    children[:] = sorted(name for name in children if not name.startswith('.'))
    for name in sorted(names):
      if not _WRITTEN.match(name):
        path = os.path.join(parent, name)
        has_size = count < _MAX_SIZES and os.path.exists(path)
        count += 1
        yield (
            os.path.relpath(path, folder),
            os.path.getsize(path) if has_size else 0,
        )


def _find_moved_source(folder: str, old: str, moved: IndexedData) -> str:
  """Returns the new path of the data set of an index, or '' if it is another.

  Args:
    folder: the folder of the index.
    old: the path or name by which the data set was indexed.
    moved: the data set.
  """
  source = (folders.read_marker(folder) or {}).get('source')
  if not source:
    return ''
  # The files of `data` may be in `data/1.0.0`.
  below = os.path.relpath(source['path'], old) if os.path.isabs(old) else '..'
  parts = source['path'].split(os.sep)
  tails = ['', *[os.path.join(*parts[-count:]) for count in (1, 2, 3)]]
  if not below.startswith('..'):
    tails.insert(0, below)
  for tail in tails:
    path = os.path.normpath(os.path.join(moved.identity()['directory'], tail))
    files = describe_source(path, source['split'])
    if files and files['digest'] == source['digest']:
      return path
  return ''


def _check_source(folder: str, path: str, source: dict[str, Any]) -> None:
  """Raises an OSError if the data set of an index has changed."""
  files = describe_source(path, source['split'])
  if files is None or files['digest'] == source['digest']:
    return
  indexed, present = (
      f'{checks.counted(entry["num_files"], "file")} with'
      f' {entry["num_bytes"]:,} bytes'
      for entry in (source, files)
  )
  raise OSError(
      f'The data set {path} has changed since the index {folder} was made of'
      f' it. It had {indexed}, and now has {present}. Remove the folder of the'
      ' index; the next call with it builds it again.'
  )
