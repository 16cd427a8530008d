"""Rows of frames or steps, and their one writer and one reader."""

import dataclasses
import hashlib
import io
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from rlds2reverb.store import folders
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import strings as strings_lib

# What a folder of rows holds.
FRAMES, INDEX = 'prepared frames', 'index for random access'
# This many bytes of rows stay in a processor's cache while their columns are
# copied out.
_CACHED_BYTES = 1 << 18


@dataclasses.dataclass(eq=False)
class RowStore:
  """Rows in memory or in mapped files, and their strings.

  Strings are in the store, or in the files of a data set, where it lies.

  Attributes:
    layout: how a frame is stored.
    groups: the rows of each group of columns, uint8 `[N, row_bytes]`.
    strings: the bytes of all strings of its own, uint8.
    arrays: what was written besides, by names.
    meta: what was written besides, JSON values by names.
    fingerprint: a string that differs for any other content.
    folder: the folder of the files; '' in memory.
    files: the files of a data set that has strings; or None.
  """

  layout: layout_lib.RowLayout
  groups: List[np.ndarray]
  strings: Any = None
  arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  fingerprint: str = ''
  folder: str = ''
  files: Optional[strings_lib.DataFiles] = None

  @property
  def num_rows(self) -> int:
    """How many rows there are."""
    return len(self.groups[0])

  def read(
      self,
      starts: np.ndarray,
      length: int,
      columns: Optional[Sequence[int]] = None,
  ) -> List[np.ndarray]:
    """Reads runs of rows.

    Args:
      starts: the row at which each run starts, int64 `[R]`.
      length: the number of rows `L` of each run.
      columns: the numbers of the columns to read; by default all.

    Returns:
      The columns, unshared arrays `[R, L, ...]`, with a `CELL` for each string.
    """
    places = self.layout.places
    numbers = tuple(range(len(places)) if columns is None else columns)
    leaves = self.layout.arrays_of(numbers, len(starts), length).new_arrays()
    rows = None
    small = []
    for k, out in zip(numbers, leaves):
      group, begin, size, dtype = places[k]
      if not out.size:
        continue
      if group:
        if rows is None:
          rows = (starts[:, np.newaxis] + np.arange(length)).ravel()
        out = np.ndarray([len(rows), size], np.uint8, out)
        # "raise" would copy twice.
        self.groups[group].take(rows, 0, out, 'clip')
      else:
        # NumPy copies an element of bytes faster than a row of numbers.
        is_number = out.ndim == 2 and dtype.names is None
        element = dtype if is_number else f'V{size}'
        small.append((begin, np.ndarray(out.shape[:2], element, out)))
    if small:
      self._read_small(starts, length, small)
    return leaves

  def _read_small(self, starts, length, columns) -> None:
    """Reads columns of the first group, some runs at a time.

    Args:
      starts: the row at which each run starts.
      length: the number of rows of each run.
      columns: pairs of a column's first byte and the array `[R, L]` to fill.
    """
    [rows, *_] = self.groups
    size = rows.shape[1]
    # Every run of rows is one element, without copying.
    runs = np.ndarray(
        [len(rows) - length + 1], f'V{size * length}', rows.data, 0, [size]
    )
    count = max(_CACHED_BYTES // (size * length), 1)
    for first in range(0, len(starts), count):
      some = runs[starts[first : first + count]]
      for begin, flat in columns:
        out = flat[first : first + count]
        out[...] = np.ndarray(
            out.shape, out.dtype, some, begin, [size * length, size]
        )

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
        np.array([*map(self.string, leaf.ravel().tolist())], object).reshape(
            leaf.shape
        )
        if leaf.dtype == strings_lib.CELL
        else leaf
        for leaf in leaves
    ]

  def string(self, cell: Any) -> bytes:
    """Returns one string, given a cell as `CELL.item()` returns it."""
    file, length, offset, _ = cell
    if file == strings_lib.OWN_FILE or self.files is None:
      return self.strings[offset : offset + length].tobytes()
    return self.files.read(cell)

  def place_of(self, cell: Any) -> str:
    """Returns the place of a string, for errors."""
    file, length, offset, _ = cell
    path = os.path.join(self.folder, self.layout.file_names[-1])
    if file != strings_lib.OWN_FILE and self.files is not None:
      path = self.files.paths[file]
    return f'at byte {offset} of {path}, {length} bytes'


