"""Tests of the priorities of items."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.replay import items
from rlds2reverb.replay import pieces
from rlds2reverb.replay import priorities


def _frames(rewards):
  rewards = np.array(rewards, np.float32)
  ones = np.ones(len(rewards), np.int32)
  return trajectory.Trajectory(ones, (), (), (), ones, rewards, rewards)


def _items(starts, lengths, origin=0):
  starts = np.array(starts)
  zeros = np.zeros_like(starts)
  return pieces.FoundItems(zeros, zeros + origin, starts, starts + lengths)


class PrioritiesTest(parameterized.TestCase):

  def test_a_number(self):
    given = priorities.Priorities(items.TableItems('table', priority=2.5))
    found = given.of_items(_items([0, 1], 2), 0, _frames([1, 2, 3]))
    self.assertEqual(found.tolist(), [2.5, 2.5])

  def test_a_function_of_frames(self):
    # tf.squeeze would take the only item of a batch for a scalar.
    table = items.TableItems(
        'table', priority=lambda item: tf.reduce_max(tf.squeeze(item.reward))
    )
    given = priorities.Priorities(table)
    given.keep(0, _frames([1, 5]), 0)
    frames = _frames([2, 0, 3])
    found = given.of_items(_items([0, 1, 2, 3], 2), 2, frames)
    self.assertEqual(found.tolist(), [5, 5, 2, 3])
    # Items of several lengths, as whole episodes are.
    found = given.of_items(_items([0, 1, 2, 3], [2, 3, 2, 2]), 2, frames)
    self.assertEqual(found.tolist(), [5, 5, 2, 3])
    given.keep(2, frames, 3)
    found = given.of_items(_items([3, 4], 2), 5, _frames([7]))
    self.assertEqual(found.tolist(), [3, 7])
    given.keep(5, _frames([7]), 6)
    found = given.of_items(_items([6], 2), 6, _frames([1, 2]))
    self.assertEqual(found.tolist(), [2])

  @parameterized.parameters(-1.0, np.nan)
  def test_what_is_no_priority(self, wrong):
    table = items.TableItems(
        'table', priority=lambda item: tf.reduce_sum(item.reward)
    )
    given = priorities.Priorities(table)
    with self.assertRaisesRegex(ValueError, "'table' is .* at frame 2 of its"):
      given.of_items(
          _items([10, 12], 2, origin=10), 10, _frames([1, 1, wrong, -1])
      )


if __name__ == '__main__':
  absltest.main()
