"""Tests of batches of episodes that Python reads."""

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import python_batches
from rlds2reverb.episodes import data_sets


def _batch(start, lengths, is_terminal, episode_id):
  count = sum(lengths)
  return python_batches.PythonBatch(
      {'reward': np.arange(start, start + count, dtype=np.float32)},
      np.array(lengths),
      np.array(is_terminal, bool),
      {'episode_id': np.array(episode_id)},
  )


class PythonBatchesTest(tf.test.TestCase):

  def test_episodes(self):
    dataset = python_batches.to_episodes(
        lambda: iter(
            [
                _batch(0, [3, 1], [True, False], [7, 8]),
                _batch(4, [2], [False], [9]),
            ]
        ),
        {'reward': tf.TensorSpec([], tf.float32)},
        3,
    )
    self.assertEqual(dataset.cardinality(), 3)
    expected = [
        (7, [0, 1, 2], [0, 0, 1], [1, 0, 0]),
        (8, [3], [0], [1]),
        (9, [4, 5], [0, 0], [1, 1]),
    ]
    for _ in range(2):
      found = list(dataset.as_numpy_iterator())
      self.assertLen(found, 3)
      for episode, (name, reward, is_terminal, discount) in zip(
          found, expected
      ):
        steps = episode['steps']
        length = len(reward)
        self.assertEqual(episode[python_batches.EPISODE_ID], name)
        self.assertAllEqual(steps['reward'], reward)
        self.assertAllEqual(steps['is_terminal'], np.array(is_terminal, bool))
        self.assertAllEqual(steps['discount'], np.float32(discount))
        self.assertAllEqual(steps['is_first'], np.arange(length) == 0)
        self.assertAllEqual(steps['is_last'], np.arange(length) == length - 1)

  def test_batches(self):
    dataset = python_batches.to_episodes(
        lambda: iter(
            [
                _batch(0, [1, 0, 3], [True, True, False], [7, 8, 9]),
                _batch(4, [2, 0], [True, False], [1, 2]),
            ]
        ),
        {'reward': tf.TensorSpec([], tf.float32)},
        5,
    )
    batches = list(data_sets.batches_of(dataset).as_numpy_iterator())
    self.assertAllEqual(batches[0].row_splits, [0, 1, 1, 4])
    self.assertAllEqual(batches[0].fields['episode_id'], [7, 8, 9])
    steps = batches[0].steps
    self.assertAllEqual(steps['reward'], [0, 1, 2, 3])
    self.assertAllEqual(steps['is_first'], np.array([1, 1, 0, 0], bool))
    self.assertAllEqual(steps['is_last'], np.array([1, 0, 0, 1], bool))
    self.assertAllEqual(steps['is_terminal'], np.array([1, 0, 0, 0], bool))
    self.assertAllEqual(steps['discount'], np.float32([0, 1, 1, 1]))
    self.assertAllEqual(batches[1].row_splits, [0, 2, 2])
    self.assertAllEqual(batches[1].steps['discount'], np.float32([0, 0]))

  def test_another_number_of_episodes_is_an_error(self):
    dataset = python_batches.to_episodes(
        lambda: iter([_batch(0, [1], [False], [0])]),
        {'reward': tf.TensorSpec([], tf.float32)},
        2,
    )
    with self.assertRaises(tf.errors.FailedPreconditionError):
      list(dataset)


if __name__ == '__main__':
  tf.test.main()
