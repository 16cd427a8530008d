"""Tests of the counts of a task's episodes, against numpy."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.jobs import tasks
from rlds2reverb.trajectories import conversion

_REWARDS = [[1.0, 2.0, 9.0], [5.0], [-4.0, 2.0, 1.0, 9.0]]


def _count(rewards, max_length=9, width=()):
  """Counts episodes in pieces of `max_length` of each."""
  counter = tasks.FrameCounter()
  for episode, each in enumerate(rewards):
    step_type = np.array([0] + [1] * (len(each) - 1), np.int32)
    step_type[-1] = 2
    frames = trajectory.Trajectory(
        step_type=step_type,
        observation=np.zeros([len(each), 3], np.float32),
        action=(),
        policy_info=(),
        next_step_type=step_type,
        reward=np.multiply.outer(each, np.ones(width)),
        discount=np.ones([len(each)], np.float32),
    )
    for start in range(0, len(each), max_length):
      stop = min(start + max_length, len(each))
      piece = tf.nest.map_structure(lambda leaf: leaf[start:stop], frames)
      splits = np.array([0, stop - start])
      counter.add(conversion.FrameBlock(piece, [episode], splits, start))
  return counter.counts


class CountsTest(absltest.TestCase):

  def test_counts_do_not_depend_on_block_length(self):
    for max_length in 9, 1, 2:
      expected = tasks.make_counts()
      expected.update(episodes=3, steps=8, num_bytes=8 * (4 + 12 + 4 + 8 + 4))
      expected['statistics'].update(
          {
              'length': {'count': 3, 'sum': 5, 'min': 0, 'max': 3},
              'return': {'count': 3, 'sum': 2, 'min': -1, 'max': 3},
          }
      )
      self.assertEqual(_count(_REWARDS, max_length), expected)
    merged = tasks.make_counts()
    for each in _REWARDS:
      merged = tasks.merge_counts(merged, _count([each]))
    self.assertEqual(merged, expected)
    # Rewards of several numbers have no return.
    several = _count(_REWARDS, width=(2,))['statistics']
    self.assertEqual(several['return']['count'], 0)


if __name__ == '__main__':
  absltest.main()
