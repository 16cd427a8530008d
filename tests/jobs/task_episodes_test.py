"""Tests of the counts of a task's episodes, against numpy."""

from absl.testing import absltest
import numpy as np
from tf_agents.trajectories import trajectory

from rlds2reverb.jobs import task_episodes
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import report as report_lib

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


class MeasuresTest(absltest.TestCase):

  def test_however_the_frames_come_in_blocks(self):
    for max_length in None, 1, 2, 4:
      counted = _add(_frames(_REWARDS), max_length)
      self.assertEqual((counted.episodes, counted.steps), (3, 8))
      self.assertEqual(counted.num_bytes, 8 * (4 + 12 + 4 + 8 + 4))
      self.assertEqual(
          counted.statistics(report_lib.ConversionReport()),
          {
              'zero_discount_ends': 0,
              'bootstrapped_terminals': 0,
              'last_rewards': {'episodes': 0, 'sum': 0},
              'nan': {},
              'length': {'count': 3, 'sum': 5, 'min': 0, 'max': 3},
              'return': {'count': 3, 'sum': 2.0, 'min': -1.0, 'max': 3.0},
          },
      )

  def test_ends_of_discount_0(self):
    counted = _add(_frames(_REWARDS, discount=0.0))
    statistics = counted.statistics(report_lib.ConversionReport())
    self.assertEqual(statistics['zero_discount_ends'], 3)

  def test_a_reward_of_several_numbers_has_no_return(self):
    counted = _add(_frames(_REWARDS, reward=np.zeros([8, 2])))
    statistics = counted.statistics(report_lib.ConversionReport())
    self.assertEqual(statistics['return']['count'], 0)

  def test_merging(self):
    report = report_lib.ConversionReport()
    parts = [_add(_frames([each])).statistics(report) for each in _REWARDS]
    self.assertEqual(
        task_episodes.merge(parts), _add(_frames(_REWARDS)).statistics(report)
    )
    parts[0]['nan'] = {'reward': 2}
    parts[1].update(nan={'reward': 1, 'action': 4}, bootstrapped_terminals=3)
    merged = task_episodes.merge(parts)
    self.assertEqual(merged['nan'], {'reward': 3, 'action': 4})
    self.assertEqual(merged['bootstrapped_terminals'], 3)
    self.assertEqual(
        task_episodes.merge([])['length'],
        {'count': 0, 'sum': 0.0, 'min': None, 'max': None},
    )


if __name__ == '__main__':
  absltest.main()
