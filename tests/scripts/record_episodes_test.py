"""Tests of the program that records episodes, run as a user runs it."""

import os
import subprocess
import sys

from absl.testing import absltest
import numpy as np
import pytest

from rlds2reverb.datasets import loading
from rlds2reverb.training import policies


def _run(*args, **environment):
  return subprocess.run(
      [sys.executable, '-m', 'scripts.record_episodes', *args],
      env={
          **os.environ,
          'PYTHONPATH': os.pathsep.join(sys.path),
          **environment,
      },
      capture_output=True,
      text=True,
      check=False,
  )


class RecordEpisodesTest(absltest.TestCase):

  def test_records_relative_to_the_user_and_never_overwrites(self):
    folder = self.create_tempdir().full_path
    args = (
        '--environment=Pendulum-v1',
        '--num_episodes=3',
        '--max_steps=20',
        '--policy=pendulum',
    )
    result = _run(*args, '--directory=new/data', BUILD_WORKING_DIRECTORY=folder)
    self.assertEqual(result.returncode, 0, result.stderr)
    directory = os.path.join(folder, 'new', 'data')
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

    result = _run(*args, f'--directory={directory}')
    self.assertEqual(result.returncode, 1)
    self.assertIn(
        'is not empty. Remove it, or choose a new directory.', result.stderr
    )

  @pytest.mark.long
  def test_a_directory_that_cannot_be_written_takes_a_line_to_say(self):
    for directory, message in (
        ('/proc/data', '/proc/data cannot be written'),
        ('/proc', '/proc is a mount point'),
        ('foo://data', 'no file system for foo://'),
    ):
      result = _run('--environment=none', f'--directory={directory}')
      self.assertEqual(result.returncode, 1)
      self.assertIn(message, result.stderr.splitlines()[-1])
      self.assertNotIn('Traceback', result.stderr)

  @pytest.mark.long
  def test_flags_from_gin(self):
    folder = self.create_tempdir().full_path
    with open(f'{folder}/mine.gin', 'w', encoding='utf-8') as f:
      f.write('record_episodes.num_episodes = 5\nrecord_episodes.seed = 3\n')
    result = _run(
        '--config=mine.gin',
        '--gin_binding=record_episodes.num_episodes = 2',
        '--directory=data',
        BUILD_WORKING_DIRECTORY=folder,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('Recorded 2 episodes', result.stdout)
    result = _run(
        '--gin_binding=record_episodes.num_episode = 2', '--directory=other'
    )
    self.assertEqual(result.returncode, 2)
    self.assertIn('Did you mean num_episodes', result.stderr)

  def test_needs_a_directory(self):
    result = _run()
    self.assertEqual(result.returncode, 2)
    self.assertIn('--directory', result.stderr + result.stdout)


if __name__ == '__main__':
  absltest.main()
