"""Tests of the index of recorded transitions."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import indexing
from rlds2reverb import windows
from tests import contract
from tests import golden

_FORMS = (golden.stacked, golden.nested)


def _make_index(*episodes, form=golden.stacked, **kwargs):
  return indexing.TransitionIndex.from_episodes(form(list(episodes)), **kwargs)


def _keys(observations, actions):
  return {
      'observation': tf.constant(observations, tf.float32),
      'action': tf.constant(actions, tf.int64),
  }


def _again(reward):
  """Returns the transition of A's first step, with another reward."""
  return contract.make_steps([0, 1], [reward], terminal=False)


class LookupTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*_FORMS)
  def test_exact_keys(self, form):
    index = _make_index(contract.A, contract.B, form=form)
    self.assertLen(index, 8)
    self.assertEqual(index.num_keys, 8)
    # The third key differs from the first by the sign of zero alone.
    keys = _keys([0, 12, -0.0, 4, 4.5, 0], [1, 3, 1, 5, 5, 2])
    found = index.lookup(keys)
    self.assertAllEqual(found.found, [1, 1, 0, 1, 0, 0])
    self.assertAllEqual(found.rows['reward'], [1, 30, 0, 5, 0, 0])
    self.assertAllEqual(found.rows['next_observation'], [1, 13, 0, 5, 0, 0])
    self.assertAllEqual(found.rows['is_terminal'], [0, 0, 0, 1, 0, 0])
    self.assertAllEqual(found.count, [1, 1, 0, 1, 0, 0])
    self.assertAllEqual(found.index, [0, 7, -1, 4, -1, -1])
    self.assertEqual(index.lookup(_keys([], [])).rows['reward'].shape, [0])

  def test_duplicates(self):
    index = _make_index(_again(7), contract.A, contract.B, _again(8))
    keys = _keys([0, 10, 99], [1, 1, 1])
    rewards = {
        duplicates: index.lookup(keys, duplicates).rows['reward']
        for duplicates in ('first', 'last', 'all')
    }
    self.assertAllEqual(rewards['first'], [7, 10, 0])
    self.assertAllEqual(rewards['last'], [8, 10, 0])
    self.assertAllEqual(
        rewards['all'], tf.ragged.constant([[7.0, 1, 8], [10], []])
    )
    self.assertAllEqual(index.lookup(keys).count, [3, 1, 0])
    self.assertAllEqual(
        index.lookup(keys, 'all').index,
        tf.ragged.constant([[0, 1, 9], [6], []]),
    )

  @parameterized.parameters('first', 'last', 'all')
  def test_in_map_as_eagerly(self, duplicates):
    index = _make_index(contract.A, contract.B, _again(8))
    keys = _keys([0, 4, 4, 9], [1, 5, 1, 9])
    mapped = tf.data.Dataset.from_tensors(keys).map(
        lambda batch: index.lookup(batch, duplicates)
    )
    tf.nest.map_structure(
        self.assertAllEqual, next(iter(mapped)), index.lookup(keys, duplicates)
    )

  def test_nested_keys_against_a_dict(self):
    rng = np.random.default_rng(0)
    episodes = [contract.random_steps(rng, length) for length in (3, 0, 5, 1)]
    episodes.append(episodes[2])
    for form in _FORMS:
      index = _make_index(
          *episodes, form=form, keys=('observation/pose', 'action')
      )
      rows = [row for e in episodes for row in contract.transitions(e)]
      self.assertLen(index, len(rows))
      self.assertEqual(index.num_keys, 9)
      queries = {
          'observation': contract.stack([row['observation'] for row in rows]),
          'action': contract.stack([row['action'] for row in rows]),
      }
      found = index.lookup(queries)
      self.assertAllEqual(found.found, [True] * len(rows))
      contract.assert_rows(
          self,
          tf.nest.map_structure(lambda leaf: leaf.numpy(), found.rows),
          rows,
      )
      queries['observation']['pose'][1][0] = b'another'
      self.assertFalse(index.lookup(queries).found[0])

  def test_rows_of_a_data_set(self):
    data = golden.stacked([contract.A, contract.B]).map(
        lambda episode: windows.n_step_transitions(
            episode['steps'], 3, gamma=0.5
        )
    )
    index = indexing.TransitionIndex.from_episodes(data)
    found = index.lookup(_keys([0, 11], [1, 2]))
    self.assertAllEqual(found.rows['reward'], [2.75, 35])

  def test_bad_arguments(self):
    index = _make_index(contract.A)
    wrong = {'observation': tf.zeros([1]), 'action': tf.constant([1])}
    for message, args in {
        'no field action': [{'observation': tf.zeros([1])}],
        'action of a key is int32': [wrong],
        'duplicates must be one of': [_keys([0], [1]), 'frist'],
    }.items():
      with self.assertRaisesRegex(ValueError, message):
        index.lookup(*args)
    for message, keys in {
        'Did you mean action': ('acton',),
        'keys must be a list': 'action',
        'is empty': (),
    }.items():
      with self.assertRaisesRegex(ValueError, message):
        _make_index(contract.A, keys=keys)
    with self.assertRaisesRegex(ValueError, 'no transition to index'):
      _make_index(golden.SINGLE_TERMINAL)


if __name__ == '__main__':
  tf.test.main()
