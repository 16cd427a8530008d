"""Tests of the program that records; its commands run in one process."""

import os

from absl.testing import absltest
import numpy as np
import pytest

from rlds2reverb.datasets import loading
from rlds2reverb.training import environments
from tests.scripts import in_process

_PENDULUM = (
    '--environment=Pendulum-v1',
    '--num_episodes=3',
    '--max_steps=20',
    '--policy=pendulum',
    '--directory=new/data',
)
_FROM_GIN = (
    '--config=mine.gin',
    '--gin_binding=record_episodes.num_episodes = 2',
    '--directory=data',
)


class RecordEpisodesTest(absltest.TestCase):

  @pytest.mark.long
  def test_records_relative_to_the_user_by_flags_and_gin(self):
    folder = self.create_tempdir()
    folder.create_file(
        'mine.gin',
        'record_episodes.num_episodes = 5\nrecord_episodes.seed = 3\n',
    )
    result, again, from_gin = in_process.run(
        'record_episodes',
        [_PENDULUM, _PENDULUM, _FROM_GIN],
        BUILD_WORKING_DIRECTORY=folder.full_path,
    )
    self.assertEqual(result.code, 0, result.stderr)
    directory = os.path.join(folder.full_path, 'new', 'data')
    self.assertIn(f'Recorded 3 episodes in {directory}', result.stdout)
    self.assertIn('3 of 3 episodes', result.stderr)
    episodes = list(loading.load_episodes(directory).as_numpy_iterator())
    self.assertLen(episodes, 3)
    policy = environments.make_policy('pendulum', 'Pendulum-v1')
    for episode in episodes:
      steps = episode['steps']
      self.assertLen(steps['reward'], 21)
      np.testing.assert_allclose(
          steps['action'][:-1],
          [policy(o) for o in steps['observation'][:-1]],
          rtol=1e-4,
      )
    self.assertEqual(again.code, 1)
    self.assertIn('Remove it, or choose a new directory.', again.stderr)
    self.assertEqual(from_gin.code, 0, from_gin.stderr)
    self.assertIn('Recorded 2 episodes', from_gin.stdout)


if __name__ == '__main__':
  absltest.main()
