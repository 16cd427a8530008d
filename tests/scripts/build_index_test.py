"""Tests of the program that builds indexes; its commands run in one process."""

import os
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest

from rlds2reverb import datasets
from rlds2reverb import random_access
from rlds2reverb.random_access import building
from tests.scripts import in_process

_COLUMNS = {'observations': 'obs'}


class BuildIndexTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = folder.name
    cls.data = os.path.join(cls.folder, 'data')
    datasets.record_episodes('CartPole-v1', cls.data, 2, max_steps=5)
    cls.arrays = os.path.join(cls.folder, 'arrays.npz')
    np.savez(
        cls.arrays,
        obs=np.arange(10, dtype=np.float32).reshape(5, 2),
        actions=np.arange(5),
        rewards=np.arange(5, dtype=np.float32),
        terminals=np.arange(5) == 4,
    )
    cls.built, cls.built_arrays, *cls.refused = in_process.run(
        'build_index',
        [
            [
                f'--dataset={cls.data}',
                '--config=recorded_gym',
                f'--index_dir={cls.folder}/indexes/pole',
            ],
            [
                f'--dataset={cls.arrays}',
                '--format=npz',
                f'--gin_binding=load_flat_arrays.column_names = {_COLUMNS}',
                f'--index_dir={cls.folder}/indexes/arrays',
            ],
            ['--dataset=x'],
            ['--dataset=/no/data', f'--index_dir={cls.folder}/indexes/none'],
            [
                f'--dataset={cls.data}',
                '--gin_binding=load_flat_arrays.max_episode_steps = 2',
                f'--index_dir={cls.folder}/indexes/none',
            ],
            [
                f'--dataset={cls.arrays}',
                '--format=npy',
                f'--index_dir={cls.folder}/indexes/none',
            ],
        ],
    )

  @pytest.mark.long
  def test_training_opens_what_the_program_has_built(self):
    self.assertEqual(self.built.code, 0, self.built.stderr)
    self.assertEqual(
        self.built.stdout,
        f'2 episodes, 12 steps: {self.folder}/indexes/pole\n',
    )
    with mock.patch.object(building, 'build_index') as build:
      batches = random_access.open_batches(
          {'pole': random_access.IndexedData(self.data, 'recorded_gym')},
          os.path.join(self.folder, 'indexes'),
          4,
          random_access.ActionChunks(),
      )
    build.assert_not_called()
    self.assertLen(batches.items, 12)

  def test_options_of_a_format(self):
    self.assertEqual(self.built_arrays.code, 0, self.built_arrays.stderr)
    source = random_access.IndexedData(
        self.arrays, options={'format': 'npz', 'column_names': _COLUMNS}
    )
    with mock.patch.object(building, 'build_index') as build:
      batches = random_access.open_batches(
          {'arrays': source},
          os.path.join(self.folder, 'indexes'),
          4,
          random_access.ActionChunks(),
      )
    build.assert_not_called()
    self.assertLen(batches.items, 6)

  def test_wrong_commands(self):
    messages = (
        'Flag --index_dir must have a value.',
        '/no/data',
        "is for options of the format's reader, and the format is rlds. Pass a",
        'Did you mean npz?',
    )
    for result, message in zip(self.refused, messages, strict=True):
      self.assertIn(result.code, (1, 2))
      self.assertIn(message, result.stderr)
      self.assertNotIn('Traceback', result.stderr)


if __name__ == '__main__':
  absltest.main()
