"""The layout of frames and steps as rows of bytes of a fixed size.

The small columns stand together in one row, so that a frame is read from one
place. A large column, such as an image, has rows of its own. Strings have no
fixed size: a row has a cell that says where each lies.

    the small columns   | step_type | reward | discount | ... | cell |
    a large column      | image                                   |  |
                                                                  v
    strings             | ... jpeg jpeg jpeg ...
"""

import functools
import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tree

from rlds2reverb.store import memory
from rlds2reverb.store import references

# Gathering a row of this size takes much longer than finding it.
_LARGE_COLUMN_BYTES = 1 << 10
# This many bytes of rows stay in a processor's cache while their columns are
# copied out.
_CACHED_BYTES = 1 << 18


class Column(NamedTuple):
  """A leaf of a frame or step.

  Attributes:
    keys: its path in the nest.
    dtype: the name of its dtype, `'string'` for strings.
    shape: the shape of the leaf of one frame.
  """

  keys: Tuple[Any, ...]
  dtype: str
  shape: Sequence[int]

  @property
  def name(self) -> str:
    return '/'.join(map(str, self.keys))

  @property
  def is_string(self) -> bool:
    return self.dtype == 'string'

  @property
  def stored(self) -> np.dtype:
    """The dtype of the values that are stored."""
    return references.CELL if self.is_string else numpy_dtype(self.dtype)


