"""An index of RLDS data: the small columns, and the places of images."""

import hashlib
import importlib
import os
import re
from typing import Any, Dict, Iterator, Optional, Tuple, Union

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.store import folders
from rlds2reverb.store import json_files
from rlds2reverb.store import rows as rows_lib

PathLike = Union[str, os.PathLike]

_DATASET_INFO = 'dataset_info.json'
# Files that this library writes beside data.
_WRITTEN = re.compile(r'\.|statistics-.*\.json$|.*\.(source|statistics)\.json$')
# The sizes of so many files are compared, and the names of more.
_MAX_SIZES = 100_000


def expand_folder(folder: PathLike) -> str:
  """Returns the absolute path of the folder of an index.

  Raises:
    ValueError: if it is a URL.
  """
  folder = os.fspath(folder)
  if '://' in folder:
    raise ValueError(f'An index must be on the local disk, but is at {folder}.')
  return os.path.abspath(os.path.expanduser(folder))


def need_tensorflow(what: str) -> None:
  """Raises a ModuleNotFoundError that says what to do without TensorFlow.

  Args:
    what: what needs it, the subject of the error.
  """
  try:
    importlib.import_module('tensorflow')
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f'{what} needs the full environment, with TensorFlow: {e.name} is not'
        ' installed here. `pip install .` in a clone makes it. Make the same'
        ' call there once; then it works here.',
        name=e.name,
    ) from e


class SourceNotFoundError(FileNotFoundError):
  """The data set of an index is not where it was.

  Attributes:
    sentence: says so, without advice.
  """

  def __init__(self, sentence: str):
    super().__init__(
        f'{sentence} If it has moved, open the index with data_dir= its new'
        ' folder.'
    )
    self.sentence = sentence


def describe_source(path: str, split: str) -> Optional[Dict[str, Any]]:
  """Returns by what an index tells whether its data set has changed.

  Args:
    path: a file, or a folder; that of a version, for a TFDS data set.
    split: the split that is indexed, of a TFDS data set.

  Returns:
    The number of files and of their bytes, and a digest of the names and sizes
    and, for TFDS, of the split in `dataset_info.json`. None if nothing is
    there.
  """
  if os.path.isfile(path):
    found = [('', os.path.getsize(path))]
  elif os.path.isdir(path):
    found = sorted(_files_in(path))
  else:
    return None
  info: Any = None
  info_file = os.path.join(path, _DATASET_INFO)
  if os.path.isfile(info_file):
    content = json_files.read(info_file, 'Copy it from where it is whole.')
    info = content.get('splits', [])
    names = {str(one.get('name')) for one in info}
    names &= set(re.findall(r'\w+', split))
    if names:
      info = [one for one in info if one['name'] in names]
      # Other splits may come and go.
      of_split = [
          (name, size)
          for name, size in found
          if names & set(re.split(r'\W', name))
      ]
      found = of_split or found
  digest = hashlib.sha256(repr((found, info)).encode()).hexdigest()[:16]
  num_bytes = sum(size for _, size in found)
  return {'num_files': len(found), 'num_bytes': num_bytes, 'digest': digest}


def _files_in(folder: str) -> Iterator[Tuple[str, int]]:
  """Yields each file of a data set: its path in the folder, and its size."""
  count = 0
  for parent, children, names in os.walk(folder):
    if folders.MARKER in names:  # An index or prepared frames.
      children.clear()
      continue
    children[:] = sorted(one for one in children if not one.startswith('.'))
    for name in sorted(names):
      if not _WRITTEN.match(name):
        path = os.path.join(parent, name)
        size = 0
        if count < _MAX_SIZES and os.path.exists(path):
          size = os.path.getsize(path)
        count += 1
        yield os.path.relpath(path, folder), size


def _find_source(folder: str, source: Optional[Dict[str, Any]]) -> str:
  """Returns the path of the data set of an index, or '' if it is not there."""
  if source:
    # The data set may have moved together with the index.
    near = os.path.normpath(os.path.join(folder, source['relative']))
    for path in source['path'], near:
      if os.path.exists(path):
        return path
  return ''


def find_moved_source(folder: str, old: str, new: str) -> str:
  """Returns where the data set of an index is now, or '' if it is not there.

  Args:
    folder: the folder of the index.
    old: the path or name by which the data set was indexed.
    new: the path at which it is now.
  """
  source = (folders.read_marker(folder) or {}).get('source')
  if not source:
    return ''
  # The files of `data` may be in `data/1.0.0`.
  below = os.path.relpath(source['path'], old) if os.path.isabs(old) else '..'
  parts = source['path'].split(os.sep)
  tails = ['/'.join(parts[len(parts) - count :]) for count in range(1, 4)]
  for tail in ['' if below.startswith('..') else below, '', *tails]:
    path = os.path.normpath(os.path.join(new, tail))
    found = describe_source(path, source['split'])
    if found and found['digest'] == source['digest']:
      return path
  return ''


def _check_source(folder: str, path: str, source: Dict[str, Any]) -> None:
  """Raises an OSError if the data set of an index has changed."""
  found = describe_source(path, source['split'])
  if found is None or found['digest'] == source['digest']:
    return
  before, now = (
      f'{checks.counted(one["num_files"], "file")} with {one["num_bytes"]:,}'
      ' bytes'
      for one in (source, found)
  )
  raise OSError(
      f'The data set {path} has changed since the index {folder} was made of'
      f' it. It had {before}, and now has {now}. Remove the folder of the'
      ' index, and make it again.'
  )


class Index(rows_lib.RowStore):
  """The steps of a data set, for random access.

  It is made by `build_index`, and reads without TensorFlow. It pickles as its
  paths, and may be read by any number of threads and processes, whether they
  are forked or spawned.

  Attributes:
    lengths: int64 `[E]`: how many rows each episode has.
  """

  def __init__(
      self,
      folder: PathLike,
      data_dir: Optional[PathLike] = None,
      check: bool = True,
  ):
    """Opens an index.

    Args:
      folder: the folder of the index.
      data_dir: the folder of the data set, if it has moved since. Not needed if
        the index has moved with it.
      check: whether all bytes of the index are compared with their checksums,
        and the files of the data set with those that were indexed.

    Raises:
      FileNotFoundError: if there is no index, or a file of the data set is not
        there.
      OSError: if the index is damaged, or the data set has changed: it has
        other files or sizes than when it was indexed.
    """
    folder = expand_folder(folder)
    path = os.path.expanduser(os.fspath(data_dir or ''))
    with folders.naming_damage(folder):
      content = folders.read_marker(folder) or {}
      source, in_place = content.get('source'), content.get('data_dir')
      path = path or _find_source(folder, source)
    if in_place and not os.path.exists(path or in_place):
      raise SourceNotFoundError(
          f'The data set of the index {folder} is not in {path or in_place}.'
      )
    opened = rows_lib.open_rows(
        folder,
        rows_lib.INDEX,
        data_dir=path or None if in_place else None,
        blocks=None if check else 0,
    )
    super().__init__(**vars(opened))
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
