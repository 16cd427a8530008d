"""Tests of groups of short episodes."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import grouping


def _data_set(lengths, longer=()):
  """Returns pairs of the rows of an episode, and of its number.

  Args:
    lengths: of the episodes.
    longer: the numbers of those of which one leaf has a row more.
  """
  rows = {
      'a': tf.TensorSpec([None, 2], tf.float32),
      'b': tf.TensorSpec([None], tf.string),
  }

  def episodes():
    first = 0
    for index, length in enumerate(lengths):
      numbers = np.arange(first, first + length)
      first += length
      yield (
          {
              'a': np.repeat(np.float32(numbers)[:, None], 2, 1),
              'b': np.array(
                  [str(n) for n in numbers] + ['x'] * (index in longer)
              ),
          },
          index,
      )

  return tf.data.Dataset.from_generator(
      episodes, output_signature=(rows, tf.TensorSpec([], tf.int64))
  )


def _groups(episodes, max_episodes=9, row_bytes=1):
  groups = grouping.group(episodes, max_episodes, row_bytes)
  return [
      (
          group.fields.tolist(),
          group.splits.tolist(),
          group.columns['a'][:, 1].tolist(),
          [text.decode() for text in group.columns['b']],
      )
      for group in groups.as_numpy_iterator()
  ]


class GroupTest(tf.test.TestCase):

  def test_short_episodes_come_together(self):
    self.assertEqual(
        _groups(_data_set([2, 0, 1, 1]), max_episodes=3),
        [
            ([0, 1, 2], [[0, 2, 2, 3]] * 2, [0, 1, 2], ['0', '1', '2']),
            ([3], [[0, 1]] * 2, [3], ['3']),
        ],
    )

  def test_a_large_episode_is_alone(self):
    found = _groups(
        _data_set([1, 7, 1, 1]), row_bytes=grouping.GROUP_BYTES // 5
    )
    self.assertEqual([group[0] for group in found], [[0], [1], [2, 3]])

  def test_an_episode_whose_leaves_differ_in_length_is_alone(self):
    self.assertEqual(
        _groups(_data_set([1, 2, 1], longer=[1])),
        [
            ([0], [[0, 1]] * 2, [0], ['0']),
            ([1], [[0, 2], [0, 3]], [1, 2], ['1', '2', 'x']),
            ([2], [[0, 1]] * 2, [3], ['3']),
        ],
    )

  def test_rows_of_a_shape_that_is_not_known(self):
    episodes = tf.data.Dataset.range(1, 3).map(
        lambda size: (tf.zeros([3, tf.cast(size, tf.int32)]), size)
    )
    found = list(grouping.group(episodes, 9, 1).as_numpy_iterator())
    self.assertEqual([group.columns.shape for group in found], [(3, 1), (3, 2)])
    self.assertEqual([group.splits.tolist() for group in found], [[[0, 3]]] * 2)

  def test_no_episodes(self):
    self.assertEmpty(_groups(_data_set([])))


if __name__ == '__main__':
  tf.test.main()
