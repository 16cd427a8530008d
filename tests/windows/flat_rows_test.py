"""Tests of rows of many trajectories, and of where each one ends."""

import numpy as np
import tensorflow as tf

from rlds2reverb.windows import flat_rows
from rlds2reverb.windows import transitions
from tests import contract


def _lengths(rows, lengths=None, episode_ids=None, is_last=None):
  return flat_rows.FlatRows.of(
      rows, lengths=lengths, episode_ids=episode_ids, is_last=is_last
  ).lengths


class FlatRowsTest(tf.test.TestCase):

  def test_where_trajectories_end(self):
    rows = {'a': np.arange(5)}
    for ends, expected in (
        ({'lengths': [3, 0, 2]}, [3, 0, 2]),
        ({'lengths': np.int32([5])}, [5]),
        ({'episode_ids': [7, 7, 7, 9, 9]}, [3, 2]),
        ({'episode_ids': ['x', 'y', 'y', 'x', 'x']}, [1, 2, 2]),
        ({'episode_ids': [[1, 1], [1, 2], [1, 2], [2, 2], [2, 2]]}, [1, 2, 2]),
        ({'is_last': np.array([0, 0, 1, 0, 1], bool)}, [3, 2]),
        ({'is_last': np.array([1, 0, 0, 0, 0], bool)}, [1, 4]),
        ({'is_last': np.zeros(5, bool)}, [5]),
    ):
      in_map = tf.data.Dataset.range(1).map(
          lambda _, ends=ends: _lengths(rows, **ends)
      )
      for found in (_lengths(rows, **ends), in_map.get_single_element()):
        self.assertEqual(found.dtype, tf.int64)
        self.assertAllEqual(found, expected)

  def test_no_rows(self):
    rows = tf.zeros([0, 2])
    for ends in (
        {'lengths': []},
        {'episode_ids': tf.zeros([0])},
        {'is_last': tf.zeros([0], tf.bool)},
    ):
      self.assertAllEqual(_lengths(rows, **ends), tf.zeros([0], tf.int64))

  def test_one_episode(self):
    rows = transitions.transition_rows(contract.A)
    self.assertAllEqual(_lengths(rows), [5])
    self.assertAllEqual(_lengths(rows, lengths=[2, 3]), [2, 3])

  def test_just_one_says_where(self):
    rows = tf.range(3)
    with self.assertRaisesRegex(ValueError, 'given are: none'):
      _lengths(rows)
    with self.assertRaisesRegex(ValueError, 'are: lengths, is_last'):
      _lengths(rows, lengths=[3], is_last=[False, False, True])
    # Steps are no flat rows.
    with self.assertRaisesRegex(ValueError, 'TransitionRows of one episode'):
      _lengths(contract.A)

  def test_bad_arguments(self):
    rows = tf.range(3)
    for message, ends in (
        ('is_last must be one bool a row', {'is_last': [0, 0, 1]}),
        ('is_last must be one bool a row', {'is_last': [[True]] * 3}),
        ('is_last has 2, rows has 3', {'is_last': [True, False]}),
        ('one or two dimensions', {'episode_ids': 1}),
        ('episode_ids has 2, rows has 3', {'episode_ids': [1, 2]}),
        ('lengths must be integers', {'lengths': [3.0]}),
    ):
      with self.assertRaisesRegex(ValueError, message):
        _lengths(rows, **ends)


if __name__ == '__main__':
  tf.test.main()