class RowLayout:
  """Says which bytes of which rows hold a column.

  Attributes:
    structure: the nest of a frame, with the number of its column in the place
      of each leaf.
    columns: the columns, in the order of the nest.
    row_bytes: the number of bytes of a row, for each group of columns. The
      first group has the small columns.
    has_strings: whether there are strings beside the rows.
  """

  def __init__(self, structure: Any, columns: Sequence[Column]):
    self.structure = structure
    self.columns = list(columns)
    self.has_strings = any(column.is_string for column in columns)
    self._stored = [column.stored for column in columns]
    self._sizes = [
        stored.itemsize * math.prod(column.shape)
        for stored, column in zip(self._stored, columns)
    ]
    # The group of each column, and its first byte there. Wide numbers stand
    # first, so that each begins at a multiple of its size.
    self._places = [(0, 0)] * len(columns)
    self.row_bytes = [0]
    for k in sorted(
        range(len(columns)), key=lambda k: -self._stored[k].alignment
    ):
      if self._sizes[k] < _LARGE_COLUMN_BYTES:
        self._places[k] = 0, self.row_bytes[0]
        self.row_bytes[0] += self._sizes[k]
      else:
        self._places[k] = len(self.row_bytes), 0
        self.row_bytes.append(self._sizes[k])
    widest = max([stored.alignment for stored in self._stored], default=1)
    self.row_bytes[0] += -self.row_bytes[0] % widest
    # Batches of a data set are of one size.
    self._arrays = functools.lru_cache(8)(
        lambda columns, *lead: memory.ArrayLayout(
            [
                ([*lead, *self.columns[k].shape], self._stored[k])
                for k in columns
            ]
        )
    )

  @classmethod
  def of_spec(cls, spec: Any, advice: str) -> 'RowLayout':
    """Returns the layout of frames or steps.

    Args:
      spec: the nest of one, whose leaves have a `dtype` and a `shape` of
        TensorFlow's.
      advice: what to do where a shape is not fixed, for errors.

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
    numbers = iter(range(len(columns)))
    return cls(tree.map_structure(lambda _: next(numbers), spec), columns)

  @property
  def frame_bytes(self) -> int:
    """The number of bytes of a frame, without those of its strings."""
    return sum(self.row_bytes)

  @property
  def file_names(self) -> List[str]:
    """The names of the files of rows, and last of that of strings."""
    numbers = range(len(self.row_bytes))
    return [*[f'rows-{number}.bin' for number in numbers], 'strings.bin']

  def nest(self, leaves: Sequence[Any]) -> Any:
    """Returns leaves, one for each column, as the nest of a frame."""
    return tree.map_structure(lambda number: leaves[number], self.structure)

  def encode(
      self,
      leaves: Sequence[Any],
      cells_of: Optional[Callable[[np.ndarray], np.ndarray]] = None,
  ) -> List[np.ndarray]:
    """Returns the rows of frames.

    Args:
      leaves: arrays `[B, ...]`, in the order of the columns.
      cells_of: stores strings, and returns a `CELL` for each.

    Returns:
      The rows of each group, uint8 `[B, row_bytes]`.
    """
    length = len(leaves[0])
    rows = [np.zeros([length, size], np.uint8) for size in self.row_bytes]
    for k, ((group, begin), leaf) in enumerate(zip(self._places, leaves)):
      if self.columns[k].is_string:
        leaf = cells_of(np.asarray(leaf, object))
      leaf = np.ascontiguousarray(leaf, self._stored[k])
      leaf = leaf.reshape([length, math.prod(self.columns[k].shape)])
      rows[group][:, begin : begin + self._sizes[k]] = leaf.view(np.uint8)
    return rows

  def read(
      self,
      groups: Sequence[np.ndarray],
      starts: np.ndarray,
      length: int,
      columns: Optional[Sequence[int]] = None,
  ) -> List[np.ndarray]:
    """Reads runs of frames.

    Args:
      groups: all rows of each group, uint8 `[N, row_bytes]`.
      starts: the row at which each run starts, int64 `[R]`.
      length: the number of frames `L` of each run.
      columns: the numbers of the columns to read; by default all.

    Returns:
      The columns, unshared arrays `[R, L, ...]`, with a `CELL` for each string.
    """
    columns = tuple(range(len(self.columns)) if columns is None else columns)
    leaves = self._arrays(columns, len(starts), length).new_arrays()
    rows = None
    small = []
    for k, out in zip(columns, leaves):
      group, begin = self._places[k]
      if not out.size:
        continue
      if group:
        if rows is None:
          rows = (starts[:, np.newaxis] + np.arange(length)).ravel()
        groups[group].take(
            rows,
            axis=0,
            out=np.ndarray([len(rows), self._sizes[k]], np.uint8, out),
            mode='clip',  # mode="raise" would copy twice.
        )
      else:
        # NumPy copies an element of bytes faster than a row of numbers.
        is_number = not self.columns[k].shape and not self.columns[k].is_string
        element = self._stored[k] if is_number else f'V{self._sizes[k]}'
        small.append((begin, np.ndarray([len(starts), length], element, out)))
    if small:
      self._read_small(groups[0], starts, small)
    return leaves

  def _read_small(self, rows, starts, columns) -> None:
    """Reads columns of the first group, some runs at a time.

    Args:
      rows: the rows of the group.
      starts: the row at which each run starts.
      columns: pairs of a column's first byte and the array `[R, L]` to fill.
    """
    size = self.row_bytes[0]
    length = columns[0][1].shape[1]
    windows = _windows(rows, length)
    count = max(_CACHED_BYTES // (size * length), 1)
    for first in range(0, len(starts), count):
      some = windows[starts[first : first + count]]
      for begin, flat in columns:
        out = flat[first : first + count]
        out[...] = np.ndarray(
            out.shape, out.dtype, some, begin, [size * length, size]
        )

  def to_json(self) -> Any:
    """Returns the layout as JSON values, for `from_json`."""
    return {
        'structure': _to_json(self.structure),
        'columns': [column._asdict() for column in self.columns],
    }

  @classmethod
  def from_json(cls, value: Any) -> 'RowLayout':
    columns = [Column(**column) for column in value['columns']]
    return cls(_from_json(value['structure']), columns)


def numpy_dtype(name: str) -> np.dtype:
  """Returns a dtype by its name."""
  if name == 'bfloat16':
    import ml_dtypes  # pylint: disable=g-import-not-at-top

    return np.dtype(ml_dtypes.bfloat16)
  return np.dtype(name)


def _windows(rows: np.ndarray, length: int) -> np.ndarray:
  """Returns every run of `length` rows as one element, without copying."""
  num_rows, size = rows.shape
  if not size:
    return np.empty([max(num_rows, 1)], 'V0')
  return np.ndarray(
      [num_rows - length + 1],
      f'V{size * length}',
      buffer=rows.data,
      strides=[size],
  )


def _to_json(node):
  if isinstance(node, dict):
    return {'dict': [[key, _to_json(value)] for key, value in node.items()]}
  if isinstance(node, (list, tuple)):
    name = 'list' if isinstance(node, list) else 'tuple'
    return {name: [_to_json(value) for value in node]}
  return node


def _from_json(value):
  if not isinstance(value, dict):
    return value
  [(kind, parts)] = value.items()
  if kind == 'dict':
    return {key: _from_json(part) for key, part in parts}
  parts = map(_from_json, parts)
  return list(parts) if kind == 'list' else tuple(parts)
