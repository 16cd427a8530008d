"""An index of recorded transitions, by key."""

from typing import Any, Dict, NamedTuple, Optional, Sequence

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.indexing import graph as graph_lib
from rlds2reverb.indexing import keys as keys_lib
from rlds2reverb.indexing import storage
from rlds2reverb.windows import flat_rows

FIRST, LAST, ALL = 'first', 'last', 'all'
DUPLICATES = (FIRST, LAST, ALL)


class Found(NamedTuple):
  """The transitions that were recorded for `B` keys.

  Attributes:
    rows: a dict of the columns of the transitions, every leaf `[B, ...]`, zeros
      where nothing was found; or ragged, `[B, (n), ...]`, for all duplicates.
    found: bool `[B]`: whether there is one.
    count: int64 `[B]`: how many times the key was recorded, its visits.
    index: int64 `[B]`, or ragged `[B, (n)]`: the number of the transition in
      the recorded data, -1 where nothing was found.
  """

  rows: Dict[str, Any]
  found: tf.Tensor
  count: tf.Tensor
  index: Any


class TransitionIndex:
  """Finds the transitions that were recorded for an observation and an action.

      recorded    o0 a1 r1   o0 a2 r2   o0 a1 r3
      key         o0 a1      o0 a3      o0 a1, duplicates="last"
      found       T          F          T
      reward      r1         0          r3
      count       2          0          2

  Keys are equal if their bytes are: -0.0 and 0.0 differ. A key that was not
  recorded is not found, however near another may be. Lookups work eagerly and
  in a graph, as in `tf.data.Dataset.map`.
  """

  def __init__(
      self,
      rows: Dict[str, Any],
      lengths: Any,
      keys: Sequence[str] = ('observation', 'action'),
  ):
    """Indexes rows that are in memory; `from_episodes` reads them.

    Args:
      rows: the columns of transition rows, every leaf `[N, ...]`.
      lengths: int64 `[E]`: how many rows each episode has.
      keys: the paths of the columns that make a key.

    Raises:
      ValueError: if there are no keys, no such column, or no transitions.
    """
    paths.check_list('keys', keys)
    if not keys:
      raise ValueError('keys must name a column, but is empty.')
    self._rows = tf.nest.map_structure(tf.convert_to_tensor, rows)
    self._lengths = tf.convert_to_tensor(lengths, tf.int64)
    self._keys = tuple(keys)
    recorded = self._key_of(self._rows)
    if not int(gathering.num_rows(recorded)):
      raise ValueError('There is no transition to index.')
    self._recorded = keys_lib.Keys(recorded)
    self._starts = tf.constant(self._recorded.starts)
    self._order = tf.constant(self._recorded.rows)
    self._graph: Optional[graph_lib.TransitionGraph] = None

  @classmethod
  def from_episodes(
      cls,
      rlds_data: tf.data.Dataset,
      keys: Sequence[str] = ('observation', 'action'),
  ) -> 'TransitionIndex':
    """Reads the transitions of all episodes into memory, and indexes them.

    Args:
      rlds_data: an RLDS data set, or a data set of `TransitionRows`.
      keys: the paths of the columns that make a key.

    Raises:
      ValueError: if there is no such column, no transition, or elements are
        not episodes.
      InvalidArgumentError: if fields of an episode differ in length.
    """
    joined = flat_rows.FlatRows.of(rlds_data)
    return cls(joined.rows, joined.lengths, keys)

  @classmethod
  def load(cls, directory: files.PathLike) -> 'TransitionIndex':
    """Reads what `save` wrote.

    Raises:
      ValueError: if there is no such index.
    """
    return cls(*storage.read(directory))

  def save(self, directory: files.PathLike, *, overwrite: bool = False) -> None:
    """Writes the transitions, from which `load` makes the index again.

    Args:
      directory: a folder, which appears whole or not at all.
      overwrite: whether a folder that is not empty is replaced.

    Raises:
      FileExistsError: if it is not empty.
    """
    storage.write(
        directory, self._rows, self._lengths, self._keys, overwrite=overwrite
    )

  def __len__(self) -> int:
    """Returns the number of recorded transitions."""
    return len(self._recorded.rows)

  @property
  def num_keys(self) -> int:
    """The number of distinct keys."""
    return len(self._recorded)

  @property
  def num_bytes(self) -> int:
    """The bytes of the index, without the transitions themselves."""
    return self._recorded.num_bytes

  @property
  def graph(self) -> graph_lib.TransitionGraph:
    """The graph of observations, which is made when it is first used."""
    if self._graph is None:
      with tf.init_scope():
        self._graph = graph_lib.TransitionGraph(self._rows, self._keys)
    return self._graph

  def lookup(self, keys: Dict[str, Any], duplicates: str = FIRST) -> Found:
    """Returns the transitions that were recorded for keys.

    Args:
      keys: a nest that has the columns of the key at their paths, every leaf
        `[B, ...]` in the dtype that was recorded. Others are ignored.
      duplicates: which transition of a key that was recorded several times:
        the `"first"`, the `"last"`, or `"all"` in their order.

    Returns:
      The `Found`.

    Raises:
      ValueError: if a column is missing, or of another dtype or shape; or
        `duplicates` is none of the three.
    """
    checks.check_choice('duplicates', duplicates, DUPLICATES)
    key, found = self._recorded.find(self._key_of(keys))
    starts = tf.gather(self._starts, key)
    count = tf.gather(self._starts, key + 1) - starts
    count = tf.where(found, count, 0)
    if duplicates == ALL:
      places = tf.ragged.range(starts, starts + count)
      index = tf.gather(self._order, places.values)
      ragged = lambda leaf: places.with_values(tf.gather(leaf, index))
      rows = tf.nest.map_structure(ragged, self._rows)
      return Found(rows, found, count, places.with_values(index))
    place = starts + count - 1 if duplicates == LAST else starts
    # What was not found has a place of some other key.
    index = tf.gather(self._order, tf.maximum(place, 0))
    rows = gathering.fill_unless(found, gathering.take(self._rows, index))
    return Found(rows, found, count, tf.where(found, index, -1))

  def successors(self, observation: Any) -> graph_lib.Successors:
    """Returns the recorded successors of observations; see `Successors`.

    Args:
      observation: a nest as recorded, every leaf `[B, ...]`.

    Raises:
      ValueError: if it is of another structure, dtype or shape, or the keys of
        this index have no observation.
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
    """Returns the trees of recorded successors of observations.

    Args:
      observation: a nest as recorded, every leaf `[B, ...]`: the roots.
      depth: how many transitions a path has at most.
      max_width: how many nodes a level of a tree has at most.
      gamma: the discount factor of the rewards on a path.

    Returns:
      The `Tree`.

    Raises:
      ValueError: as `successors` does, and if `depth` or `max_width` is not
        positive.
    """
    return self.graph.expand(observation, depth, max_width, gamma=gamma)

  def _key_of(self, nest) -> Dict[str, Any]:
    return {key: paths.get(nest, key) for key in self._keys}
