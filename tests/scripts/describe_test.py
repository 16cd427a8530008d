"""Tests of the program that describes data, run as a user runs it."""

import json

from absl.testing import absltest
import pytest

from tests import recordings
from tests.scripts import programs


class DescribeTest(recordings.RecordedDataTestCase):

  @pytest.mark.long
  def test_images_before_and_after_a_mapping_as_json_and_page(self):
    pytest.importorskip('vl_convert')
    folder = self.create_tempdir().full_path
    data = self.directories['breakout']
    result = programs.run(
        'describe',
        f'--dataset={data}',
        '--gin_binding=transform_episodes.transforms = [@ScaleReward()]',
        '--gin_binding=ScaleReward.scale = 10.0',
        f'--compare_with={data}',
        '--json',
        '--html=new/report.html',
        BUILD_WORKING_DIRECTORY=folder,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    after, before = json.loads(result.stdout)
    steps = self.steps('breakout')
    rewards = sum(step['reward'] for one in steps for step in one[:-1])
    self.assertEqual(before['counts']['steps'], sum(map(len, steps)))
    self.assertAllClose(before['returns']['mean'], rewards / len(steps))
    self.assertAllClose(
        after['returns']['mean'], 10 * before['returns']['mean']
    )
    with open(f'{folder}/new/report.html', encoding='utf-8') as f:
      page = f.read()
    self.assertEqual(page.count('<h1>'), 2)
    self.assertIn('data:image/jpeg;base64,', page)
    self.assertIn(json.dumps(before['returns']['mean']), page)


if __name__ == '__main__':
  absltest.main()
