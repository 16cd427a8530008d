"""Tests of batches of short episodes."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import grouping


def _data_set(lengths, longer=(), size=2):
  """Returns the episodes of some lengths, whose steps are counted.

  Args:
    lengths: of the episodes.
    longer: the indices of those of which one leaf has a row more.
    size: the numbers in a step's field `a`.
  """

  def episodes():
    first = 0
    for index, length in enumerate(lengths):
      numbers = np.arange(first, first + length)
      first += length
      words = [str(n) for n in numbers] + ['x'] * (index in longer)
      yield {
          'steps': {
              'a': np.repeat(np.float32(numbers)[:, None], size, 1),
              'b': np.array(words, object),
          },
          'id': index,
      }

  return tf.data.Dataset.from_generator(
      episodes,
      output_signature={
          'steps': {
              'a': tf.TensorSpec([None, size], tf.float32),
              'b': tf.TensorSpec([None], tf.string),
          },
          'id': tf.TensorSpec([], tf.int64),
      },
  )


def _batches(data, to_episode=lambda one: one):
  return list(batching.batch_together(data, to_episode).as_numpy_iterator())


class BatchTogetherTest(tf.test.TestCase):

  def _check(self, batches, expected):
    self.assertLen(batches, len(expected))
    for batch, (ids, splits, numbers, words) in zip(batches, expected):
      self.assertEqual(batch.fields['id'].tolist(), ids)
      self.assertEqual(batch.row_splits.tolist(), splits)
      self.assertEqual(batch.steps['a'][:, 1].tolist(), numbers)
      self.assertEqual(b''.join(batch.steps['b']).decode(), words)

  def test_short_episodes_come_together(self):
    self._check(
        _batches(_data_set([2, 0, 1, 1])),
        [([0, 1, 2, 3], [0, 2, 2, 3, 4], [0, 1, 2, 3], '0123')],
    )
    # Fewer are in memory if their steps are large.
    for size, most in (2, 7), (2048, 2), (9999, 1):
      batches = _batches(_data_set([1] * 8, size=size))
      self.assertEqual(max(len(b.fields['id']) for b in batches), most)

  def test_large_episodes_are_alone(self):
    rows = grouping.GROUP_BYTES // (4 * 2 + 4096)
    batches = _batches(_data_set([1, rows + 1, 1, 1]))
    self.assertAllEqual(
        np.concatenate([b.fields['id'] for b in batches]), range(4)
    )
    self.assertIn([1], [b.fields['id'].tolist() for b in batches])

  def test_an_episode_whose_leaves_differ_in_length_is_alone(self):
    self._check(
        _batches(_data_set([1, 2, 1], longer=[1])),
        [
            ([0], [0, 1], [0], '0'),
            ([1], [0, 3], [1, 2], '12x'),
            ([2], [0, 1], [3], '3'),
        ],
    )

  def test_steps_of_a_shape_that_is_not_known(self):
    def to_episode(size):
      return {'steps': {'a': tf.zeros([3, tf.cast(size, tf.int32)])}}

    batches = _batches(tf.data.Dataset.range(1, 3), to_episode)
    self.assertEqual([b.steps['a'].shape for b in batches], [(3, 1), (3, 2)])
    self.assertEqual([b.row_splits.tolist() for b in batches], [[0, 3]] * 2)

  def test_no_episodes(self):
    self.assertEmpty(_batches(_data_set([])))


if __name__ == '__main__':
  tf.test.main()
