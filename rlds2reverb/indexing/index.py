"""An index of recorded transitions by keys, in memory and on disk."""

from collections.abc import Sequence
import json
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.formats import npz
from rlds2reverb.indexing import graph as graph_lib
from rlds2reverb.store import damage
from rlds2reverb.windows import transitions as transitions_lib

FIRST, LAST, ALL = 'first', 'last', 'all'
DUPLICATES = (FIRST, LAST, ALL)

_INDEX_FILE = 'index.json'
_LENGTHS_FILE = 'lengths.npy'


class LookupResult(NamedTuple):
  """The recorded transitions of `B` keys.

  Attributes:
    rows: a dict of the columns of the transitions, every leaf `[B, ...]`, zeros
      for unknown keys; or ragged, `[B, (n), ...]`, for all duplicates.
    is_recorded: bool `[B]`: whether the key was recorded.
    count: int64 `[B]`: how often the key was recorded, its visit count.
    index: int64 `[B]`, or ragged `[B, (n)]`: the index of the transition in the
      recorded data, -1 for unknown keys.
  """

  rows: dict[str, Any]
  is_recorded: tf.Tensor
  count: tf.Tensor
  index: Any


class TransitionIndex:
  """Looks up recorded transitions by observation and action, or by other keys.

      recorded       o0 a1 r1   o0 a2 r2   o0 a1 r3
      key            o0 a1      o0 a3      o0 a1, duplicates="last"
      is_recorded    T          F          T
      reward         r1         0          r3
      count          2          0          2

  Keys are equal if their bytes are equal: -0.0 and 0.0 differ, and there is no
  search for near neighbors. Lookups work eagerly and in a graph, as in
  `tf.data.Dataset.map`.
  """

  def __init__(
      self,
      rows: dict[str, Any],
      lengths: Any,
      keys: Sequence[str] = ('observation', 'action'),
  ):
    """Indexes transition rows in memory; see `from_episodes` for data sets.

    Args:
      rows: the columns of transition rows, every leaf `[N, ...]`.
      lengths: int64 `[E]`: the number of rows of each episode.
      keys: the paths of the key columns.

    Raises:
      ValueError: if `keys` is empty or names no column, or there are no rows.
    """
    paths.check_list('keys', keys)
    if not keys:
      raise ValueError('keys must have at least one path, but is empty.')
    self._rows = tf.nest.map_structure(tf.convert_to_tensor, rows)
    self._lengths = tf.convert_to_tensor(lengths, tf.int64)
    self._keys = tuple(keys)
    key_columns = self._get_key(self._rows)
    if not int(rows_lib.num_rows(key_columns)):
      raise ValueError('An index needs at least one transition.')
    self._table = graph_lib.KeyTable(key_columns)
    self._row_splits = tf.constant(self._table.row_splits)
    self._row_ids = tf.constant(self._table.rows)
    self._graph: graph_lib.TransitionGraph | None = None

  @classmethod
  def from_episodes(
      cls,
      rlds_data: tf.data.Dataset,
      keys: Sequence[str] = ('observation', 'action'),
  ) -> 'TransitionIndex':
    """Reads the transitions of all episodes into memory, and indexes them.

    Args:
      rlds_data: an RLDS data set, or a data set of `TransitionRows`.
      keys: the paths of the key columns.

    Raises:
      ValueError: if there is no such column, there are no transitions, or the
        elements are not episodes.
      InvalidArgumentError: if fields of an episode differ in length.
    """
    flat = transitions_lib.FlatRows.of(rlds_data)
    return cls(flat.rows, flat.lengths, keys)

  @classmethod
  def load(cls, directory: files.PathLike) -> 'TransitionIndex':
    """Loads an index that `save` wrote.

    Raises:
      OSError: if a file is damaged.
      ValueError: if there is no index.
    """
    transitions = read_transitions(directory)
    folder = files.expand(directory)
    with damage.naming_damage(
        os.path.join(folder, _INDEX_FILE), _get_remedy(folder)
    ):
      return cls(*transitions)

  def save(self, directory: files.PathLike, *, overwrite: bool = False) -> None:
    """Saves the transitions and the keys, from which `load` makes the index.

    Args:
      directory: the folder, which is written atomically.
      overwrite: whether to replace a folder that is not empty.

    Raises:
      FileExistsError: if the folder is not empty.
    """
    write_transitions(
        directory, self._rows, self._lengths, self._keys, overwrite=overwrite
    )

  def __len__(self) -> int:
    """Returns the number of recorded transitions."""
    return len(self._table.rows)

  @property
  def num_keys(self) -> int:
    """The number of distinct keys."""
    return len(self._table)

  @property
  def num_bytes(self) -> int:
    """The memory of the index in bytes, without the transitions."""
    return self._table.num_bytes

  @property
  def graph(self) -> graph_lib.TransitionGraph:
    """The graph of observations, built at the first use."""
    if self._graph is None:
      with tf.init_scope():
        self._graph = graph_lib.TransitionGraph(self._rows, self._keys)
    return self._graph

  def lookup(
      self, keys: dict[str, Any], duplicates: str = FIRST
  ) -> LookupResult:
    """Looks up the recorded transitions of keys.

    Args:
      keys: a nest with the key columns at their paths, every leaf `[B, ...]` in
        the recorded dtype. Other fields are ignored.
      duplicates: which transition of a key that was recorded several times: the
        `"first"`, the `"last"`, or `"all"` in the order of the data.

    Raises:
      ValueError: if a key column is missing, or its dtype or shape differs from
        the recorded one; or if there is no such `duplicates`.
    """
    checks.check_choice('duplicates', duplicates, DUPLICATES)
    key_ids, is_recorded = self._table.find(self._get_key(keys))
    starts = tf.gather(self._row_splits, key_ids)
    count = tf.gather(self._row_splits, key_ids + 1) - starts
    count = tf.where(is_recorded, count, 0)
    if duplicates == ALL:
      positions = tf.ragged.range(starts, starts + count)
      index = tf.gather(self._row_ids, positions.values)
      rows = tf.nest.map_structure(
          positions.with_values, rows_lib.take(self._rows, index)
      )
      index = positions.with_values(index)
      return LookupResult(rows, is_recorded, count, index)
    position = starts + count - 1 if duplicates == LAST else starts
    # An unknown key has the position of any other key, which is masked.
    index = tf.gather(self._row_ids, tf.maximum(position, 0))
    rows = rows_lib.take(self._rows, index)
    rows = rows_lib.fill_unless(is_recorded, rows)
    index = tf.where(is_recorded, index, -1)
    return LookupResult(rows, is_recorded, count, index)

  def successors(self, observation: Any) -> graph_lib.Successors:
    """Returns the recorded successors of observations.

    Args:
      observation: a nest like the recorded observation, every leaf `[B, ...]`.

    Raises:
      ValueError: if the structure, dtypes or shapes differ from the recorded
        ones, or the keys of the index have no observation or no action.
    """
    return self.graph.successors(observation)

  def expand(
      self,
      observation: Any,
      depth: int,
      max_width: int,
      *,
      gamma: float = 1.0,
  ) -> graph_lib.Tree:
    """Returns the trees of recorded successors, with observations as roots.

    Args:
      observation: a nest like the recorded observation, every leaf `[B, ...]`.
      depth: the maximum number of transitions of a path.
      max_width: the maximum number of nodes of a level.
      gamma: the discount factor of rewards along a path.

    Raises:
      ValueError: as `successors` does, or if `depth` or `max_width` is not
        positive.
    """
    return self.graph.expand(observation, depth, max_width, gamma=gamma)

  def _get_key(self, nest) -> dict[str, Any]:
    return {key: paths.get(nest, key) for key in self._keys}


