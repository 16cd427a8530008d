"""Tests of measures, against numpy."""

from absl.testing import absltest
import numpy as np
from tf_agents.trajectories import trajectory

from rlds2reverb.jobs import measures
from rlds2reverb.replay import frame_blocks
from rlds2reverb.trajectories import report as report_lib

_REWARDS = [[1.0, 2.0, 9.0], [5.0], [-4.0, 2.0, 1.0, 9.0]]


def _frames(rewards, reward=None, discount=1.0):
  """Returns the frames of whole episodes, one after the other."""
  step_type = np.concatenate(
      [[0] + [1] * (len(each) - 2) + [2] if len(each) > 1 else [2]
       for each in rewards]
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


def _add(frames, pieces=1):
  added = measures.Measures()
  borders = np.linspace(0, len(frames.step_type), pieces + 1).astype(int)
  for begin, end in zip(borders, borders[1:]):
    added.add(
        frame_blocks.Block(
            frame_blocks.slice_frames(frames, begin, end), 0, begin
        )
    )
  return added


class MeasuresTest(absltest.TestCase):

  def test_however_the_frames_come_in_blocks(self):
    for pieces in 1, 2, 3, 8:
      counted = _add(_frames(_REWARDS), pieces)
      self.assertEqual((counted.episodes, counted.steps), (3, 8))
      self.assertEqual(counted.num_bytes, 8 * (4 + 12 + 4 + 8 + 4))
      self.assertEqual(
          counted.statistics(report_lib.ConversionReport()),
          {
              'zero_discount_ends': 0,
              'bootstrapped_terminals': 0,
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
        measures.merge(parts), _add(_frames(_REWARDS)).statistics(report)
    )
    parts[0]['nan'] = {'reward': 2}
    parts[1].update(nan={'reward': 1, 'action': 4}, bootstrapped_terminals=3)
    merged = measures.merge(parts)
    self.assertEqual(merged['nan'], {'reward': 3, 'action': 4})
    self.assertEqual(merged['bootstrapped_terminals'], 3)
    self.assertEqual(
        measures.merge([])['length'],
        {'count': 0, 'sum': 0.0, 'min': None, 'max': None},
    )


if __name__ == '__main__':
  absltest.main()
