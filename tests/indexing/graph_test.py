"""Tests of the graph of recorded data, and of the trees in it."""

import numpy as np
import tensorflow as tf

from rlds2reverb import indexing
from tests import contract
from tests import golden


def _episode(observations, actions, rewards, *, terminal=False):
  steps = contract.make_steps(observations, rewards, terminal=terminal)
  steps['action'] = np.array([*actions, 0])
  return steps


# From 0 go the actions 1 and 3; from 1 go 1 and 2; the last episode repeats
# the second with another reward.
_EPISODES = [
    _episode([0, 1, 2, 3], [1, 1, 1], [1, 2, 3], terminal=True),
    _episode([0, 1, 4], [1, 2], [1, 5]),
    _episode([0, 6], [3], [7]),
    _episode([0, 1, 4], [1, 2], [1, 8]),
]
# Actions, and observations that they led to, on the paths of a tree that
# MCTSForest of TorchRL 0.14.1 (torch 2.13.0) makes of these episodes, from 0;
# and the returns of these paths.
_TORCHRL_PATHS = {
    ((1, 1.0), (1, 2.0), (1, 3.0)): 1 + 0.5 * 2 + 0.25 * 3,
    ((1, 1.0), (2, 4.0)): 1 + 0.5 * 6.5,
    ((3, 6.0),): 7.0,
}


def _make_index(episodes=tuple(_EPISODES), **kwargs):
  episodes = golden.stacked(list(episodes))
  return indexing.TransitionIndex.from_episodes(episodes, **kwargs)


def _paths(tree, root=0):
  """Returns the path to each leaf, as in `_TORCHRL_PATHS`, and its return."""
  tree = tf.nest.map_structure(lambda leaf: leaf[root].numpy(), tree)
  found = {}
  for depth, place in np.argwhere(tree.is_leaf):
    path, level, at = [], depth, place
    while level:
      path.append(
          (int(tree.action[level, at]), float(tree.observation[level, at]))
      )
      level, at = level - 1, tree.parent[level, at]
    found[tuple(path[::-1])] = float(tree.path_return[depth, place])
  return found


class SuccessorsTest(tf.test.TestCase):

  def test_edges_with_their_counts(self):
    index = _make_index()
    actual = index.successors(tf.constant([0.0, 1, 4, 9]))
    self.assertAllEqual(
        actual.rows['action'], tf.ragged.constant([[1, 3], [1, 2], [], []])
    )
    self.assertAllEqual(
        actual.rows['next_observation'],
        tf.ragged.constant([[1.0, 6], [2, 4], [], []]),
    )
    self.assertAllEqual(
        actual.count, tf.ragged.constant([[3, 1], [1, 2], [], []])
    )
    self.assertAllEqual(
        actual.reward, tf.ragged.constant([[1.0, 7], [2, 6.5], [], []])
    )
    # The last observation of an episode was recorded; nothing followed.
    self.assertAllEqual(actual.is_recorded, [1, 1, 1, 0])
    self.assertEqual(index.graph.num_states, 6)
    self.assertEqual(index.graph.num_edges, 5)
    (mapped,) = tf.data.Dataset.from_tensors([0.0, 1, 4, 9]).map(
        index.successors
    )
    tf.nest.map_structure(self.assertAllEqual, mapped, actual)

  def test_terminal_and_non_terminal_edges_are_separate(self):
    index = _make_index(
        [
            _episode([0, 1], [1], [1], terminal=True),
            _episode([0, 1, 2], [1, 1], [3, 4]),
        ]
    )
    actual = index.successors(tf.constant([0.0]))
    self.assertAllEqual(actual.is_terminal, tf.ragged.constant([[True, False]]))
    self.assertAllEqual(actual.reward, tf.ragged.constant([[1.0, 3.0]]))
    tree = index.expand(tf.constant([0.0]), 2, 2)
    # A terminal node has no successors.
    self.assertEqual(
        _paths(tree), {((1, 1.0),): 1.0, ((1, 1.0), (1, 2.0)): 7.0}
    )


class ExpandTest(tf.test.TestCase):

  def test_paths_equal_torchrl(self):
    index = _make_index()
    tree = index.expand(tf.constant([0.0]), 5, 4, gamma=0.5)
    self.assertEqual(_paths(tree), _TORCHRL_PATHS)
    # Each level separately, with two roots without successors.
    tree = index.expand(tf.constant([0.0, 9.0, 3.0]), 2, 3)
    self.assertAllEqual(tree.mask[0], [[1, 0, 0], [1, 1, 0], [1, 1, 0]])
    self.assertAllEqual(tree.parent[0], [[-1, -1, -1], [0, 0, -1], [0, 0, -1]])
    self.assertAllEqual(tree.count[0], [[0, 0, 0], [3, 1, 0], [1, 2, 0]])
    self.assertAllEqual(tree.observation[0], [[0, 0, 0], [1, 6, 0], [2, 4, 0]])
    self.assertFalse(tf.reduce_any(tree.mask[1]))
    self.assertAllEqual(tree.mask[2, 1:], [[0] * 3] * 2)
    self.assertAllEqual(tree.is_recorded, [True, False, True])
    self.assertAllEqual(tree.is_leaf[2, 0], [True, False, False])
    self.assertAllEqual(tree.num_dropped, [0, 0, 0])
    # Without room.
    tree = index.expand(tf.constant([0.0, 1.0]), 2, 1)
    self.assertAllEqual(tree.mask, [[[1]] * 3, [[1]] * 3])
    self.assertAllEqual(tree.num_dropped, [2, 1])
    # Cycles end at the depth.
    index = _make_index([_episode([0, 1, 0], [1, 1], [1, 2])])
    tree = index.expand(tf.constant([0.0]), 4, 2)
    self.assertEqual(list(_paths(tree).values()), [6.0])

  def test_bad_arguments(self):
    index = _make_index()
    with self.assertRaisesRegex(
        ValueError, 'observation of a key must be float32'
    ):
      index.successors(tf.zeros([1], tf.float64))
    with self.assertRaisesRegex(ValueError, 'other keys for'):
      _make_index(keys=('observation',)).successors(tf.zeros([1]))
    with self.assertRaisesRegex(ValueError, 'depth must be a positive'):
      index.expand(tf.zeros([1]), 0, 1)
    with self.assertRaisesRegex(ValueError, 'max_width must be a positive'):
      index.expand(tf.zeros([1]), 1, 0)


if __name__ == '__main__':
  tf.test.main()
