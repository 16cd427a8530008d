"""Tests of the program that describes data, run as a user runs it."""

import json
import os

from absl.testing import absltest
import numpy as np
import pytest

from tests import recordings
from tests.jobs import data_sets
from tests.scripts import in_process
from tests.scripts import programs


class DescribeTest(recordings.RecordedDataTestCase):

  @pytest.mark.long
  def test_recorded_images_as_json_page_and_summaries(self):
    pytest.importorskip('vl_convert')
    folder = self.create_tempdir().full_path
    result = programs.run(
        'describe',
        f'--dataset={self.directories["breakout"]}',
        '--json',
        '--html=new/report.html',
        '--tensorboard_dir=board',
        BUILD_WORKING_DIRECTORY=folder,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    found = json.loads(result.stdout)
    episodes = self.steps('breakout')
    returns = [sum(step['reward'] for step in steps[:-1]) for steps in episodes]
    self.assertEqual(found['counts']['episodes'], len(episodes))
    self.assertEqual(found['counts']['steps'], sum(map(len, episodes)))
    self.assertAllClose(found['returns']['mean'], np.mean(returns))
    self.assertAllClose(found['returns']['std'], np.std(returns))
    with open(f'{folder}/new/report.html', encoding='utf-8') as f:
      page = f.read()
    self.assertIn('data:image/jpeg;base64,', page)
    self.assertIn(json.dumps(found['returns']['mean']), page)
    self.assertLen(os.listdir(f'{folder}/board'), 1)

  @pytest.mark.long
  def test_before_and_after_a_mapping(self):
    pytest.importorskip('vl_convert')
    folder = self.create_tempdir().full_path
    data = self.directories['half_cheetah']
    result = programs.run(
        'describe',
        f'--dataset={data}',
        '--gin_binding=transform_episodes.transforms = [@ScaleReward()]',
        '--gin_binding=ScaleReward.scale = 10.0',
        f'--compare_with={data}',
        '--json',
        '--html=report.html',
        BUILD_WORKING_DIRECTORY=folder,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    after, before = json.loads(result.stdout)
    self.assertAllClose(
        after['returns']['mean'], 10 * before['returns']['mean']
    )
    with open(f'{folder}/report.html', encoding='utf-8') as f:
      page = f.read()
    self.assertEqual(page.count('<h1>'), 2)


@pytest.mark.long
class MessagesTest(absltest.TestCase):

  def test_what_cannot_be_described_takes_a_line_to_say(self):
    folder = self.create_tempdir().full_path
    data_sets.numbered(f'{folder}/data', [3])
    damaged = data_sets.numbered(f'{folder}/damaged', [3])
    (file,) = data_sets.files_of(damaged)
    os.truncate(file, os.path.getsize(file) - 5)
    messages = {
        '--dataset=./dota': 'Did you mean data?',
        '--checkpoint_dir=data': 'is not a whole Reverb checkpoint',
        '--html=/proc/no/page.html': '/proc/no cannot be written',
        '--tensorboard_dir=/proc/no': '/proc/no cannot be written',
        '--dataset=damaged': 'The data cannot be read: ',
    }
    results = in_process.run(
        'describe',
        [[command] for command in messages],
        BUILD_WORKING_DIRECTORY=folder,
    )
    for result, message in zip(results, messages.values()):
      self.assertEqual(result.code, 1, result.stdout)
      self.assertIn(message, result.stderr + result.stdout)
      self.assertNotIn('Traceback', result.stderr)


if __name__ == '__main__':
  absltest.main()
