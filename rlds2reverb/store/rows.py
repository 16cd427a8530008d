"""Rows of frames or steps, and their one writer and one reader."""

import contextlib
import hashlib
import io
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from rlds2reverb.store import data_files
from rlds2reverb.store import folders
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import references


class RowStore:
  """Rows in memory or in mapped files, and their strings.

  Strings are in the store, or in the files of a data set, where it lies.

  Attributes:
    layout: how a frame is stored.
    num_rows: how many rows there are.
    groups: the rows of each group of columns, uint8 `[N, row_bytes]`.
    arrays: what was written besides, by names.
    meta: what was written besides, JSON values by names.
    fingerprint: a string that differs for any other content.
    folder: the folder of the files; '' in memory.
    data_dir: the folder of the data set that has strings; or ''.
  """

  def __init__(
      self,
      layout: layout_lib.RowLayout,
      groups: Sequence[np.ndarray],
      strings: Optional[np.ndarray] = None,
      *,
      arrays: Optional[Dict[str, np.ndarray]] = None,
      meta: Optional[Dict[str, Any]] = None,
      fingerprint: str = '',
      folder: str = '',
      files: Optional[data_files.DataFiles] = None,
  ):
    self.layout = layout
    self.groups = list(groups)
    self.num_rows = len(groups[0])
    self.arrays, self.meta = arrays or {}, meta or {}
    self.fingerprint, self.folder = fingerprint, folder
    self.data_dir = files.folder if files else ''
    self._strings = np.zeros(0, np.uint8) if strings is None else strings
    self._files = files

  @classmethod
  def open(cls, folder: str, blocks: Optional[int] = None) -> 'RowStore':
    """Maps the files of a folder; see `opened`."""
    return cls(**opened(folder, blocks=blocks))

  def read(
      self,
      starts: np.ndarray,
      length: int,
      columns: Optional[Sequence[int]] = None,
  ) -> List[np.ndarray]:
    """Returns columns of runs of rows, `[R, L, ...]`; see `RowLayout.read`."""
    return self.layout.read(self.groups, starts, length, columns)

  def take(
      self, rows: np.ndarray, columns: Optional[Sequence[int]] = None
  ) -> List[np.ndarray]:
    """Returns columns of rows, int64 `[...]`, each an array `[..., ...]`."""
    leaves = self.read(rows.ravel(), 1, columns)
    return [leaf.reshape([*rows.shape, *leaf.shape[2:]]) for leaf in leaves]

  def with_strings(self, leaves: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Returns columns, with strings, objects, in place of their cells.

    Raises:
      OSError: if strings are not those that were indexed.
    """
    if not self.layout.has_strings:
      return list(leaves)
    return [
        self._strings_of(leaf) if leaf.dtype == references.CELL else leaf
        for leaf in leaves
    ]

  def string(self, cell: Any) -> bytes:
    """Returns one string, given a cell as `CELL.item()` returns it."""
    file, length, offset, _ = cell
    if file == references.OWN_FILE or self._files is None:
      return self._strings[offset : offset + length].tobytes()
    return self._files.read(cell)

  def place_of(self, cell: Any) -> str:
    """Returns the place of a string, for errors."""
    file, length, offset, _ = cell
    path = os.path.join(self.folder, self.layout.file_names[-1])
    if file != references.OWN_FILE and self._files is not None:
      path = os.path.join(self.data_dir, self._files.facts[file].name)
    return f'at byte {offset} of {path}, {length} bytes'

  def _strings_of(self, cells) -> np.ndarray:
    found = np.empty(cells.shape, object)
    found.ravel()[:] = [self.string(cell) for cell in cells.ravel().tolist()]
    return found


def opened(
    folder: str,
    data_dir: Optional[str] = None,
    blocks: Optional[int] = None,
) -> Dict[str, Any]:
  """Maps the files of a folder, once they are checked.

  Args:
    folder: the folder.
    data_dir: the folder of the data set that has strings, if it has moved.
    blocks: how many MB of each file are checked; None for all.

  Returns:
    The arguments of a `RowStore`.

  Raises:
    FileNotFoundError: if there are no rows, or a file of the data set is not
      there.
    OSError: if the folder is damaged, of another version, or does not fit the
      data set.
  """
  content = folders.read_marker(folder)
  if content is None:
    raise FileNotFoundError(
        f'{folder} holds no prepared frames and no index: it has no'
        f' {folders.MARKER}.'
    )
  folders.check_files(folder, content['files'], blocks)
  layout = layout_lib.RowLayout.from_json(content['layout'])
  names = layout.file_names
  paths = [os.path.join(folder, name) for name in names]
  size, _ = content['files'][names[-1]]
  groups, strings = _map(layout, paths, content['num_rows'], size)
  facts = [data_files.FileFacts(*each) for each in content['data_files']]
  data_dir = data_dir or content['data_dir']
  with np.load(os.path.join(folder, folders.ARRAYS)) as arrays:
    return {
        'layout': layout,
        'groups': groups,
        'strings': strings,
        'arrays': dict(arrays),
        'meta': content['meta'],
        'fingerprint': content['fingerprint'],
        'folder': folder,
        'files': data_files.DataFiles(data_dir, facts) if data_dir else None,
    }


class StoreWriter:
  """Writes rows and strings: to a folder, or to memory.

  Attributes:
    layout: how a frame is stored.
    num_rows: how many rows were written.
  """

  def __init__(
      self,
      layout: layout_lib.RowLayout,
      folder: Optional[str] = None,
      mark: Optional[bytes] = None,
  ):
    """Creates the writer.

    Args:
      layout: how a frame is stored.
      folder: an empty folder for the files, or None for memory.
      mark: the first bytes of references to strings elsewhere.
    """
    self.layout = layout
    self.num_rows = 0
    self._folder, self._mark = folder, mark
    self._files = [
        folders.ChecksummedFile(name, folder) for name in layout.file_names
    ]
    self._known: Dict[bytes, int] = {}

  def append(self, leaves: Sequence[Any]) -> None:
    """Appends frames, given their leaves, arrays `[B, ...]`."""
    # An instruction is the same in all steps of an episode.
    self._known.clear()
    rows = self.layout.encode(leaves, self._cells_of)
    for file, group in zip(self._files, rows):
      file.write(group)
    self.num_rows += len(rows[0])

  def rows(self, **attributes: Any) -> RowStore:
    """Returns what was written so far.

    Args:
      **attributes: further attributes of the `RowStore`.
    """
    for file in self._files:
      file.finish()
    paths = [file.path for file in self._files]
    return RowStore(
        self.layout,
        *_map(self.layout, paths, self.num_rows, self._files[-1].size),
        **attributes,
    )

  def finish(
      self,
      meta: Dict[str, Any],
      arrays: Dict[str, np.ndarray],
      data_dir: str = '',
      facts: Sequence[data_files.FileFacts] = (),
  ) -> RowStore:
    """Returns all rows; where there is a folder, it is whole then.

    Args:
      meta: what to know of them, JSON values.
      arrays: more of it, arrays.
      data_dir: the folder of the data set that references name.
      facts: the facts of its files.
    """
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    with contextlib.closing(
        folders.ChecksummedFile(folders.ARRAYS, self._folder)
    ) as file:
      file.write(packed.getvalue())
      files = {
          os.path.basename(name): [each.size, each.finish()]
          for name, each in zip(
              [folders.ARRAYS, *self.layout.file_names], [file, *self._files]
          )
      }
    digest = hashlib.sha256()
    columns = [column[:3] for column in self.layout.columns]
    for part in columns, meta, files, facts:
      digest.update(repr(part).encode())
    content = {
        'layout': self.layout.to_json(),
        'num_rows': self.num_rows,
        'meta': meta,
        'fingerprint': digest.hexdigest()[:16],
        'data_dir': data_dir,
        'data_files': [list(each) for each in facts],
        'files': files,
    }
    if self._folder is not None:
      folders.write_marker(self._folder, content)
    store = self.rows(
        arrays=arrays, meta=meta, fingerprint=content['fingerprint']
    )
    self.close()
    return store

  def close(self) -> None:
    """Closes the files. What was mapped stays."""
    for file in self._files:
      file.close()

  def _cells_of(self, strings: np.ndarray) -> np.ndarray:
    return references.cells_of(strings, self._mark, self._add_string)

  def _add_string(self, value: bytes) -> int:
    begin = self._known.get(value)
    if begin is None:
      begin = self._known[value] = self._files[-1].size
      self._files[-1].write(value)
    return begin


def _map(layout, paths, num_rows, num_string_bytes) -> Tuple[Any, np.ndarray]:
  """Maps files, and returns the rows of each group, and the strings."""
  groups = [
      folders.map_file(path, [num_rows, size])
      for path, size in zip(paths, layout.row_bytes)
  ]
  return groups, folders.map_file(paths[-1], [num_string_bytes])
