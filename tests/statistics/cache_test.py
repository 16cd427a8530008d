"""Tests of keeping statistics in a file beside the data set."""

import os

import tensorflow as tf

from rlds2reverb.statistics import cache
from rlds2reverb.transforms import normalization
from tests import golden
from tests import ways


def _in_memory(episode):
  return tf.data.Dataset.from_tensors({'steps': episode})


class CachedStatisticsTest(tf.test.TestCase):

  def _files(self, directory):
    return [
        name for name in os.listdir(directory) if name.startswith('statistics')
    ]

  def test_computed_once_for_each_pipeline(self):
    directory = self.create_tempdir().full_path
    data = _in_memory(ways.FIVE)

    def read(data=data, **kwargs):
      return cache.cached_statistics(data, directory, **kwargs)

    self.assertEqual(read().returns.mean, 15)
    (name,) = self._files(directory)
    path = os.path.join(directory, name)
    with open(path) as f:
      kept = f.read()
    with open(path, 'w') as f:
      f.write(kept.replace('15.0', '16.0'))  # would not be there if computed
    self.assertEqual(read().returns.mean, 16)
    # Whatever differs is computed anew.
    for scale in (1.0, 100.0):

      def change(episode, scale=scale):
        steps = episode['steps']
        return {'steps': {**steps, 'action': steps['action'] * scale}}

      found = read(data.map(change), identity=['train'])
      self.assertAllClose(
          found.fields['action'].std, scale * ways.FIVE['action'][:-1].std(0)
      )
    read(identity=[normalization.ScaleReward(2.0)])
    read(fields=['reward'])
    with open(os.path.join(directory, 'dataset_info.json'), 'w') as f:
      f.write('{"version": "2.0.0"}')
    self.assertEqual(read().returns.mean, 15)
    self.assertLen(self._files(directory), 6)

  def test_what_cannot_be_known_is_computed_anew(self):
    directory = self.create_tempdir().full_path
    episodes = [ways.FIVE]
    rlds_data = golden.stacked(episodes)  # from a generator
    for episode, expected in ((ways.FIVE, 15), (ways.THREE, 60)):
      episodes[0] = episode
      with self.assertLogs('absl', 'WARNING') as logs:
        found = cache.cached_statistics(rlds_data, directory)
      self.assertEqual(found.returns.mean, expected)
      self.assertIn('cannot be known', logs.output[0])
      self.assertIn('PyFunc', logs.output[0])
    self.assertEmpty(self._files(directory))

  def test_the_newest_version_is_found(self):
    directory = self.create_tempdir().full_path
    for version in '1.0.0', '2.0.0', '10.0.0':
      os.mkdir(os.path.join(directory, version))
      path = os.path.join(directory, version, 'dataset_info.json')
      with open(path, 'w') as f:
        f.write(f'{{"version": "{version}"}}')
    cache.cached_statistics(_in_memory(ways.FIVE), directory)
    newest = os.path.join(directory, '10.0.0')
    self.assertEmpty(self._files(directory))
    self.assertLen(self._files(newest), 1)
    with self.assertRaises(FileNotFoundError):
      cache.cached_statistics(golden.stacked([ways.FIVE]), '/no/where')


if __name__ == '__main__':
  tf.test.main()
