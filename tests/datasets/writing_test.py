"""Tests of writing episodes in the TFDS format."""

import os

from absl.testing import absltest
import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import writing

_FEATURES = {'steps': tfds.features.Dataset({'x': np.int64})}


def _episode(*values):
  return {'steps': [{'x': value} for value in values]}


class WriteEpisodesTest(absltest.TestCase):

  def _write(self, folder, episodes, split='test'):
    writing.write_episodes(
        episodes,
        folder,
        name='My-Env/v0',
        description='Two episodes.',
        features=_FEATURES,
        split=split,
    )

  def test_a_split_that_could_not_be_read(self):
    folder = self.create_tempdir().full_path
    for split in 'a b', 'train.2', 'a/b', '', 'train[1]':
      with self.subTest(split):
        with self.assertRaisesRegex(ValueError, 'name of a split must be'):
          self._write(folder, [_episode(1)], split)
    self.assertEmpty(os.listdir(folder))

  def test_names(self):
    for path, name in (
        ('/data/My Data', 'my_data/1.0.0'),
        ('/data/walker/2.1.0', 'walker/2.1.0'),
        ('/data/walker/2.1.0/', 'walker/2.1.0'),
        ('/data/2024-07', 'data_2024_07/1.0.0'),
        ('/data/größe', 'gr_e/1.0.0'),
        ('gs://b/CamelCase', 'camel_case/1.0.0'),
        ('/1.0.0', 'data_1_0_0/1.0.0'),
        ('/data/-', 'data/1.0.0'),
    ):
      with self.subTest(path):
        self.assertEqual('/'.join(writing.name_and_version(path)), name)


if __name__ == '__main__':
  absltest.main()
