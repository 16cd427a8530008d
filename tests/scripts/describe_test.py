"""Tests of the program that describes data, run as a user runs it."""

import json
import os

from absl.testing import absltest
import pytest

from tests import recordings
from tests.scripts import programs


class DescribeTest(absltest.TestCase):

  @pytest.mark.long
  def test_images_before_and_after_a_mapping_as_json_and_page(self):
    pytest.importorskip('vl_convert')
    folder = self.create_tempdir().full_path
    data = os.path.join(recordings.FOLDER, 'breakout')
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
    steps = recordings.read(data)
    rewards = sum(step['reward'] for one in steps for step in one[:-1])
    self.assertEqual(before['counts']['steps'], sum(map(len, steps)))
    mean = before['returns']['mean']
    self.assertAlmostEqual(mean, rewards / len(steps), places=5)
    self.assertAlmostEqual(after['returns']['mean'], 10 * mean, places=5)
    with open(f'{folder}/new/report.html', encoding='utf-8') as f:
      page = f.read()
    self.assertEqual(page.count('<h1>'), 2)
    self.assertIn('data:image/jpeg;base64,', page)
    self.assertIn(json.dumps(mean), page)


if __name__ == '__main__':
  absltest.main()
