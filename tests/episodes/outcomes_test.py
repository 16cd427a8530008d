"""Tests of how episodes are summed up."""

import numpy as np
from rlds2reverb.episodes import outcomes
import tensorflow as tf


def _steps(reward, is_last, is_terminal):
  return {
      'reward': tf.constant(reward),
      'is_last': tf.constant(is_last),
      'is_terminal': tf.constant(is_terminal),
  }


class OutcomesTest(tf.test.TestCase):

  def test_the_reward_of_the_last_step_does_not_count(self):
    found = outcomes.outcome(
        _steps([1.0, 2.0, 100.0], [False, False, True], [False, False, True])
    )
    self.assertAllEqual(found, (3.0, 2, True))
    self.assertEqual(found.undiscounted_return.dtype, tf.float64)
    self.assertEqual(found.length.dtype, tf.int64)

  def test_rewards_in_a_nest_and_flags_that_are_integers(self):
    found = outcomes.outcome(
        {
            **_steps(0, [[0], [0]], [0, 0]),
            'reward': {'task': tf.constant([[1], [2]])},
        }
    )
    self.assertAllEqual(found, (3.0, 2, False))

  def test_one_step_has_no_transition(self):
    found = outcomes.outcome(_steps([5.0], [True], [True]))
    self.assertAllEqual(found, (0.0, 0, True))

  def test_float32_rewards_are_added_exactly(self):
    steps = _steps(
        np.float32([2**24, 1, 1, 0]), [0, 0, 0, 1], [0, 0, 0, 0]
    )
    self.assertEqual(outcomes.outcome(steps).undiscounted_return, 2**24 + 2)

  def test_what_has_no_return(self):
    for reward in (
        {'a': tf.zeros([2]), 'b': tf.zeros([2])},
        tf.zeros([2, 3]),
    ):
      with self.assertRaisesRegex(ValueError, 'one number a step'):
        outcomes.outcome({**_steps(0.0, [0, 1], [0, 0]), 'reward': reward})
    with self.assertRaisesRegex(ValueError, 'must be of numbers'):
      outcomes.outcome(_steps(['a', 'b'], [0, 1], [0, 0]))


if __name__ == '__main__':
  tf.test.main()
