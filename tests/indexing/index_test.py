"""Tests of the index of recorded transitions, in memory and on disk."""

import os

import numpy as np
import tensorflow as tf

from rlds2reverb import indexing
from rlds2reverb.indexing import index as index_lib
from tests import contract
from tests import golden

_FORMS = (golden.stacked, golden.nested)
_DTYPES = (tf.bool, tf.uint8, tf.bfloat16, tf.float64, tf.complex64)


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


class LookupTest(tf.test.TestCase):

  def test_exact_keys(self):
    index = _make_index(contract.A, contract.B)
    # The third key differs from the first by the sign of zero alone.
    keys = _keys([0, 12, -0.0, 4, 4.5, 0], [1, 3, 1, 5, 5, 2])
    actual = index.lookup(keys)
    self.assertAllEqual(actual.is_recorded, [1, 1, 0, 1, 0, 0])
    self.assertAllEqual(actual.rows['reward'], [1, 30, 0, 5, 0, 0])
    self.assertAllEqual(actual.rows['next_observation'], [1, 13, 0, 5, 0, 0])
    self.assertAllEqual(actual.rows['is_terminal'], [0, 0, 0, 1, 0, 0])
    self.assertAllEqual(actual.count, [1, 1, 0, 1, 0, 0])
    self.assertAllEqual(actual.index, [0, 7, -1, 4, -1, -1])
    self.assertEqual(index.lookup(_keys([], [])).rows['reward'].shape, [0])

  def test_duplicates(self):
    index = _make_index(_again(7), contract.A, contract.B, _again(8))
    keys = _keys([0, 10, 99], [1, 1, 1])
    rewards = {}
    for duplicates in 'first', 'last', 'all':
      actual = index.lookup(keys, duplicates)
      (mapped,) = tf.data.Dataset.from_tensors(keys).map(
          lambda batch, which=duplicates: index.lookup(batch, which)
      )
      tf.nest.map_structure(self.assertAllEqual, mapped, actual)
      rewards[duplicates] = actual.rows['reward']
    self.assertAllEqual(rewards['first'], [7, 10, 0])
    self.assertAllEqual(rewards['last'], [8, 10, 0])
    self.assertAllEqual(
        rewards['all'], tf.ragged.constant([[7.0, 1, 8], [10], []])
    )
    self.assertAllEqual(actual.count, [3, 1, 0])
    self.assertAllEqual(actual.index, tf.ragged.constant([[0, 1, 9], [6], []]))

  def test_keys_are_compared_by_their_bytes(self):
    rng = np.random.default_rng(0)
    for values, kinds in (
        ([0.0, -0.0, float('nan')], [0, 1, 2]),
        (['a', 'a\0', ''], [0, 1, 2]),
        *((tf.cast([0, 1, 0], dtype), [0, 1, 0]) for dtype in _DTYPES),
    ):
      places = rng.integers(0, 3, (40, 2))
      columns = {'o': tf.gather(values, places), 'none': tf.zeros([40, 0])}
      recorded = {name: column[:8] for name, column in columns.items()}
      index = indexing.TransitionIndex(recorded, [8], ['o', 'none'])
      actual = index.lookup(columns, 'all')
      keys = np.take(kinds, places)
      for row in range(40):
        expected = np.flatnonzero((keys[:8] == keys[row]).all(1))
        self.assertEqual(bool(actual.is_recorded[row]), len(expected) > 0)
        self.assertAllEqual(actual.index[row], expected)

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
      actual = index.lookup(queries)
      self.assertAllEqual(actual.is_recorded, [True] * len(rows))
      contract.assert_rows(
          self,
          tf.nest.map_structure(lambda leaf: leaf.numpy(), actual.rows),
          rows,
      )
      queries['observation']['pose'][1][0] = b'another'
      self.assertFalse(index.lookup(queries).is_recorded[0])

  def test_bad_arguments(self):
    index = _make_index(contract.A)
    observation, action = tf.zeros([1]), tf.constant([1], tf.int64)
    for message, *args in (
        ('no field action', {'observation': observation}),
        (
            'action of a key must be int64',
            {'observation': observation, 'action': tf.constant([1])},
        ),
        (
            r'but is float32 \(\)',
            {'observation': tf.zeros([]), 'action': action},
        ),
        ('duplicates must be one of', _keys([0], [1]), 'frist'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        index.lookup(*args)
    for message, keys in {
        'Did you mean action': ('acton',),
        'keys must be a list': 'action',
        'is empty': (),
    }.items():
      with self.assertRaisesRegex(ValueError, message):
        _make_index(contract.A, keys=keys)
    with self.assertRaisesRegex(ValueError, 'at least one transition'):
      _make_index(golden.SINGLE_TERMINAL)


class StorageTest(tf.test.TestCase):

  def test_saved_index_is_read_back(self):
    rows = {
        'observation': {
            'pose': (
                tf.constant([[1.5, -0.0], [2, 3]]),
                tf.constant(['a\0', '']),
            ),
            'half': tf.constant([1, 2], tf.bfloat16),
        },
        'flag': tf.constant([True, False]),
        'nothing': tf.zeros([2, 0], tf.int16),
    }
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(ValueError, 'There is no index'):
      index_lib.read_transitions(folder)
    args = folder, rows, tf.constant([2, 0], tf.int64), ('flag',)
    index_lib.write_transitions(*args)
    with self.assertRaises(FileExistsError):
      index_lib.write_transitions(*args)
    indexing.TransitionIndex(*args[1:]).save(folder, overwrite=True)
    actual, lengths, keys = index_lib.read_transitions(folder)
    as_arrays = lambda nest: tf.nest.map_structure(lambda x: x.numpy(), nest)
    contract.assert_equal(self, as_arrays(actual), as_arrays(rows))
    self.assertAllEqual(lengths, [2, 0])
    self.assertEqual(keys, ('flag',))
    index = indexing.TransitionIndex.load(folder)
    key = {'flag': tf.constant([False])}
    self.assertAllEqual(index.lookup(key).index, [1])
    np.save(os.path.join(folder, 'lengths.npy'), [3])
    with self.assertRaisesRegex(ValueError, 'is damaged'):
      index_lib.read_transitions(folder)

  def test_arrays_with_shapes_beyond_their_files_raise(self):
    folder = self.create_tempdir().full_path
    rows = {'pose': tf.constant([[1.5, -0.0], [2, 3]])}
    index_lib.write_transitions(
        folder, rows, tf.constant([2], tf.int64), ('pose',)
    )
    path = os.path.join(folder, '0.npy')
    with open(path, 'rb') as f:
      whole = f.read()
    for change, error in (
        # A header of 4 GiB, which NumPy would make room for.
        (b'\x93NUMPY\2\0\xff\xff\xff\xff' + whole[10:], 'its header has'),
        (whole.replace(b'(16,)', b'(%d,)' % 10**12), 'does not match'),
        (whole.replace(b'(16,)', b'(-16,)'), 'does not match'),
        (whole[:9], 'EOF'),
    ):
      with open(path, 'wb') as f:
        f.write(change)
      with self.assertRaisesRegex(OSError, f'{path} is damaged.*{error}'):
        index_lib.read_transitions(folder)


if __name__ == '__main__':
  tf.test.main()
