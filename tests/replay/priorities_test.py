"""Tests of the priorities of items."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.replay import items
from rlds2reverb.replay import priorities


def _frames(rewards):
  rewards = np.array(rewards, np.float32)
  ones = np.ones(len(rewards), np.int32)
  return trajectory.Trajectory(ones, (), (), (), ones, rewards, rewards)


class PrioritiesTest(parameterized.TestCase):

  def test_a_number(self):
    given = priorities.Priorities(items.TableItems('table', priority=2.5))
    given.append(0, _frames([1, 2, 3]))
    self.assertEqual(
        given.of_items(np.array([0, 1]), 2, 0).tolist(), [2.5, 2.5]
    )

  def test_a_function_of_frames(self):
    # tf.squeeze would take the only item of a batch for a scalar.
    table = items.TableItems(
        'table', priority=lambda item: tf.reduce_max(tf.squeeze(item.reward))
    )
    given = priorities.Priorities(table)
    given.append(0, _frames([1, 5]))
    given.append(2, _frames([2, 0, 3]))
    self.assertEqual(
        given.of_items(np.array([0, 1, 2, 3]), 2, 0).tolist(), [5, 5, 2, 3]
    )
    given.forget(3)
    self.assertEqual(given.of_items(np.array([3]), 2, 0).tolist(), [3])

  @parameterized.parameters(-1.0, np.nan)
  def test_what_is_no_priority(self, wrong):
    table = items.TableItems(
        'table', priority=lambda item: tf.reduce_sum(item.reward)
    )
    given = priorities.Priorities(table)
    given.append(10, _frames([1, 1, wrong, -1]))
    with self.assertRaisesRegex(ValueError, "'table' is .* at frame 2 of its"):
      given.of_items(np.array([10, 12]), 2, 10)


if __name__ == '__main__':
  absltest.main()
