"""Tests of which step is the last one, and of what of it counts."""

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import last_steps


class LastStepsTest(tf.test.TestCase):

  def test_by_position(self):
    # Episodes of 2, 0, 1 and 3 steps.
    row_splits = tf.constant([0, 2, 2, 3, 6], tf.int64)
    self.assertAllEqual(last_steps.are_last(row_splits), [0, 1, 1, 0, 0, 1])
    self.assertAllEqual(last_steps.is_last(3), [0, 0, 1])
    self.assertAllEqual(last_steps.is_last(0), np.zeros(0, bool))
    self.assertAllEqual(
        last_steps.are_last(tf.constant([0, 0], tf.int64)), np.zeros(0, bool)
    )

  def test_which_actions_count(self):
    last = tf.constant([False, False, True])
    self.assertAllEqual(last_steps.have_action({}, last), [1, 1, 0])
    for flags in ([1, 1, 1], [[1], [1], [1]], [True] * 3):
      found = last_steps.have_action({'has_action': tf.constant(flags)}, last)
      self.assertAllEqual(found, [1, 1, 1])
    with self.assertRaisesRegex(ValueError, 'has_action must be one number'):
      last_steps.have_action({'has_action': tf.zeros([3, 2])}, last)

  def test_moving_rewards(self):
    first = tf.constant([1, 0, 0, 0, 1, 0, 1]) > 0
    last = tf.constant([0, 0, 0, 1, 0, 1, 1]) > 0
    # The last episode has one step, and no transition.
    reward = np.array([0, 0, 0, 1, 2, 3, 7])
    moved = np.array([0, 0, 1, 0, 5, 0, 7])
    for dtype in (np.float32, np.float64, np.int32, np.uint8):
      found = last_steps.move_reward(
          {'task': reward.astype(dtype), 'two': np.stack([reward] * 2, 1)},
          first,
          last,
      )
      self.assertAllEqual(found['task'], moved)
      self.assertEqual(found['task'].dtype, dtype)
      self.assertAllEqual(found['two'], np.stack([moved] * 2, 1))
    found = last_steps.move_reward(tf.cast(reward, tf.bool), first, last)
    self.assertAllEqual(found, [0, 0, 1, 0, 1, 0, 1])
    nothing = tf.zeros([0], tf.bool)
    found = last_steps.move_reward(tf.zeros([0]), nothing, nothing)
    self.assertEqual(found.shape, [0])


if __name__ == '__main__':
  tf.test.main()
