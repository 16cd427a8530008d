"""Tests of the counts of a task's episodes, against numpy."""

from absl.testing import absltest
import numpy as np
from tf_agents.trajectories import trajectory

from rlds2reverb.jobs import task_episodes
from rlds2reverb.trajectories import frame_blocks

_REWARDS = [[1.0, 2.0, 9.0], [5.0], [-4.0, 2.0, 1.0, 9.0]]


def _frames(rewards, reward=None, discount=1.0):
  """Returns the frames of whole episodes, one after the other."""
  step_type = np.concatenate(
      [
          [0] + [1] * (len(each) - 2) + [2] if len(each) > 1 else [2]
          for each in rewards
      ]
  ).astype(np.int32)
  return trajectory.Trajectory(
      step_type=step_type,
      observation=np.zeros([len(step_type), 3], np.float32),
      action=(),
      policy_info=(),
      next_step_type=step_type,
      reward=np.concatenate(rewards) if reward is None else reward,
      discount=np.full([len(step_type)], discount, np.float32),
  )


def _add(frames, max_length=None):
  """Adds all episodes as one block, or pieces of `max_length` of each."""
  added = task_episodes.Measures()
  ends = np.flatnonzero(frames.step_type == 2) + 1
  splits = np.concatenate([[0], ends])
  if max_length is None:
    added.add(
        frame_blocks.FrameBlock(frames, list(range(len(ends))), splits, 0)
    )
    return added
  for episode, (begin, end) in enumerate(zip(splits, ends)):
    for start in range(begin, end, max_length):
      stop = min(start + max_length, end)
      added.add(
          frame_blocks.FrameBlock(
              frame_blocks.slice_frames(frames, start, stop),
              [episode],
              np.array([0, stop - start]),
              start - begin,
          )
      )
  return added


def _statistics(**others):
  return {**task_episodes.no_counts()['statistics'], **others}


class MeasuresTest(absltest.TestCase):

  def test_however_the_frames_come_in_blocks(self):
    for max_length in None, 1, 2, 4:
      self.assertEqual(
          _add(_frames(_REWARDS), max_length).counts,
          {
              'episodes': 3,
              'steps': 8,
              'num_bytes': 8 * (4 + 12 + 4 + 8 + 4),
              'statistics': _statistics(
                  length={'count': 3, 'sum': 5, 'min': 0, 'max': 3},
                  **{'return': {'count': 3, 'sum': 2, 'min': -1, 'max': 3}},
              ),
          },
      )

  def test_ends_of_discount_0_and_rewards_of_several_numbers(self):
    frames = _frames(_REWARDS, np.zeros([8, 2]), discount=0.0)
    statistics = _add(frames).counts['statistics']
    self.assertEqual(statistics['zero_discount_ends'], 3)
    self.assertEqual(statistics['return']['count'], 0)

  def test_merging(self):
    merged = task_episodes.no_counts()
    for each in _REWARDS:
      merged = task_episodes.merge(merged, _add(_frames([each])).counts)
    self.assertEqual(merged, _add(_frames(_REWARDS)).counts)
    merged = task_episodes.merge(
        {'nan': {'reward': 2}, 'items': 1, 'more': 4},
        {'nan': {'reward': 1, 'max': 4}, 'items': 3},
    )
    self.assertEqual(
        merged, {'nan': {'reward': 3, 'max': 4}, 'items': 4, 'more': 4}
    )
    nothing = task_episodes.no_counts()
    self.assertEqual(task_episodes.merge(nothing, nothing), nothing)


if __name__ == '__main__':
  absltest.main()
