"""Tests of who is there."""

import numpy as np
import tensorflow as tf

from rlds2reverb.windows import presence


class PresenceTest(tf.test.TestCase):

  def test_acts_and_is_in(self):
    there = tf.constant([0, 1, 1, 0, 1, 0]) > 0
    self.assertAllEqual(presence.acts(there), [0, 1, 1, 0, 0, 0])
    self.assertAllEqual(presence.is_in(there), [0, 1, 1, 1, 0, 0])
    both = tf.stack([there, ~there], 1)
    self.assertAllEqual(presence.acts(both)[:, 0], presence.acts(there))
    self.assertAllEqual(presence.acts(both)[:, 1], presence.acts(~there))
    for nothing in tf.zeros([3], tf.bool), tf.zeros([0], tf.bool):
      self.assertFalse(tf.reduce_any(presence.is_in(nothing)))

  def test_count_acting(self):
    fields = {
        'is_present': {
            'a': np.array([1, 1, 0], bool),
            'b': np.array([[1], [1], [1]]),
        }
    }
    self.assertAllEqual(presence.count_acting(fields), [2, 1, 0])
    with self.assertRaisesRegex(ValueError, 'counted by is_present'):
      presence.count_acting({'observation': np.zeros(3)})

  def test_flags(self):
    fields = {'is_present': {'left': np.array([True])}}
    with self.assertRaisesRegex(ValueError, 'Did you mean left'):
      presence.flags(fields, 'lft')
    with self.assertRaisesRegex(ValueError, 'must be a dict'):
      presence.flags({'is_present': np.array([True])}, 'left')
    self.assertAllEqual(
        presence.flags({'observation': np.zeros([2])}, 'left'), [True, True]
    )


if __name__ == '__main__':
  tf.test.main()
