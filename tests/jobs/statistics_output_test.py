"""Tests of jobs that compute the statistics of the fields."""

import os

from absl.testing import absltest
import numpy as np
import pytest

from rlds2reverb import statistics
from rlds2reverb.datasets import loading
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
    actual = statistics.load_statistics(
        os.path.join(plan.output.place, 'statistics.json')
    )
    del episodes[3]
    valid = data_sets.write(self.new('valid'), episodes)
    expected = statistics.compute_statistics(loading.load_episodes(valid))
    self.assertEqual((actual.num_episodes, actual.num_terminal), (7, 7))
    for name, field in expected.fields.items():
      other = actual.fields[name]
      for key in 'count', 'mean', 'std', 'min', 'max':
        np.testing.assert_allclose(
            getattr(other, key), getattr(field, key), 1e-12
        )
      for level, value in field.quantiles.items():
        np.testing.assert_allclose(other.quantiles[level], value, 1e-12)


if __name__ == '__main__':
  absltest.main()
