"""Tests of the program that builds indexes, run as a user runs it."""

import os
from unittest import mock

from absl.testing import absltest

from rlds2reverb import datasets
from rlds2reverb import random_access
from rlds2reverb.random_access import building
from tests.scripts import programs


class BuildIndexTest(absltest.TestCase):

  def test_training_opens_what_the_program_has_built(self):
    folder = self.create_tempdir().full_path
    data = os.path.join(folder, 'data')
    datasets.record_episodes('CartPole-v1', data, 2, max_steps=5)
    result = programs.run(
        'build_index',
        f'--dataset={data}',
        '--config=recorded_gym',
        f'--index_dir={folder}/indexes/pole',
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual(
        result.stdout, f'2 episodes, 12 steps: {folder}/indexes/pole\n'
    )
    with mock.patch.object(building, 'build_index') as build:
      batches = random_access.open_batches(
          {'pole': random_access.Source(data, 'recorded_gym')},
          os.path.join(folder, 'indexes'),
          4,
          random_access.ActionChunks(),
      )
    build.assert_not_called()
    self.assertLen(batches.items, 12)

  def test_wrong_commands(self):
    for arguments, message in (
        (['--dataset=x'], 'Flag --index_dir must have a value.'),
        (['--dataset=/no/data', '--index_dir=/tmp/x'], '/no/data'),
    ):
      result = programs.run('build_index', *arguments)
      self.assertIn(result.returncode, (1, 2))
      self.assertIn(message, result.stderr)
      self.assertNotIn('Traceback', result.stderr)


if __name__ == '__main__':
  absltest.main()
