"""Tests of keeping statistics in a file beside the data set."""

import dataclasses
import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.statistics import cache
from rlds2reverb.statistics import compute
from rlds2reverb.statistics import results
from rlds2reverb.transforms import normalization
from tests import golden
from tests import ways


def _in_memory(episode):
  return tf.data.Dataset.from_tensors({'steps': episode})


class CachedStatisticsTest(tf.test.TestCase, parameterized.TestCase):

  def _files(self, directory):
    return [
        name for name in os.listdir(directory) if name.startswith('statistics')
    ]

  @parameterized.parameters(False, True)
  def test_json(self, nested_fields):
    episodes = golden.random_episodes(
        np.random.default_rng(0), 4, nested_fields=nested_fields
    )
    episodes[0]['reward'][:] = np.nan
    found = compute.compute_statistics(golden.stacked(episodes))
    again = results.from_json(results.to_json(found))
    self.assertEqual(again, found)
    self.assertNotEqual(again, dataclasses.replace(found, num_steps=0))

  def test_computed_once(self):
    directory = self.create_tempdir().full_path
    first = cache.cached_statistics(_in_memory(ways.FIVE), directory)
    self.assertEqual(first.returns.mean, 15)
    (name,) = self._files(directory)
    path = os.path.join(directory, name)
    with open(path) as f:
      kept = f.read()
    with open(path, 'w') as f:
      f.write(kept.replace('15.0', '16.0'))  # would not be there if computed
    second = cache.cached_statistics(_in_memory(ways.FIVE), directory)
    self.assertEqual(second.returns.mean, 16)

  def test_another_pipeline_is_computed_anew(self):
    directory = self.create_tempdir().full_path
    for scale in (1.0, 100.0):

      def change(episode, scale=scale):
        steps = episode['steps']
        return {'steps': {**steps, 'action': steps['action'] * scale}}

      found = cache.cached_statistics(
          _in_memory(ways.FIVE).map(change), directory, ['train']
      )
      self.assertAllClose(
          found.fields['action'].std, scale * ways.FIVE['action'][:-1].std(0)
      )
    for mapping in (
        step_mapping.StepMapping(),
        step_mapping.StepMapping(reward=None),
    ):
      found = cache.cached_statistics(
          mapping_lib.map_fields(_in_memory(ways.FIVE), mapping), directory
      )
      self.assertEqual(found.returns.mean, 0 if mapping.reward is None else 15)
    self.assertLen(self._files(directory), 4)

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

  def test_whatever_differs_is_computed_anew(self):
    directory = self.create_tempdir().full_path
    rlds_data = _in_memory(ways.FIVE)

    def read(**kwargs):
      return cache.cached_statistics(rlds_data, directory, **kwargs)

    read()
    read(identity=[normalization.ScaleReward(2.0)])
    read(fields=['reward'])
    with open(os.path.join(directory, 'dataset_info.json'), 'w') as f:
      f.write('{"version": "2.0.0"}')
    read()
    self.assertLen(self._files(directory), 4)
    cache.cached_statistics(_in_memory(golden.COMPLETE), directory)
    self.assertLen(self._files(directory), 5)

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
    cache.cached_statistics(_in_memory(ways.FIVE), newest)
    self.assertLen(self._files(newest), 1)

  def test_no_directory(self):
    with self.assertRaises(FileNotFoundError):
      cache.cached_statistics(golden.stacked([ways.FIVE]), '/no/where')


if __name__ == '__main__':
  tf.test.main()
