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
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import tree

from rlds2reverb.store import memory
from rlds2reverb.store import strings

# Gathering a row of this size takes much longer than finding it.
_LARGE_COLUMN_BYTES = 1 << 10


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


class Place(NamedTuple):
  """Where the values of a column are: in a group of columns, from a byte on."""

  group: int
  begin: int
  size: int
  dtype: np.dtype


class RowLayout:
  """Says which bytes of which rows hold a column.

  Attributes:
    columns: the columns, in the order of the nest.
    structure: the nest of a frame, of dicts and tuples, with the number of its
      column in the place of each leaf.
    row_bytes: the number of bytes of a row, for each group of columns. The
      first group has the small columns.
    places: the place of each column in these rows.
    arrays_of: returns the `ArrayLayout` of columns, by their numbers and their
      leading dimensions.
    has_strings: whether there are strings beside the rows.
  """

  def __init__(self, columns: Sequence[Column]):
    self.columns = list(columns)
    self.structure = nest_of({c.keys: k for k, c in enumerate(columns)})
    self.has_strings = any(column.is_string for column in columns)
    dtypes = [
        strings.CELL if column.is_string else numpy_dtype(column.dtype)
        for column in columns
    ]
    self.row_bytes = [0]
    places: Dict[int, Place] = {}
    # Wide numbers stand first, so that each begins at a multiple of its size.
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
    # The length of a file says how many rows it has.
    self.row_bytes[0] = max(self.row_bytes[0], 1)
    # Batches of a data set are of one size.
    self.arrays_of = functools.lru_cache(8)(
        lambda numbers, *lead: memory.ArrayLayout(
            [([*lead, *columns[k].shape], dtypes[k]) for k in numbers]
        )
    )

  @classmethod
  def of_json(cls, columns: Any) -> 'RowLayout':
    """Returns the layout whose `columns` went through JSON."""
    return cls([Column(tuple(keys), *rest) for keys, *rest in columns])

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
    return cls(columns)

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
    for column, place, leaf in zip(self.columns, self.places, leaves):
      if column.is_string:
        leaf = cells_of(np.asarray(leaf, object))
      leaf = np.ascontiguousarray(leaf, place.dtype)
      leaf = leaf.reshape([length, math.prod(column.shape)]).view(np.uint8)
      rows[place.group][:, place.begin : place.begin + place.size] = leaf
    return rows


def numpy_dtype(name: str) -> np.dtype:
  """Returns a dtype by its name."""
  if name == 'bfloat16':
    import ml_dtypes  # pylint: disable=g-import-not-at-top

    return np.dtype(ml_dtypes.bfloat16)
  return np.dtype(name)


def nest_of(leaves: Mapping[Tuple[Any, ...], Any]) -> Any:
  """Returns the nest of leaves by their paths, of dicts and tuples."""
  if list(leaves) == [()]:
    return leaves[()]
  parts: Dict[Any, Dict[Any, Any]] = {}
  for keys, leaf in leaves.items():
    parts.setdefault(keys[0], {})[keys[1:]] = leaf
  nest = {key: nest_of(part) for key, part in parts.items()}
  is_tuple = list(nest) == list(range(len(nest))) != []
  return tuple(nest.values()) if is_tuple else nest
