"""The graph of recorded transitions: observations are states, actions edges.

It is similar to TorchRL's `MCTSForest`, for tree search. A *state* is an
observation, identified by its bytes. An *edge* is a recorded action in a state,
together with the next state and whether the episode terminated there. It may
have been recorded several times.
"""

from collections.abc import Sequence
import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.windows import transitions


class KeyTable:
  """The distinct keys of rows in memory, sorted by their bytes.

  Two keys are equal if all their bytes are equal: -0.0 and 0.0 differ, and a
  NaN equals a NaN of the same bits.

  Attributes:
    row_splits: int64 `[K + 1]`: the rows of key `k` are
      `rows[row_splits[k]:row_splits[k + 1]]`.
    rows: int64 `[N]`: the indices of the rows, grouped by key; the rows of a
      key are in the order of the data.
    key_ids: int64 `[N]`: the index of the key of each row.
  """

  def __init__(self, columns: Any):
    """Sorts rows by their keys.

    Args:
      columns: a nest of tensors `[N, ...]`, with at least one row.
    """
    self._specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
        columns,
    )
    keys = _to_bytes([leaf.numpy() for leaf in tf.nest.flatten(columns)])
    self.rows = np.argsort(keys, kind='stable')
    keys = keys[self.rows]
    is_new = np.append(True, keys[1:] != keys[:-1])
    self.key_ids = np.empty(len(keys), np.int64)
    self.key_ids[self.rows] = np.cumsum(is_new) - 1
    self.row_splits = np.append(np.flatnonzero(is_new), len(keys))
    self._keys = keys[is_new]

  def __len__(self) -> int:
    """Returns the number of distinct keys."""
    return len(self._keys)

  @property
  def num_bytes(self) -> int:
    arrays = (self._keys, self.rows, self.row_splits, self.key_ids)
    return sum(array.nbytes for array in arrays)

  def find(self, queries: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the indices of keys, and whether each key exists.

    Args:
      queries: a nest like the columns, every leaf `[B, ...]`.

    Returns:
      The indices, int64 `[B]`, arbitrary for unknown keys; and bool `[B]`.

    Raises:
      ValueError: if the structure, dtypes or shapes differ from the columns, so
        that no key could be equal.
    """
    queries = tf.nest.map_structure(tf.convert_to_tensor, queries)
    tf.nest.assert_same_structure(queries, self._specs)
    specs = tf.nest.flatten(self._specs)
    for (path, leaf), spec in zip(tree.flatten_with_path(queries), specs):
      if leaf.dtype != spec.dtype or not spec.shape.is_compatible_with(
          leaf.shape
      ):
        raise ValueError(
            f'{paths.name_of(path)} of a key must be {spec.dtype.name}'
            f' {spec.shape}, as recorded, with keys along the first dimension,'
            f' but is {leaf.dtype.name} {leaf.shape}.'
        )

    def search(*leaves):
      keys = _to_bytes(leaves)
      key_ids = np.searchsorted(self._keys, keys)
      key_ids = np.minimum(key_ids, len(self._keys) - 1)
      return key_ids, self._keys[key_ids] == keys

    leaves = tf.nest.flatten(queries)
    key_ids, exists = tf.numpy_function(search, leaves, [tf.int64, tf.bool])
    shape = leaves[0].shape[:1]
    return tf.ensure_shape(key_ids, shape), tf.ensure_shape(exists, shape)


def _to_bytes(leaves: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the bytes of each row of all leaves, with hashes of strings."""
  columns = []
  for leaf in leaves:
    if leaf.dtype == object:
      hashes = [
          hashlib.blake2b(string, digest_size=16).digest()
          for string in leaf.flat
      ]
      # Void, because the dtype S strips trailing zero bytes.
      leaf = np.array(hashes, 'V16').reshape(leaf.shape)
    num_bytes = leaf.dtype.itemsize * math.prod(leaf.shape[1:])
    flat = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    columns.append(flat.reshape([len(leaf), num_bytes]))
  # One more byte, because a row of zero bytes has no void dtype.
  columns.append(np.zeros([len(leaves[0]), 1], np.uint8))
  rows = np.concatenate(columns, 1)
  return rows.view(f'V{rows.shape[1]}')[:, 0]


class Successors(NamedTuple):
  """The recorded successors of `B` observations, with `n` edges each.

  Attributes:
    rows: a dict of the columns of the first recorded transition of each edge,
      every leaf ragged, `[B, (n), ...]`, such as `next_observation`.
    reward: float32 `[B, (n)]`: the mean reward of each edge.
    count: int64 `[B, (n)]`: how often each edge was recorded.
    is_terminal: bool `[B, (n)]`: whether the next state is terminal.
    is_recorded: bool `[B]`: whether the observation was recorded. The last
      observation of an episode has no edges.
  """

  rows: dict[str, Any]
  reward: tf.RaggedTensor
  count: tf.RaggedTensor
  is_terminal: tf.RaggedTensor
  is_recorded: tf.Tensor


class Tree(NamedTuple):
  """`B` trees of depth `D`, with at most `W` nodes on each of `D + 1` levels.

  The root is node 0 of level 0. Every other node is an edge of the graph, from
  the state of its parent.

  Attributes:
    mask: bool `[B, D + 1, W]`: False for padding.
    parent: int64 `[B, D + 1, W]`: the index of the parent on the level above;
      -1 for roots and padding.
    observation: a nest of `[B, D + 1, W, ...]`: the observation of each node.
    action: a nest of `[B, D + 1, W, ...]`: the action that leads to the node;
      zeros for roots.
    reward: float32 `[B, D + 1, W]`: the mean reward of the edge.
    count: int64 `[B, D + 1, W]`: how often the edge was recorded.
    is_terminal: bool `[B, D + 1, W]`: whether the node is terminal; terminal
      nodes have no children.
    path_return: float32 `[B, D + 1, W]`: the discounted sum of the rewards from
      the root.
    is_leaf: bool `[B, D + 1, W]`: whether a path ends at the node: it is
      terminal, has no recorded successors, or is on the last level.
    num_dropped: int64 `[B]`: the number of nodes that exceed `W` on their
      level, without their descendants.
    is_recorded: bool `[B]`: whether the root was recorded.
  """

  mask: tf.Tensor
  parent: tf.Tensor
  observation: Any
  action: Any
  reward: tf.Tensor
  count: tf.Tensor
  is_terminal: tf.Tensor
  path_return: tf.Tensor
  is_leaf: tf.Tensor
  num_dropped: tf.Tensor
  is_recorded: tf.Tensor


class TransitionGraph:
  """The states and edges of recorded transitions."""

  def __init__(self, rows: dict[str, Any], keys: Sequence[str]):
    """Builds the graph of transition rows in memory.

    Args:
      rows: the columns of transition rows, every leaf a tensor `[N, ...]`.
      keys: the paths of columns. The paths within the observation identify a
        state, all others an action.

    Raises:
      ValueError: if `keys` has no observation or no action, or the reward is
        not one number per row.
    """
    self._state_keys = [k for k in keys if k.split('/')[0] == rlds.OBSERVATION]
    actions = {
        key: paths.get(rows, key) for key in keys if key not in self._state_keys
    }
    if not self._state_keys or not actions:
      raise ValueError(
          'The graph needs keys within the observation, and other keys for'
          f' actions, but the keys are {tuple(keys)}.'
      )
    self._rows = rows
    reward = paths.get(rows, rlds.REWARD).numpy().astype(np.float64)
    num_rows = int(rows_lib.num_rows(rows))
    if reward.size != num_rows:
      raise ValueError(
          'The graph needs a reward of one number per row, but the shape of the'
          f' reward is {reward.shape}.'
      )
    # The current observations of all rows, followed by the next observations.
    self._observations = tf.nest.map_structure(
        lambda *pair: tf.concat(pair, 0),
        paths.get(rows, rlds.OBSERVATION),
        paths.get(rows, transitions.NEXT_OBSERVATION),
    )
    self._states = KeyTable(self._get_state_key(self._observations))
    source, target = np.split(self._states.key_ids, 2)
    is_terminal = rows.get(rlds.IS_TERMINAL, tf.zeros([num_rows], tf.bool))
    edges = KeyTable(
        (tf.constant(source), actions, tf.constant(target), is_terminal)
    )
    first_rows = edges.rows[edges.row_splits[:-1]]
    # Sort edges by their source state, then by their first recording.
    order = np.lexsort((first_rows, source[first_rows]))
    row = first_rows[order]
    counts = np.diff(edges.row_splits)[order]
    rewards = np.bincount(edges.key_ids, reward.ravel())[order]
    self._edges = {
        'row': tf.constant(row),
        'target': tf.constant(target[row]),
        'count': tf.constant(counts),
        'reward': tf.constant(rewards / counts, tf.float32),
        'is_terminal': tf.gather(is_terminal, row),
    }
    # The edges from state s are edge_splits[s] to edge_splits[s + 1].
    self._edge_splits = tf.constant(
        np.searchsorted(source[row], np.arange(len(self._states) + 1))
    )
    # The index of the first observation of each state, in _observations.
    self._observation_of_state = tf.constant(
        self._states.rows[self._states.row_splits[:-1]]
    )

  @property
  def num_states(self) -> int:
    return len(self._states)

  @property
  def num_edges(self) -> int:
    return int(self._edges['row'].shape[0])

  @property
  def num_bytes(self) -> int:
    """The memory of states and edges, in bytes."""
    tensors = (
        self._edge_splits,
        self._observation_of_state,
        *self._edges.values(),
    )
    return self._states.num_bytes + sum(
        tensor.numpy().nbytes for tensor in tensors
    )

  def successors(self, observation: Any) -> Successors:
    """Returns the recorded successors; see `TransitionIndex.successors`."""
    state, is_recorded = self._states.find(self._get_state_key(observation))
    starts = tf.gather(self._edge_splits, state)
    ends = tf.gather(self._edge_splits, state + 1)
    edges = tf.ragged.range(starts, tf.where(is_recorded, ends, starts))
    columns = rows_lib.take(self._edges, edges.values)
    rows = rows_lib.take(self._rows, columns['row'])
    return Successors(
        rows=tf.nest.map_structure(edges.with_values, rows),
        reward=edges.with_values(columns['reward']),
        count=edges.with_values(columns['count']),
        is_terminal=edges.with_values(columns['is_terminal']),
        is_recorded=is_recorded,
    )

  def expand(
      self, observation: Any, depth: int, max_width: int, *, gamma: float = 1.0
  ) -> Tree:
    """Returns the trees from observations; see `TransitionIndex.expand`."""
    checks.check_positive('depth', depth)
    checks.check_positive('max_width', max_width)
    root, is_recorded = self._states.find(self._get_state_key(observation))
    *nodes, num_dropped = tf.numpy_function(
        lambda root, exists: self._expand(
            root, exists, depth, max_width, gamma
        ),
        [root, is_recorded],
        [tf.int64] * 3 + [tf.float32, tf.bool, tf.int64],
    )
    shape = [*root.shape, depth + 1, max_width]
    parent, edge, state, path_return, is_leaf = (
        tf.ensure_shape(leaf, shape) for leaf in nodes
    )
    mask, is_edge = state >= 0, edge >= 0
    edges = rows_lib.take(self._edges, tf.maximum(edge, 0))
    edges[rlds.ACTION] = rows_lib.take(
        self._rows.get(rlds.ACTION, ()), edges['row']
    )
    edges = rows_lib.fill_unless(is_edge, edges)
    index = tf.gather(self._observation_of_state, tf.maximum(state, 0))
    observations = rows_lib.take(self._observations, index)
    return Tree(
        mask=mask,
        parent=parent,
        observation=rows_lib.fill_unless(mask, observations),
        action=edges[rlds.ACTION],
        reward=edges['reward'],
        count=edges['count'],
        is_terminal=edges['is_terminal'],
        path_return=path_return,
        is_leaf=is_leaf,
        num_dropped=tf.ensure_shape(num_dropped, is_recorded.shape),
        is_recorded=is_recorded,
    )

  def _expand(self, roots, is_recorded, depth, max_width, gamma):
    """Expands all trees level by level, in NumPy.

    Returns:
      The parent, edge, state, path return and leaf flag of each node,
      `[B, depth + 1, max_width]`, with -1 for padding; and the number of
      dropped nodes of each tree.
    """
    shape = (len(roots), depth + 1, max_width)
    parent, edge, state = (np.full(shape, -1) for _ in range(3))
    path_return, is_leaf = np.zeros(shape, np.float32), np.zeros(shape, bool)
    num_dropped = np.zeros(len(roots), np.int64)
    edges = {name: column.numpy() for name, column in self._edges.items()}
    edge_splits = self._edge_splits.numpy()
    state[is_recorded, 0, 0] = roots[is_recorded]
    for level in range(depth):
      tree_ids, slots = np.nonzero(state[:, level] >= 0)
      states = state[tree_ids, level, slots]
      num_children = edge_splits[states + 1] - edge_splits[states]
      if level:
        is_terminal = edges['is_terminal'][edge[tree_ids, level, slots]]
        num_children[is_terminal] = 0
      is_leaf[tree_ids, level, slots] = num_children == 0
      # One entry per child, in the order of the nodes of this level.
      node = np.repeat(np.arange(len(states)), num_children)
      first_child = np.cumsum(num_children) - num_children
      child_edge = (
          edge_splits[states[node]] + np.arange(len(node)) - first_child[node]
      )
      tree_id = tree_ids[node]
      slot = np.arange(len(node)) - np.searchsorted(tree_id, tree_id)
      np.add.at(num_dropped, tree_id[slot >= max_width], 1)
      fits = slot < max_width
      node, child_edge, tree_id = node[fits], child_edge[fits], tree_id[fits]
      child = tree_id, level + 1, slot[fits]
      parent[child] = slots[node]
      edge[child] = child_edge
      state[child] = edges['target'][child_edge]
      reward = np.float32(gamma**level) * edges['reward'][child_edge]
      path_return[child] = path_return[tree_id, level, slots[node]] + reward
    is_leaf[:, depth] = state[:, depth] >= 0
    return parent, edge, state, path_return, is_leaf, num_dropped

  def _get_state_key(self, observation) -> dict[str, Any]:
    nest = {rlds.OBSERVATION: observation}
    return {key: paths.get(nest, key) for key in self._state_keys}