def open_rows(
    folder: str,
    holds: str = FRAMES,
    *,
    data_dir: Optional[str] = None,
    blocks: Optional[int] = None,
) -> RowStore:
  """Maps the files of a folder, once they are checked.

  Args:
    folder: the folder.
    holds: what must be in it, `FRAMES` or `INDEX`.
    data_dir: the folder of the data set that has strings, if it has moved.
    blocks: how many MB of each file are checked; None for all.

  Raises:
    FileNotFoundError: if there are no rows, or a file of the data set is not
      there.
    OSError: if the folder is damaged, of another version, or does not fit the
      data set.
  """
  content = folders.read_marker(folder)
  if content is None or content['holds'] != holds:
    found = f'no {folders.MARKER}' if content is None else content['holds']
    raise FileNotFoundError(f'{folder} holds no {holds}: it has {found}.')
  folders.check_files(folder, content['files'], blocks)
  layout = layout_lib.RowLayout.of_json(content['layout'])
  paths = [os.path.join(folder, name) for name in layout.file_names]
  facts = [strings_lib.FileFacts(*each) for each in content['data_files']]
  data_dir = data_dir or content['data_dir']
  with np.load(os.path.join(folder, folders.ARRAYS)) as arrays:
    return _mapped(
        layout,
        paths,
        arrays=dict(arrays),
        meta=content['meta'],
        fingerprint=content['fingerprint'],
        folder=folder,
        files=strings_lib.DataFiles(data_dir, facts) if data_dir else None,
    )


def _mapped(layout, paths, **attributes: Any) -> RowStore:
  """Returns the rows of each group, and the strings, as they are in files."""
  *groups, strings = map(folders.map_file, paths, [*layout.row_bytes, 1])
  return RowStore(layout, groups, strings, **attributes)


class StoreWriter:
  """Writes rows and strings: to a folder, or to memory.

  Attributes:
    layout: how a frame is stored.
  """

  def __init__(
      self, layout: layout_lib.RowLayout, folder: Optional[str] = None
  ):
    """Creates the writer.

    Args:
      layout: how a frame is stored.
      folder: an empty folder for the files, or None for memory.
    """
    self.layout, self._folder = layout, folder
    self._files = {
        name: folders.ChecksummedFile(name, folder)
        for name in (folders.ARRAYS, *layout.file_names)
    }
    self._known: Dict[bytes, int] = {}

  def append(self, leaves: Sequence[Any]) -> None:
    """Appends frames, given their leaves, arrays `[B, ...]`."""
    # An instruction is the same in all steps of an episode.
    self._known.clear()
    rows = self.layout.encode(leaves, self._cells_of)
    for name, group in zip(self.layout.file_names, rows):
      self._files[name].write(group.ravel())

  def rows(self, **attributes: Any) -> RowStore:
    """Returns what was written so far, with further attributes."""
    files = [self._files[name] for name in self.layout.file_names]
    for each in files:
      each.file.flush()
    return _mapped(self.layout, [each.path for each in files], **attributes)

  def finish(
      self,
      meta: Dict[str, Any],
      arrays: Dict[str, np.ndarray],
      holds: str = FRAMES,
      data_dir: str = '',
      facts: Sequence[strings_lib.FileFacts] = (),
  ) -> RowStore:
    """Returns all rows; where there is a folder, it is whole then.

    Args:
      meta: what to know of them, JSON values.
      arrays: more of it, arrays.
      holds: what the rows are, `FRAMES` or `INDEX`.
      data_dir: the folder of the data set that references name.
      facts: the facts of its files.
    """
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    self._files[folders.ARRAYS].write(packed.getvalue())
    files = {
        name: [each.size, each.checksums] for name, each in self._files.items()
    }
    columns = [tuple(column) for column in self.layout.columns]
    known = ''.join(map(repr, (columns, meta, files, facts)))
    fingerprint = hashlib.sha256(known.encode()).hexdigest()[:16]
    store = self.rows(arrays=arrays, meta=meta, fingerprint=fingerprint)
    self.close()
    if self._folder is not None:
      content = {
          'holds': holds,
          'layout': columns,
          'meta': meta,
          'fingerprint': fingerprint,
          'data_dir': data_dir,
          'data_files': facts,
          'files': files,
      }
      folders.write_marker(self._folder, content)
    return store

  def close(self) -> None:
    """Closes the files. What was mapped stays."""
    for each in self._files.values():
      each.file.close()

  def _cells_of(self, values: np.ndarray) -> np.ndarray:
    """Returns the cells of strings, objects of any shape, and keeps these."""
    cells = []
    own = self._files[self.layout.file_names[-1]]
    for value in values.ravel():
      value = value if isinstance(value, bytes) else str(value).encode()
      cell = strings_lib.referred(value)
      if cell is None:
        if value not in self._known:
          self._known[value] = own.size
          own.write(value)
        cell = strings_lib.OWN_FILE, len(value), self._known[value], 0
      cells.append(cell)
    return np.array(cells, strings_lib.CELL).reshape(values.shape)
