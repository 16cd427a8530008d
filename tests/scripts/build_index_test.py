"""Tests of the program that builds indexes; its commands run in one process."""

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

  @pytest.mark.long
  def test_training_opens_the_built_index(self):
    folder = self.create_tempdir().full_path
    data, arrays = f'{folder}/data', f'{folder}/arrays.npz'
    datasets.record_episodes('CartPole-v1', data, 2, max_steps=5)
    np.savez(
        arrays,
        obs=np.arange(10, dtype=np.float32).reshape(5, 2),
        actions=np.arange(5),
        rewards=np.arange(5, dtype=np.float32),
        terminals=np.arange(5) == 4,
    )
    pole, flat, missing = in_process.run(
        'build_index',
        [
            [
                f'--dataset={data}',
                '--config=recorded_gym',
                f'--index_dir={folder}/indexes/pole',
            ],
            [
                f'--dataset={arrays}',
                '--format=npz',
                f'--gin_binding=load_flat_arrays.column_names = {_COLUMNS}',
                f'--index_dir={folder}/indexes/arrays',
            ],
            ['--dataset=/no/data', f'--index_dir={folder}/indexes/none'],
        ],
    )
    self.assertEqual(missing.code, 1)
    self.assertIn('/no/data', missing.stderr)
    self.assertEqual((pole.code, flat.code), (0, 0), pole.stderr + flat.stderr)
    self.assertEqual(
        pole.stdout, f'2 episodes, 12 steps: {folder}/indexes/pole\n'
    )
    options = {'format': 'npz', 'column_names': _COLUMNS}
    for name, source, count in (
        ('pole', random_access.IndexedData(data, 'recorded_gym'), 12),
        ('arrays', random_access.IndexedData(arrays, options=options), 6),
    ):
      with mock.patch.object(building, 'build') as build:
        batches = random_access.open_batches(
            {name: source}, f'{folder}/indexes', 4, random_access.ActionChunks()
        )
      build.assert_not_called()
      self.assertLen(batches.items, count)


if __name__ == '__main__':
  absltest.main()