def write_transitions(
    directory: files.PathLike,
    rows: dict[str, Any],
    lengths: tf.Tensor,
    keys: Sequence[str],
    *,
    overwrite: bool = False,
) -> None:
  """Writes the columns of transitions to a folder, one file per column.

  Args:
    directory: the folder, which is written atomically.
    rows: a nest of tensors `[N, ...]`.
    lengths: int64 `[E]`: the number of rows of each episode.
    keys: the paths of the key columns.
    overwrite: whether to replace a folder that is not empty.

  Raises:
    FileExistsError: if the folder is not empty.
  """
  columns = []
  with files.new_folder(
      files.expand(directory), [_INDEX_FILE], replace=overwrite
  ) as folder:
    np.save(os.path.join(folder, _LENGTHS_FILE), lengths.numpy())
    for number, (path, leaf) in enumerate(tree.flatten_with_path(rows)):
      columns.append(
          {
              'path': list(path),
              'dtype': leaf.dtype.name,
              'shape': leaf.shape.as_list(),
          }
      )
      array = leaf.numpy().reshape(-1)
      if leaf.dtype == tf.string:
        ends = np.cumsum([*map(len, array)], dtype=np.int64)
        np.save(os.path.join(folder, f'{number}.ends.npy'), ends)
        array = np.frombuffer(b''.join(array), np.uint8)
      # As bytes, because np.load does not support bfloat16.
      np.save(os.path.join(folder, f'{number}.npy'), array.view(np.uint8))
    with open(os.path.join(folder, _INDEX_FILE), 'w', encoding='utf-8') as f:
      json.dump({'keys': list(keys), 'columns': columns}, f)


