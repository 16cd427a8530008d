"""Tests of packs of episodes."""

import numpy as np
from rlds2reverb.episodes import packs
import tensorflow as tf


def _pack(start, lengths, is_terminal, episode_id):
  count = sum(lengths)
  return packs.Pack(
      {'reward': np.arange(start, start + count, dtype=np.float32)},
      np.array(lengths),
      np.array(is_terminal, bool),
      np.array(episode_id),
  )


class PacksTest(tf.test.TestCase):

  def test_episodes(self):
    dataset = packs.to_episodes(
        lambda: iter([
            _pack(0, [3, 1], [True, False], [7, 8]),
            _pack(4, [2], [False], [9]),
        ]),
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
        self.assertEqual(episode[packs.EPISODE_ID], name)
        self.assertAllEqual(steps['reward'], reward)
        self.assertAllEqual(steps['is_terminal'], np.array(is_terminal, bool))
        self.assertAllEqual(steps['discount'], np.float32(discount))
        self.assertAllEqual(steps['is_first'], np.arange(length) == 0)
        self.assertAllEqual(steps['is_last'], np.arange(length) == length - 1)

  def test_another_number_of_episodes_is_an_error(self):
    dataset = packs.to_episodes(
        lambda: iter([_pack(0, [1], [False], [0])]),
        {'reward': tf.TensorSpec([], tf.float32)},
        2,
    )
    with self.assertRaises(tf.errors.FailedPreconditionError):
      list(dataset)


if __name__ == '__main__':
  tf.test.main()
