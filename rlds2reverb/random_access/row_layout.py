"""The storage of the steps of an index: rows of bytes of a fixed size.

The small columns of a step stand together in one row, so that a step is read
from one place. A large column has a file of its own. A string has a cell that
says where it is; see `references`.
"""

import math
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import tree

from rlds2reverb.random_access import references

# Reading a row of this size takes much longer than finding it.
_LARGE_COLUMN_BYTES = 1 << 10


class Column(NamedTuple):
  """A leaf of a step.

  Attributes:
    keys: its path in the nest.
    dtype: the name of its dtype, `'string'` for strings.
    shape: the shape of the leaf of one step.
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
    if self.is_string:
      return references.CELL
    return numpy_dtype(self.dtype)


class RowLayout:
  """Says which bytes of which file hold a column of a step.

  Attributes:
    structure: the nest of a step, dicts, lists and tuples, with the number of
      its column in the place of each leaf.
    columns: the columns, in the order of the nest.
    row: the dtype of a row, whose fields are the small columns.
    large: the numbers of the columns that have files of their own.
  """

  def __init__(self, structure: Any, columns: Sequence[Column]):
    self.structure = structure
    self.columns = list(columns)
    small: List[Any] = []
    self.large: List[int] = []
    for number, column in enumerate(self.columns):
      num_bytes = column.stored.itemsize * math.prod(column.shape)
      if num_bytes < _LARGE_COLUMN_BYTES:
        small.append((str(number), column.stored, tuple(column.shape)))
      else:
        self.large.append(number)
    self.row = np.dtype(small)

  def files(self) -> Dict[str, np.dtype]:
    """Returns the names of the files of rows, and the dtypes of their rows."""
    found = {'rows.bin': self.row} if self.row.itemsize else {}
    for number in self.large:
      column = self.columns[number]
      found[large_name(number)] = np.dtype((column.stored, tuple(column.shape)))
    return found

  def nest(self, leaves: Sequence[Any]) -> Any:
    """Returns leaves, one for each column, as the nest of a step."""
    return tree.map_structure(lambda number: leaves[number], self.structure)

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


def large_name(number: int) -> str:
  """Returns the name of the file of a large column."""
  return f'column-{number}.bin'


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
