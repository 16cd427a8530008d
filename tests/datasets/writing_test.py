"""Tests of writing episodes in the TFDS format."""

from absl.testing import absltest
import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import writing

_FEATURES = {'steps': tfds.features.Dataset({'x': np.int64})}


def _episode(*values):
  return {'steps': [{'x': value} for value in values]}


class WriteEpisodesTest(absltest.TestCase):

  def _write(self, folder, episodes):
    writing.write_episodes(
        episodes,
        folder,
        name='My-Env/v0',
        description='Two episodes.',
        features=_FEATURES,
        split='test',
    )

  def test_what_is_written_is_read(self):
    folder = self.create_tempdir().full_path
    self._write(folder, iter([_episode(1, 2, 3), _episode(4)]))
    episodes = loading.load_episodes(folder, 'test').as_numpy_iterator()
    self.assertEqual(
        [episode['steps']['x'].tolist() for episode in episodes],
        [[1, 2, 3], [4]],
    )
    info = tfds.builder_from_directory(folder).info
    self.assertEqual(info.name, 'my__env_v0')
    self.assertEqual(info.description, 'Two episodes.')
    self.assertEqual(list(info.splits), ['test'])

  def test_no_episodes(self):
    with self.assertRaisesRegex(ValueError, 'no episodes to write'):
      self._write(self.create_tempdir().full_path, [])


if __name__ == '__main__':
  absltest.main()