def read_transitions(
    directory: files.PathLike,
) -> tuple[dict[str, Any], tf.Tensor, tuple[str, ...]]:
  """Reads the rows, lengths and keys that `write_transitions` wrote.

  Raises:
    OSError: if a file is damaged.
    ValueError: if there is no such folder, or rows are missing.
  """
  folder = files.expand(directory)
  index_path, remedy = os.path.join(folder, _INDEX_FILE), _get_remedy(folder)
  if not files.exists(index_path):
    raise ValueError(
        f'There is no index at {folder}: {_INDEX_FILE} is missing.'
    )
  index = json_files.read_json(index_path, remedy)

  def load(name: str) -> np.ndarray:
    path = os.path.join(folder, name)
    with damage.naming_damage(path, remedy):
      with tf.io.gfile.GFile(path, 'rb') as f:
        return npz.read_array(f, f.size())

  rows: dict[str, Any] = {}
  with damage.naming_damage(index_path, remedy):
    for number, column in enumerate(index['columns']):
      array, dtype = load(f'{number}.npy'), tf.as_dtype(column['dtype'])
      if dtype == tf.string:
        ends = load(f'{number}.ends.npy')
        if (np.diff(ends, prepend=0) < 0).any() or ends[-1:] != len(array):
          raise ValueError(
              f'the ends of the strings of column {number} are out of range'
          )
        strings = [array[a:b].tobytes() for a, b in zip([0, *ends], ends)]
        leaf = np.array(strings, object)
      else:
        leaf = array.view(dtype.as_numpy_dtype)
      leaf = tf.constant(leaf.reshape(column['shape']), dtype)
      rows = paths.insert(rows, tuple(column['path']), leaf)
    lengths = load(_LENGTHS_FILE)
    if lengths.dtype != np.int64 or lengths.ndim != 1 or (lengths < 0).any():
      raise ValueError(f'{_LENGTHS_FILE} must have int64 lengths of at least 0')
    keys = tuple(map(str, index['keys']))
    num_rows = {len(leaf) for leaf in tf.nest.flatten(rows)}
  if num_rows != {lengths.sum()}:
    raise ValueError(
        f'The index at {folder} is damaged: rows are missing. {remedy}'
    )
  return _restore_tuples(rows), tf.constant(lengths), keys


def _get_remedy(folder: str) -> str:
  return f'Remove {folder} and write the index again.'


def _restore_tuples(nest) -> Any:
  """Returns a nest in which dicts with integer keys become tuples."""
  if not isinstance(nest, dict):
    return nest
  parts = {key: _restore_tuples(part) for key, part in nest.items()}
  if parts and all(isinstance(key, int) for key in parts):
    return tuple(parts[index] for index in sorted(parts))
  return parts
