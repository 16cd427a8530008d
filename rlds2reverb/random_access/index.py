"""An index of RLDS data: the small columns, and the places of images."""

import contextlib
import json
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

import numpy as np

from rlds2reverb.store import data_files
from rlds2reverb.store import files
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import references

# The names of the files of an index, beside those of its rows.
MARKER = 'random_access.json'

PathLike = Union[str, os.PathLike]


def expand_folder(folder: PathLike) -> str:
  """Returns the absolute path of the folder of an index.

  Raises:
    ValueError: if it is a URL.
  """
  folder = os.fspath(folder)
  if '://' in folder:
    raise ValueError(f'An index must be on the local disk, but is at {folder}.')
  return os.path.abspath(os.path.expanduser(folder))


@contextlib.contextmanager
def made_once(missing: str) -> Iterator[None]:
  """Says what to do if the imports that make a missing file fail.

  Args:
    missing: the subject of the error: `'... has no index yet, and building
      it'`.

  Raises:
    ModuleNotFoundError: if a module, such as TensorFlow, is not installed.
  """
  try:
    yield
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f'{missing} needs the full environment, with TensorFlow: {e.name} is'
        ' not installed here. `pip install .` in a clone makes it. Make the'
        ' same call there once; then it works here.',
        name=e.name,
    ) from e


LENGTHS = 'episodes.bin'
STRINGS = 'strings.bin'
# The version of the files' format.
VERSION = 2
AGAIN = 'build the index again'


class Index:
  """The steps of a data set, for random access.

  It is made by `build_index`, and reads without TensorFlow. It pickles as its
  paths, and may be read by any number of threads and processes, whether they
  are forked or spawned.

  Attributes:
    folder: the folder of the index.
    data_dir: the folder of the data set.
    layout: how steps are stored.
    lengths: int64 `[E]`: how many rows each episode has.
    is_trajectory: whether rows are frames of `Trajectory`s, and not steps.
    fingerprint: a string that differs for any other index.
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
      data_dir: the folder of the data set, if it has moved since.
      check: whether all bytes of the index are held against their checksums.

    Raises:
      FileNotFoundError: if there is no index, or a file of the data set is not
        there.
      OSError: if the index is damaged, or does not fit the data.
    """
    self.folder = expand_folder(folder)
    marker = self._read_marker()
    self.data_dir = os.fspath(data_dir or marker['data_dir'])
    self.layout = layout_lib.RowLayout.from_json(marker['layout'])
    self.is_trajectory: bool = marker['is_trajectory']
    self.fingerprint: str = marker['fingerprint']
    paths = []
    for name, (size, checksums) in marker['own_files'].items():
      paths.append(os.path.join(self.folder, name))
      files.check_size(paths[-1], size, AGAIN)
      if check:
        files.check_blocks(paths[-1], checksums, AGAIN)
    sizes = [os.path.getsize(path) for path in paths]
    self.lengths = files.map_file(paths[0], [sizes[0]]).view(np.int64)
    num_rows = self.num_rows
    self._rows = [
        files.map_file(path, [num_rows, size])
        for path, size in zip(paths[1:], self.layout.row_bytes)
    ]
    self._strings = files.map_file(paths[-1], sizes[-1:])
    self._files = data_files.DataFiles(
        self.data_dir,
        [data_files.FileFacts(*facts) for facts in marker['data_files']],
    )

  def __reduce__(self):
    return type(self), (self.folder, self.data_dir, False)

  @property
  def num_rows(self) -> int:
    """The number of rows of all episodes."""
    return int(self.lengths.sum())

  def read(self, rows: np.ndarray, columns: Sequence[int]) -> List[np.ndarray]:
    """Returns columns of rows.

    Args:
      rows: the numbers of the rows, int64 `[...]`.
      columns: the numbers of the columns.

    Returns:
      For each column an array `[..., ...]`, of `CELL`s for strings.
    """
    leaves = self.layout.read(self._rows, rows.ravel(), 1, columns)
    return [leaf.reshape([*rows.shape, *leaf.shape[2:]]) for leaf in leaves]

  def strings(self, cells: np.ndarray) -> np.ndarray:
    """Returns the strings of cells, objects of the shape of `cells`.

    Raises:
      OSError: if they are not those that were indexed.
    """
    strings = np.empty(cells.size, object)
    for place, cell in enumerate(cells.ravel().tolist()):
      strings[place] = self.string(cell)
    return strings.reshape(cells.shape)

  def string(self, cell: Any) -> bytes:
    """Returns one string, given a cell as `CELL.item()` returns it."""
    file, length, offset, _ = cell
    if file == references.OWN_FILE:
      return self._strings[offset : offset + length].tobytes()
    return self._files.read(cell)

  def place_of(self, cell: Any) -> str:
    """Returns the place of a string, for errors."""
    file, length, offset, _ = cell
    path = os.path.join(self.folder, STRINGS)
    if file != references.OWN_FILE:
      path = os.path.join(self.data_dir, self._files.facts[file].name)
    return f'at byte {offset} of {path}, {length} bytes'

  def _read_marker(self) -> Dict[str, Any]:
    path = os.path.join(self.folder, MARKER)
    try:
      with open(path, encoding='utf-8') as f:
        marker = json.load(f)
        version = marker['version']
    except FileNotFoundError as e:
      raise FileNotFoundError(
          f'{self.folder} holds no index: it has no {MARKER}. build_index makes'
          ' one.'
      ) from e
    except (ValueError, KeyError, TypeError) as e:
      raise self._damage(MARKER, str(e)) from e
    if version != VERSION:
      raise self._damage(
          MARKER, f'it is of version {version}, and not of {VERSION}'
      )
    return marker

  def _damage(self, name: str, problem: str) -> OSError:
    return files.damaged(os.path.join(self.folder, name), problem, AGAIN)
