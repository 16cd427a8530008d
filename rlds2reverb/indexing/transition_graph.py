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
      rows: the columns of transition rows, every leaf `[N, ...]`.
      keys: the paths of columns: those of the observation make a state, all
        others an action.

    Raises:
      ValueError: if there is no observation, no action, or no reward of one
        number a row.
    """
    observed = [key for key in keys if key.split('/')[0] == rlds.OBSERVATION]
    acted = [key for key in keys if key not in observed]
    if not observed or not acted:
      raise ValueError(
          'Successors need keys of an observation and of an action, but the'
          f' keys are {tuple(keys)}.'
      )
    self._observed = observed
    self._rows = rows
    reward = tf.cast(paths.get(rows, rlds.REWARD), tf.float64)
    count = int(gathering.num_rows(rows))
    if int(tf.size(reward)) != count:
      raise ValueError(
          'Successors need a reward of one number a row, but its shape is'
          f' {reward.shape}.'
      )
    before = {key: paths.get(rows, key) for key in observed}
    after = {
        key: paths.get(
            rows, transitions.NEXT_OBSERVATION + key[len(rlds.OBSERVATION) :]
        )
        for key in observed
    }
    self._specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), before
    )
    states = keys_lib.group_rows(
        tf.nest.map_structure(lambda *pair: tf.concat(pair, 0), before, after)
    )
    actions = {key: paths.get(rows, key) for key in acted}
    self._make_edges(states, actions, reward)

  def _make_edges(self, states, actions, reward):
    """Finds the edges, given the states before and after each row."""
    rows, count = self._rows, len(states.group) // 2
    source, target = np.split(states.group, 2)
    ends = rows.get(rlds.IS_TERMINAL, tf.zeros([count], tf.bool))
    edges = keys_lib.group_rows(
        (
            tf.constant(source),
            actions,
            tf.constant(target),
            ends,
        )
    )
    edge_rows = edges.rows[edges.starts[:-1]]
    # Edges are in the order of their states, then of their first recording.
    order = np.lexsort((edge_rows, source[edge_rows]))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    edge_of_row = rank[edges.group]
    counts = np.bincount(edge_of_row, minlength=len(order))
    sums = np.bincount(
        edge_of_row, tf.reshape(reward, [-1]).numpy(), minlength=len(order)
    )
    self._salt = states.salt
    self._fingerprints = tf.constant(states.fingerprints, tf.int64)
    self._state_row = tf.constant(states.rows[states.starts[:-1]], tf.int64)
    self._num_rows = count
    self._edge_starts = tf.constant(
        np.searchsorted(
            source[edge_rows[order]], np.arange(len(states.fingerprints) + 1)
        ),
        tf.int64,
    )
    self._edge_row = tf.constant(edge_rows[order], tf.int64)
    self._edge_target = tf.constant(target[edge_rows[order]], tf.int64)
    self._edge_reward = tf.constant(sums / counts, tf.float32)
    self._edge_count = tf.constant(counts, tf.int64)
    self._edge_is_terminal = tf.gather(ends, self._edge_row)

  @property
  def num_states(self) -> int:
    return int(self._fingerprints.shape[0])

  @property
  def num_edges(self) -> int:
    return int(self._edge_row.shape[0])

  @property
  def num_bytes(self) -> int:
    """The bytes that states and edges take."""
    tensors = (
        self._fingerprints,
        self._state_row,
        self._edge_starts,
        self._edge_row,
        self._edge_target,
        self._edge_reward,
        self._edge_count,
        self._edge_is_terminal,
    )
    return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in tensors)

  def successors(self, observation: Any) -> Successors:
    """Returns the `Successors` of observations; see `TransitionIndex`."""
    state, found = self._find(observation)
    edges = self._edges_of(state, found)
    take = lambda leaf: edges.with_values(tf.gather(leaf, edges.values))
    row = tf.gather(self._edge_row, edges.values)
    return Successors(
        rows=tf.nest.map_structure(
            lambda leaf: edges.with_values(tf.gather(leaf, row)), self._rows
        ),
        reward=take(self._edge_reward),
        count=take(self._edge_count),
        is_terminal=take(self._edge_is_terminal),
        found=found,
    )

  def expand(
      self, observation: Any, depth: int, max_width: int, *, gamma: float = 1.0
  ) -> Tree:
    """Returns the `Tree` of each observation; see `TransitionIndex`."""
    checks.check_positive('depth', depth)
    checks.check_positive('max_width', max_width)
    state, found = self._find(observation)
    num_roots = tf.size(state, tf.int64)
    here = tf.range(max_width, dtype=tf.int64)[tf.newaxis] == 0
    level = _Level(
        mask=found[:, tf.newaxis] & here,
        parent=tf.fill([num_roots, max_width], tf.constant(-1, tf.int64)),
        edge=tf.fill([num_roots, max_width], tf.constant(-1, tf.int64)),
        state=tf.where(here, state[:, tf.newaxis], 0),
        path_return=tf.zeros([num_roots, max_width]),
    )
    levels, leaves = [level], []
    left_out = tf.zeros_like(state)
    for power in range(depth):
      level, is_leaf, more = self._next_level(level, gamma**power)
      left_out += more
      levels.append(level)
      leaves.append(is_leaf)
    leaves.append(level.mask)
    stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts, 1), *levels)
    stacked = tf.nest.map_structure(
        lambda leaf: tf.ensure_shape(leaf, [None, depth + 1, max_width]),
        stacked,
    )
    return self._to_tree(stacked, tf.stack(leaves, 1), left_out, found)

  def _next_level(self, level: '_Level', discount: float):
    """Returns the next level, the leaves, and how many nodes had no room."""
    max_width = level.mask.shape[1]
    num_roots = tf.shape(level.mask, tf.int64)[0]
    state = tf.reshape(level.state, [-1])
    goes_on = level.mask & ~(
        (level.edge >= 0)
        & tf.gather(self._edge_is_terminal, tf.maximum(level.edge, 0))
    )
    edges = self._edges_of(state, tf.reshape(goes_on, [-1]))
    parents = edges.with_values(edges.value_rowids() % max_width)
    lengths = tf.reduce_sum(
        tf.reshape(edges.row_lengths(), [num_roots, max_width]), 1
    )

    def pad(values, default):
      return tf.RaggedTensor.from_row_lengths(values, lengths).to_tensor(
          default, shape=[None, max_width]
      )

    edge = pad(edges.values, -1)
    parent = pad(parents.values, -1)
    mask = edge >= 0
    safe = tf.maximum(edge, 0)
    path_return = tf.gather(
        level.path_return, tf.maximum(parent, 0), batch_dims=1
    ) + discount * tf.gather(self._edge_reward, safe)
    is_leaf = level.mask & tf.reshape(
        edges.row_lengths() == 0, [num_roots, max_width]
    )
    below = _Level(
        mask=mask,
        parent=parent,
        edge=edge,
        state=tf.where(mask, tf.gather(self._edge_target, safe), 0),
        path_return=tf.where(mask, path_return, 0.0),
    )
    return below, is_leaf, tf.maximum(lengths - max_width, 0)

  def _to_tree(self, levels: '_Level', is_leaf, left_out, found) -> Tree:
    is_edge = levels.edge >= 0
    edge = tf.maximum(levels.edge, 0)
    row = tf.gather(self._edge_row, edge)
    keep = gathering.zeros_unless
    return Tree(
        mask=levels.mask,
        parent=levels.parent,
        observation=keep(levels.mask, self._observation(levels.state)),
        action=keep(
            is_edge,
            gathering.take(paths.get(self._rows, rlds.ACTION), row)
            if rlds.ACTION in self._rows
            else (),
        ),
        reward=keep(is_edge, tf.gather(self._edge_reward, edge)),
        count=keep(is_edge, tf.gather(self._edge_count, edge)),
        is_terminal=keep(is_edge, tf.gather(self._edge_is_terminal, edge)),
        path_return=levels.path_return,
        is_leaf=is_leaf,
        num_left_out=left_out,
        found=found,
    )

  def _observation(self, state, key: str = rlds.OBSERVATION) -> Any:
    """Returns the observations of states, a nest of `state.shape + [...]`."""
    place = tf.gather(self._state_row, state)
    is_after = place >= self._num_rows
    row = tf.where(is_after, place - self._num_rows, place)
    after = transitions.NEXT_OBSERVATION + key[len(rlds.OBSERVATION) :]

    def select(leaf, following):
      ones = [1] * (leaf.shape.rank - 1)
      mask = tf.reshape(is_after, tf.concat([tf.shape(is_after), ones], 0))
      return tf.where(mask, tf.gather(following, row), tf.gather(leaf, row))

    return tf.nest.map_structure(
        select, paths.get(self._rows, key), paths.get(self._rows, after)
    )

  def _find(self, observation):
    nest = {rlds.OBSERVATION: observation}
    wanted = {
        key: tf.nest.map_structure(tf.convert_to_tensor, paths.get(nest, key))
        for key in self._observed
    }
    keys_lib.check_keys(wanted, self._specs)
    state, found = keys_lib.find_group(wanted, self._fingerprints, self._salt)
    recorded = {key: self._observation(state, key) for key in self._observed}
    return state, found & keys_lib.are_equal(wanted, recorded)

  def _edges_of(self, state, keep) -> tf.RaggedTensor:
    """Returns the numbers of the edges of states, where `keep` is True."""
    starts = tf.gather(self._edge_starts, state)
    ends = tf.gather(self._edge_starts, state + 1)
    return tf.ragged.range(starts, tf.where(keep, ends, starts))


class _Level(NamedTuple):
  """Nodes of one level of the trees, every tensor `[B, W]`."""

  mask: tf.Tensor
  parent: tf.Tensor
  edge: tf.Tensor
  state: tf.Tensor
  path_return: tf.Tensor
