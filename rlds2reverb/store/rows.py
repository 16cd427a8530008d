"""Frames or steps as rows of bytes of a fixed size, in memory or in files.

Small columns share one row, so that a frame is read from one place. A large
column, such as an image, has separate rows. Strings have no fixed size, so a
row has a cell with the place of the string:

    small columns    | step_type | reward | discount | ... | cell |
    large column     | image                                    | |
                                                                  v
    strings          | ... jpeg jpeg jpeg ...

`RowLayout` assigns bytes of rows to columns, `StoreWriter` writes rows, and
`RowStore` gathers columns of rows.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import io
import math
import os
from typing import (
    Any,
    NamedTuple,
)

from etils import epy
import numpy as np
import tree

from rlds2reverb.store import folders
from rlds2reverb.store import strings as strings_lib

with epy.lazy_imports():
  from rlds2reverb.store import kernels

# The kinds of rows that a folder can hold.
FRAMES, INDEX = 'prepared frames', 'index for random access'
# Copying a row of this size takes much longer than finding it.
_LARGE_COLUMN_BYTES = 1 << 10
# TensorFlow shares an array that begins at a multiple of this many bytes, and
# copies other arrays.
_ALIGNMENT = 64
# The dtypes of words of rows, by their bytes.
_WORDS = {1: np.dtype(np.uint8), 4: np.dtype(np.uint32)}
_NO_STRING = (strings_lib.OWN_FILE, 0, 0, 0)


class Column(NamedTuple):
  """A leaf of a frame or step.

  Attributes:
    keys: the path of the leaf in the nest.
    dtype: the name of the dtype, `'string'` for strings.
    shape: the shape of the leaf in one frame.
  """

  keys: tuple[Any, ...]
  dtype: str
  shape: Sequence[int]

  @property
  def name(self) -> str:
    return '/'.join(map(str, self.keys))

  @property
  def is_string(self) -> bool:
    return self.dtype == 'string'


class Place(NamedTuple):
  """The place of a column: its group of columns, first byte, size and dtype."""

  group: int
  begin: int
  size: int
  dtype: np.dtype


class _GatherPlan(NamedTuple):
  """The places of gathered columns in one block of memory.

  Attributes:
    num_bytes: the size of the memory.
    arrays: the shape, the dtype and the first byte of each column.
    calls: arguments of `kernels.gather`: the group of columns, the bytes of a
      word, and `[C, 3]` places of columns.
  """

  num_bytes: int
  arrays: list[tuple[tuple[int, ...], np.dtype, int]]
  calls: list[tuple[int, int, np.ndarray]]


class RowLayout:
  """The bytes of rows that hold each column.

  Attributes:
    columns: the columns, in the order of the nest.
    structure: the nest of a frame, of dicts and tuples, with the number of the
      column as each leaf.
    row_bytes: the number of bytes of a row of each group of columns. The first
      group has the small columns.
    places: the place of each column in these rows.
    has_strings: whether a column has strings.
  """

  def __init__(self, columns: Sequence[Column]):
    self.columns = list(columns)
    self.structure = nest_of({c.keys: k for k, c in enumerate(columns)})
    self.has_strings = any(column.is_string for column in columns)
    dtypes = [
        strings_lib.CELL if column.is_string else numpy_dtype(column.dtype)
        for column in columns
    ]
    self.row_bytes = [0]
    places: dict[int, Place] = {}
    # Wide dtypes come first, so that each value begins at a multiple of its
    # size.
    for k in sorted(range(len(columns)), key=lambda k: -dtypes[k].alignment):
      size = dtypes[k].itemsize * math.prod(columns[k].shape)
      group = 0
      if size >= _LARGE_COLUMN_BYTES:
        group = len(self.row_bytes)
        self.row_bytes.append(0)
      places[k] = Place(group, self.row_bytes[group], size, dtypes[k])
      self.row_bytes[group] += size
    self.places = [places[k] for k in range(len(columns))]
    widest = max([dtype.alignment for dtype in dtypes], default=1)
    self.row_bytes[0] += -self.row_bytes[0] % widest
    # The size of a file determines the number of rows, so no row is empty.
    self.row_bytes[0] = max(self.row_bytes[0], 1)
    # Consecutive batches have the same size.
    self.plan_gather = functools.lru_cache(8)(self._plan_gather)

  @classmethod
  def of_json(cls, columns: Any) -> 'RowLayout':
    """Returns the layout whose `columns` went through JSON."""
    layout = cls([Column(tuple(keys), *spec) for keys, *spec in columns])
    tree.flatten(layout.structure)  # Raises an error for keys without an order.
    return layout

  @classmethod
  def of_spec(cls, spec: Any, advice: str) -> 'RowLayout':
    """Returns the layout of frames or steps.

    Args:
      spec: the nest of one frame, whose leaves have a `dtype` and a `shape` of
        TensorFlow.
      advice: how to fix an unknown shape, for the error.

    Raises:
      ValueError: if the shape of a leaf is not fully known.
    """
    columns = []
    for keys, leaf in tree.flatten_with_path(spec):
      column = Column(keys, leaf.dtype.name, ())
      if not leaf.shape.is_fully_defined():
        raise ValueError(
            f'Field {column.name} has the shape {leaf.shape}, but a fixed one'
            f' is needed. {advice}'
        )
      columns.append(column._replace(shape=leaf.shape.as_list()))
    return cls(columns)

  @property
  def frame_bytes(self) -> int:
    """The number of bytes of a frame, without the bytes of its strings."""
    return sum(self.row_bytes)

  @property
  def file_names(self) -> list[str]:
    """The names of the files of rows, and last the name of the string file."""
    groups = range(len(self.row_bytes))
    return [*[f'rows-{group}.bin' for group in groups], 'strings.bin']

  def nest(self, leaves: Sequence[Any]) -> Any:
    """Returns leaves, one for each column, as the nest of a frame."""
    return tree.map_structure(lambda index: leaves[index], self.structure)

  def encode(
      self,
      leaves: Sequence[Any],
      store_strings: Callable[[np.ndarray], np.ndarray] | None = None,
  ) -> list[np.ndarray]:
    """Returns the rows of frames.

    Args:
      leaves: arrays `[B, ...]`, in the order of the columns.
      store_strings: stores strings, and returns a `CELL` for each.

    Returns:
      The rows of each group, uint8 `[B, row_bytes]`.
    """
    length = len(leaves[0])
    rows = [np.zeros([length, size], np.uint8) for size in self.row_bytes]
    for column, place, leaf in zip(self.columns, self.places, leaves):
      if column.is_string and store_strings is not None:
        leaf = store_strings(np.asarray(leaf, object))
      leaf = np.ascontiguousarray(leaf, place.dtype)
      leaf = leaf.reshape([length, math.prod(column.shape)]).view(np.uint8)
      rows[place.group][:, place.begin : place.begin + place.size] = leaf
    return rows

  def encode_padding(self, values: Mapping[int, Any]) -> list[np.ndarray]:
    """Returns the row of a frame of padding, for each group of columns.

    Args:
      values: values that are not 0, by the indices of their columns.
    """
    leaves = []
    for index, column in enumerate(self.columns):
      value = _NO_STRING if column.is_string else values.get(index, 0)
      dtype = self.places[index].dtype
      leaves.append(np.full([1, *column.shape], np.array(value, dtype), dtype))
    return [row.ravel() for row in self.encode(leaves)]

  def _plan_gather(
      self, indices: tuple[int, ...] | None, num_windows: int, length: int
  ) -> _GatherPlan:
    """Plans how windows of rows are gathered.

    Args:
      indices: the indices of the columns to gather; None for all.
      num_windows: the number of windows.
      length: the number of rows of each window.
    """
    num_bytes, arrays = 0, []
    calls: dict[Any, list[list[int]]] = {}
    for index in range(len(self.columns)) if indices is None else indices:
      group, begin, size, dtype = self.places[index]
      shape = num_windows, length, *self.columns[index].shape
      arrays.append((shape, dtype, num_bytes))
      # Wide dtypes come first, so columns of 4-byte words begin at multiples
      # of 4.
      is_bytes = begin % 4 or size % 4 or self.row_bytes[group] % 4
      word = 1 if is_bytes else 4
      if size:
        places = [begin // word, size // word, num_bytes // word]
        calls.setdefault((group, word), []).append(places)
      num_bytes += num_windows * length * size
      num_bytes += -num_bytes % _ALIGNMENT
    return _GatherPlan(
        num_bytes,
        arrays,
        [(*key, np.array(places)) for key, places in calls.items()],
    )


def numpy_dtype(name: str) -> np.dtype:
  """Returns a dtype by its name."""
  if name == 'bfloat16':
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
  return np.dtype(name)


def nest_of(leaves: Mapping[tuple[Any, ...], Any]) -> Any:
  """Returns the nest of leaves by their paths, of dicts and tuples."""
  if list(leaves) == [()]:
    return leaves[()]
  parts: dict[Any, dict[Any, Any]] = {}
  for keys, leaf in leaves.items():
    parts.setdefault(keys[0], {})[keys[1:]] = leaf
  nest = {key: nest_of(part) for key, part in parts.items()}
  is_tuple = list(nest) == list(range(len(nest))) != []
  return tuple(nest.values()) if is_tuple else nest


@dataclasses.dataclass(eq=False)
class RowStore:
  """Rows in memory or in mapped files, and their strings.

  Strings are in the store, or in the files of the data set that was indexed.

  Attributes:
    layout: how a frame is stored.
    groups: the rows of each group of columns, uint8 `[N, row_bytes]`.
    strings: the bytes of all strings in the store, uint8.
    arrays: further arrays, by name.
    meta: further JSON values, by name.
    fingerprint: a string that differs for any other content.
    folder: the folder of the files; '' in memory.
    files: the files of the data set that strings are in; or None.
    padding: values of padded rows that are not 0, by the indices of columns.
  """

  layout: RowLayout
  groups: list[np.ndarray]
  strings: Any = None
  arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  fingerprint: str = ''
  folder: str = ''
  files: strings_lib.DataFiles | None = None
  padding: Mapping[int, Any] = dataclasses.field(default_factory=dict)

  @property
  def num_rows(self) -> int:
    """The number of rows."""
    return len(self.groups[0])

  def gather(
      self,
      starts: np.ndarray,
      length: int,
      columns: Sequence[int] | None = None,
      ends: np.ndarray | None = None,
      repeats_last: bool = False,
  ) -> list[np.ndarray]:
    """Gathers windows of rows.

    Args:
      starts: the first row of each window, int64 `[W]`.
      length: the number of rows `L` of each window.
      columns: the indices of the columns to gather; by default all.
      ends: the row at which the padding of each window begins, int64 `[W]`; by
        default windows have no padding.
      repeats_last: whether padding repeats the last row before it, instead of
        being a row of `padding`.

    Returns:
      The columns, new arrays `[W, L, ...]`, with a `CELL` for each string.
    """
    plan = self.layout.plan_gather(
        None if columns is None else tuple(columns), len(starts), length
    )
    # TensorFlow shares aligned arrays.
    memory = np.empty(plan.num_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    if ends is None:
      ends = starts + length
    for group, word, places in plan.calls:
      size = plan.num_bytes // word
      gathered = np.ndarray(size, _WORDS[word], memory, first)
      gather = self._gather_kernel(group, word)
      gather(starts, ends, length, repeats_last, places, gathered)
    return [
        np.ndarray(shape, dtype, memory, first + offset)
        for shape, dtype, offset in plan.arrays
    ]

  def take(
      self, rows: np.ndarray, columns: Sequence[int] | None = None
  ) -> list[np.ndarray]:
    """Returns columns of rows, int64 `[...]`, each an array `[..., ...]`."""
    leaves = self.gather(rows.ravel(), 1, columns)
    return [leaf.reshape(*rows.shape, *leaf.shape[2:]) for leaf in leaves]

  def with_strings(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns columns with strings, objects, in place of their cells.

    Raises:
      OSError: if a string differs from the string that was indexed.
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
    place = f'at byte {offset}'
    if file != strings_lib.OWN_FILE and self.files is not None:
      path, place = self.files.paths[file], self.files.place_of(cell)
    return f'{place} of {path}, {length} bytes'

  @functools.cached_property
  def _gather_kernel(self) -> Callable[[int, int], Callable[..., None]]:
    """A cached function of a group of columns and the bytes of a word.

    It returns `kernels.gather` of the rows of the group.
    """
    groups, padding = self.groups, self.layout.encode_padding(self.padding)

    # It has no reference to `self`, so that files are closed without a garbage
    # collection.
    @functools.cache
    def gather_kernel(group, word):
      dtype = _WORDS[word]
      return functools.partial(
          kernels.gather_words(dtype),
          groups[group].reshape(-1).view(dtype),
          padding[group].view(dtype),
      )

    return gather_kernel


def open_rows(
    folder: str,
    holds: str = FRAMES,
    *,
    data_dir: str | None = None,
    blocks: int | None = None,
) -> RowStore:
  """Checks the files of a folder, and maps them into memory.

  Args:
    folder: the folder.
    holds: the expected kind of rows, `FRAMES` or `INDEX`.
    data_dir: the folder of the data set that strings are in, if it has moved.
    blocks: how many MB of each file are checked; None for all.

  Raises:
    FileNotFoundError: if there are no rows, or a file of the data set is
      missing.
    OSError: if the folder is damaged, of another version, or does not fit the
      data set.
  """
  with folders.naming_damage(folder):
    content = folders.read_marker(folder)
    if content is None or content['holds'] != holds:
      actual = f'no {folders.MARKER}' if content is None else content['holds']
      raise FileNotFoundError(f'{folder} holds no {holds}: it has {actual}.')
    folders.check_files(folder, content['files'], blocks)
    layout = RowLayout.of_json(content['layout'])
    paths = [os.path.join(folder, name) for name in layout.file_names]
    *groups, strings = map(folders.map_file, paths, [*layout.row_bytes, 1])
    if len({len(group) for group in groups}) > 1:
      raise ValueError('its groups of columns have different numbers of rows')
    facts = [strings_lib.FileFacts(*values) for values in content['data_files']]
    data_dir = data_dir or content['data_dir']
    with np.load(os.path.join(folder, folders.ARRAYS)) as arrays:
      return RowStore(
          layout,
          groups,
          strings,
          arrays=dict(arrays),
          meta=content['meta'],
          fingerprint=content['fingerprint'],
          folder=folder,
          files=strings_lib.DataFiles(data_dir, facts) if data_dir else None,
      )


class StoreWriter:
  """Writes rows and strings: to a folder, or to memory.

  Attributes:
    layout: how a frame is stored.
  """

  def __init__(self, layout: RowLayout, folder: str | None = None):
    """Creates the writer.

    Args:
      layout: how a frame is stored.
      folder: an empty folder for the files, or None for memory.
    """
    self.layout, self._folder = layout, folder
    self._files = {
        name: folders.ChecksummedFile(
            None if folder is None else os.path.join(folder, name)
        )
        for name in (folders.ARRAYS, *layout.file_names)
    }
    self._offsets: dict[bytes, int] = {}

  def append(self, leaves: Sequence[Any]) -> None:
    """Appends frames, given their leaves, arrays `[B, ...]`."""
    # Strings such as instructions are often the same in all steps of an
    # episode. They are stored once per call.
    self._offsets.clear()
    rows = self.layout.encode(leaves, self._store_strings)
    for name, group in zip(self.layout.file_names, rows):
      self._files[name].write(group.ravel())

  def rows(self, **attributes: Any) -> RowStore:
    """Returns the rows written so far, with further attributes."""
    *groups, strings = (
        self._files[name].read(row_bytes)
        for name, row_bytes in zip(
            self.layout.file_names, [*self.layout.row_bytes, 1]
        )
    )
    return RowStore(self.layout, groups, strings, **attributes)

  def finish(
      self,
      meta: dict[str, Any],
      arrays: dict[str, np.ndarray],
      holds: str = FRAMES,
      data_dir: str = '',
      facts: Sequence[strings_lib.FileFacts] = (),
      source: Mapping[str, Any] | None = None,
  ) -> RowStore:
    """Completes the folder, if there is one, and returns all rows.

    Args:
      meta: further JSON values, by name.
      arrays: further arrays, by name.
      holds: the kind of rows, `FRAMES` or `INDEX`.
      data_dir: the folder of the data set that strings are in.
      facts: the facts of its files.
      source: the data set that the rows were read from, JSON values.
    """
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    self._files[folders.ARRAYS].write(packed.getvalue())
    files = {
        name: [file.size, file.checksums] for name, file in self._files.items()
    }
    columns = [tuple(column) for column in self.layout.columns]
    described = ''.join(map(repr, (columns, meta, files, facts)))
    fingerprint = hashlib.sha256(described.encode()).hexdigest()[:16]
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
          'source': source,
          'files': files,
      }
      folders.write_marker(self._folder, content)
    return store

  def close(self) -> None:
    """Closes the files. Rows that were returned stay readable."""
    for file in self._files.values():
      file.close()

  def _store_strings(self, values: np.ndarray) -> np.ndarray:
    """Stores strings, objects of any shape, and returns their cells."""
    cells = []
    file = self._files[self.layout.file_names[-1]]
    for value in values.ravel():
      value = value if isinstance(value, bytes) else str(value).encode()
      cell = strings_lib.referred(value)
      if cell is None:
        if value not in self._offsets:
          self._offsets[value] = file.size
          file.write(value)
        cell = strings_lib.OWN_FILE, len(value), self._offsets[value], 0
      cells.append(cell)
    return np.array(cells, strings_lib.CELL).reshape(values.shape)
