"""Tests of jobs that compute the statistics of the fields."""

import os

from absl.testing import absltest
import numpy as np
import pytest

from rlds2reverb import statistics
from rlds2reverb.jobs import plan as plan_lib
from tests.jobs import data_sets
from tests.jobs import job_testing


class StatisticsOutputTest(job_testing.JobTestCase):

  @pytest.mark.long
  def test_statistics_of_the_valid_episodes(self):
    episodes = [
        data_sets.episode(index, length)
        for index, length in enumerate(job_testing.LENGTHS)
    ]
    episodes[3]['steps'][1]['discount'] = 1.5
    directory = data_sets.write(self.new('data'), episodes)
    plan = self.plan(plan_lib.STATISTICS, self.new(), directory=directory)
    summary = self.convert(plan)
    self.assertEqual((summary['episodes'], summary['skipped']), (7, 1))
    found = statistics.load_statistics(
        os.path.join(plan.output.place, 'statistics.json')
    )
    rewards = [
        100.0 * index + step
        for index, length in enumerate(job_testing.LENGTHS)
        if index != 3
        for step in range(length - 1)
    ]
    self.assertEqual((found.num_episodes, found.num_terminal), (7, 7))
    reward = found.fields['reward']
    self.assertEqual(reward.count, len(rewards))
    self.assertEqual((reward.min, reward.max), (min(rewards), max(rewards)))
    np.testing.assert_allclose(reward.mean, np.mean(rewards), 1e-12)
    np.testing.assert_allclose(reward.std, np.std(rewards), 1e-12)
    for level, value in reward.quantiles.items():
      np.testing.assert_allclose(value, np.quantile(rewards, level), 1e-12)


if __name__ == '__main__':
  absltest.main()
