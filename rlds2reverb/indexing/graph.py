"""The graph of recorded data: observations, and the actions between them.

It is like TorchRL's `MCTSForest`, which serves a tree search. A *state* is an
observation, by its bytes. An *edge* is an action that was recorded in a state,
with the next state, and whether the episode ended there. It may have been
recorded several times.
"""

from typing import Any, Dict, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.indexing import keys as keys_lib
from rlds2reverb.windows import transitions


class Successors(NamedTuple):
  """The recorded successors of `B` observations; `n` edges leave each.

  Attributes:
    rows: a dict of the columns of the first transition recorded for each edge,
      every leaf ragged, `[B, (n), ...]`; `next_observation` among them.
    reward: float32 `[B, (n)]`: the mean reward of each edge.
    count: int64 `[B, (n)]`: how many times each was recorded.
    is_terminal: bool `[B, (n)]`: whether the state that followed was terminal.
    found: bool `[B]`: whether the observation was recorded, if only as a last
      one, without edges.
  """

  rows: Dict[str, Any]
  reward: tf.RaggedTensor
  count: tf.RaggedTensor
  is_terminal: tf.RaggedTensor
  found: tf.Tensor


class Tree(NamedTuple):
  """Trees of depth `D`, with at most `W` nodes on each of the `D + 1` levels.

  The root is the node 0 of level 0. Every other node is an edge of the graph,
  taken from its parent.

  Attributes:
    mask: bool `[B, D + 1, W]`: where there is a node.
    parent: int64 `[B, D + 1, W]`: the place of the parent on the level above;
      -1 at a root and where there is no node.
    observation: a nest of `[B, D + 1, W, ...]`: the observation of each node.
    action: a nest of `[B, D + 1, W, ...]`: the action before it; zeros at a
      root.
    reward: float32 `[B, D + 1, W]`: the mean reward on the way from its parent.
    count: int64 `[B, D + 1, W]`: how many times this edge was recorded.
    is_terminal: bool `[B, D + 1, W]`: whether the node is terminal: no path
      goes on from it.
    path_return: float32 `[B, D + 1, W]`: the sum of the rewards from the root,
      the k-th times `gamma**k`.
    is_leaf: bool `[B, D + 1, W]`: where a path ends: at a terminal node, where
      nothing more was recorded, or where the depth is reached.
    num_left_out: int64 `[B]`: the nodes for which a level had no room; nodes
      below them are not counted.
    found: bool `[B]`: whether the root was recorded.
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
  num_left_out: tf.Tensor
  found: tf.Tensor


class TransitionGraph:
  """States and edges, found when it is created."""

  def __init__(self, rows: Dict[str, Any], keys: Sequence[str]):
    """Finds the states and edges of transition rows in memory.

    Args:
      rows: the columns of transition rows, every leaf a tensor `[N, ...]`.
      keys: the paths of columns: those of the observation make a state, all
        others an action.

    Raises:
      ValueError: if there is no observation, no action, or no reward of one
        number a row.
    """
    observed = [key for key in keys if key.split('/')[0] == rlds.OBSERVATION]
    actions = {key: paths.get(rows, key) for key in keys if key not in observed}
    if not observed or not actions:
      raise ValueError(
          'Successors need keys of an observation and of an action, but the'
          f' keys are {tuple(keys)}.'
      )
    self._observed = observed
    self._rows = rows
    reward = paths.get(rows, rlds.REWARD).numpy().astype(np.float64)
    count = int(gathering.num_rows(rows))
    if reward.size != count:
      raise ValueError(
          'Successors need a reward of one number a row, but its shape is'
          f' {reward.shape}.'
      )
    # All observations, those before a transition and then those after it.
    self._observations = tf.nest.map_structure(
        lambda *pair: tf.concat(pair, 0),
        paths.get(rows, rlds.OBSERVATION),
        paths.get(rows, transitions.NEXT_OBSERVATION),
    )
    self._states = keys_lib.Keys(self._observed_of(self._observations))
    source, target = np.split(self._states.group, 2)
    ends = rows.get(rlds.IS_TERMINAL, tf.zeros([count], tf.bool))
    edges = keys_lib.Keys(
        (tf.constant(source), actions, tf.constant(target), ends)
    )
    first_row = edges.rows[edges.starts[:-1]]
    # Edges are in the order of their states, then of their first recording.
    order = np.lexsort((first_row, source[first_row]))
    row = first_row[order]
    counts = np.diff(edges.starts)[order]
    sums = np.bincount(edges.group, reward.ravel())[order]
    self._edges = {
        'row': tf.constant(row),
        'target': tf.constant(target[row]),
        'count': tf.constant(counts),
        'reward': tf.constant(sums / counts, tf.float32),
        'is_terminal': tf.gather(ends, row),
    }
    # Of a state s, the edges are those from starts[s] to starts[s + 1].
    self._starts = tf.constant(
        np.searchsorted(source[row], np.arange(len(self._states) + 1))
    )
    # The first row of each state, among all observations.
    self._state_row = tf.constant(self._states.rows[self._states.starts[:-1]])

  @property
  def num_states(self) -> int:
    return len(self._states)

  @property
  def num_edges(self) -> int:
    return int(self._edges['row'].shape[0])

  @property
  def num_bytes(self) -> int:
    """The bytes that states and edges take."""
    tensors = (self._starts, self._state_row, *self._edges.values())
    return self._states.num_bytes + sum(one.numpy().nbytes for one in tensors)

  def successors(self, observation: Any) -> Successors:
    """Returns the `Successors` of observations; see `TransitionIndex`."""
    state, found = self._find(observation)
    starts = tf.gather(self._starts, state)
    ends = tf.where(found, tf.gather(self._starts, state + 1), starts)
    edges = tf.ragged.range(starts, ends)
    taken = gathering.take(self._edges, edges.values)
    rows = gathering.take(self._rows, taken['row'])
    return Successors(
        rows=tf.nest.map_structure(edges.with_values, rows),
        reward=edges.with_values(taken['reward']),
        count=edges.with_values(taken['count']),
        is_terminal=edges.with_values(taken['is_terminal']),
        found=found,
    )

  def expand(
      self, observation: Any, depth: int, max_width: int, *, gamma: float = 1.0
  ) -> Tree:
    """Returns the `Tree` of each observation; see `TransitionIndex`."""
    checks.check_positive('depth', depth)
    checks.check_positive('max_width', max_width)
    state, found = self._find(observation)
    *nodes, left_out = tf.numpy_function(
        lambda state, found: self._grow(state, found, depth, max_width, gamma),
        [state, found],
        [tf.int64] * 3 + [tf.float32, tf.bool, tf.int64],
    )
    shape = [*state.shape, depth + 1, max_width]
    parent, edge, state, path_return, is_leaf = (
        tf.ensure_shape(leaf, shape) for leaf in nodes
    )
    mask, is_edge = state >= 0, edge >= 0
    state, edge = tf.maximum(state, 0), tf.maximum(edge, 0)
    edges = gathering.take(self._edges, edge)
    action = gathering.take(self._rows.get(rlds.ACTION, ()), edges['row'])
    place = tf.gather(self._state_row, state)
    observations = gathering.take(self._observations, place)
    of_edges = gathering.fill_unless(is_edge, {**edges, 'action': action})
    return Tree(
        mask=mask,
        parent=parent,
        observation=gathering.fill_unless(mask, observations),
        action=of_edges['action'],
        reward=of_edges['reward'],
        count=of_edges['count'],
        is_terminal=of_edges['is_terminal'],
        path_return=path_return,
        is_leaf=is_leaf,
        num_left_out=tf.ensure_shape(left_out, found.shape),
        found=found,
    )

  def _grow(self, roots, found, depth, max_width, gamma):
    """Returns the nodes of all trees, -1 where there is none.

    Returns:
      The parent, the edge from it, the state, the return of the path and
      whether it ends here, each `[B, depth + 1, max_width]`; and how many nodes
      of each tree had no room.
    """
    shape = (len(roots), depth + 1, max_width)
    parent, edge, state = (np.full(shape, -1) for _ in range(3))
    path_return, is_leaf = np.zeros(shape, np.float32), np.zeros(shape, bool)
    left_out = np.zeros(len(roots), np.int64)
    edges = {name: column.numpy() for name, column in self._edges.items()}
    starts = self._starts.numpy()
    state[found, 0, 0] = roots[found]
    for level in range(depth):
      root, place = np.nonzero(state[:, level] >= 0)
      here = state[root, level, place]
      num_edges = starts[here + 1] - starts[here]
      if level:
        num_edges[edges['is_terminal'][edge[root, level, place]]] = 0
      is_leaf[root, level, place] = num_edges == 0
      # The children of all nodes, one after the other.
      node = np.repeat(np.arange(len(here)), num_edges)
      nth = np.arange(len(node)) - (np.cumsum(num_edges) - num_edges)[node]
      taken = starts[here[node]] + nth
      tree = root[node]
      slot = np.arange(len(node)) - np.searchsorted(tree, tree)
      np.add.at(left_out, tree[slot >= max_width], 1)
      fits = slot < max_width
      node, taken = node[fits], taken[fits]
      below = tree[fits], level + 1, slot[fits]
      parent[below] = place[node]
      edge[below] = taken
      state[below] = edges['target'][taken]
      reward = np.float32(gamma**level) * edges['reward'][taken]
      path_return[below] = path_return[root[node], level, place[node]] + reward
    is_leaf[:, depth] = state[:, depth] >= 0
    return parent, edge, state, path_return, is_leaf, left_out

  def _find(self, observation):
    return self._states.find(self._observed_of(observation))

  def _observed_of(self, observation) -> Dict[str, Any]:
    nest = {rlds.OBSERVATION: observation}
    return {key: paths.get(nest, key) for key in self._observed}
