"""Tests of the program that records; its commands run in one process."""

import os
import tempfile

from absl.testing import absltest
import numpy as np

from rlds2reverb.datasets import loading
from rlds2reverb.training import policies
from tests.scripts import in_process

_PENDULUM = (
    '--environment=Pendulum-v1',
    '--num_episodes=3',
    '--max_steps=20',
    '--policy=pendulum',
)
_COMMANDS = {
    'new': [*_PENDULUM, '--directory=new/data'],
    'again': [*_PENDULUM, '--directory=new/data'],
    'forbidden': ['--environment=none', '--directory=/proc/data'],
    'mount_point': ['--environment=none', '--directory=/proc'],
    'url': ['--environment=none', '--directory=foo://data'],
    'gin': [
        '--config=mine.gin',
        '--gin_binding=record_episodes.num_episodes = 2',
        '--directory=data',
    ],
    'wrong_gin': [
        '--gin_binding=record_episodes.num_episode = 2',
        '--directory=other',
    ],
    'nothing': [],
}


class RecordEpisodesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = folder.name
    with open(f'{cls.folder}/mine.gin', 'w', encoding='utf-8') as f:
      f.write('record_episodes.num_episodes = 5\nrecord_episodes.seed = 3\n')
    results = in_process.run(
        'record_episodes',
        list(_COMMANDS.values()),
        BUILD_WORKING_DIRECTORY=cls.folder,
    )
    cls.results = dict(zip(_COMMANDS, results))

  def test_records_relative_to_the_user_and_never_overwrites(self):
    result = self.results['new']
    self.assertEqual(result.code, 0, result.stderr)
    directory = os.path.join(self.folder, 'new', 'data')
    self.assertIn(f'Recorded 3 episodes in {directory}', result.stdout)
    self.assertIn('3/3', result.stderr)
    episodes = list(loading.load_episodes(directory).as_numpy_iterator())
    self.assertLen(episodes, 3)
    policy = policies.make_policy('pendulum', 'Pendulum-v1')
    for episode in episodes:
      steps = episode['steps']
      self.assertLen(steps['reward'], 21)
      np.testing.assert_allclose(
          steps['action'][:-1],
          [policy(o) for o in steps['observation'][:-1]],
          rtol=1e-4,
      )
    result = self.results['again']
    self.assertEqual(result.code, 1)
    self.assertIn(
        'is not empty. Remove it, or choose a new directory.', result.stderr
    )

  def test_what_is_wrong_takes_a_line_to_say(self):
    for name, code, message in (
        ('forbidden', 1, '/proc/data cannot be written'),
        ('mount_point', 1, '/proc is a mount point'),
        ('url', 1, 'no file system for foo://'),
        ('wrong_gin', 2, 'Did you mean num_episodes'),
        ('nothing', 2, '--directory'),
    ):
      result = self.results[name]
      self.assertEqual(result.code, code)
      self.assertIn(message, result.stderr + result.stdout)
      self.assertNotIn('Traceback', result.stderr)

  def test_flags_from_gin(self):
    result = self.results['gin']
    self.assertEqual(result.code, 0, result.stderr)
    self.assertIn('Recorded 2 episodes', result.stdout)


if __name__ == '__main__':
  absltest.main()
