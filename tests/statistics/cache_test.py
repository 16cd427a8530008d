"""Tests of keeping statistics, and of the hashes that they are kept under."""

import dataclasses
import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import identity
from rlds2reverb.fields import step_mapping
from rlds2reverb.statistics import cache
from rlds2reverb.statistics import statistics
from rlds2reverb.transforms import transforms
from tests import golden
from tests import ways


class FingerprintTest(parameterized.TestCase):

  def test_equal_where_the_content_is(self):
    def make():
      return (
          'train',
          {'b': 1, 'a': [None, True]},
          np.array([1.5, 2]),
          transforms.Compose([transforms.ClipField('action', np.zeros(2), 1)]),
      )

    self.assertEqual(
        identity.fingerprint(*make()), identity.fingerprint(*make())
    )

  def test_different_otherwise(self):
    values = [
        1,
        '1',
        True,
        None,
        [1],
        [[1]],
        {'a': 1},
        {'a': 2},
        np.array([1]),
        np.array([1.0]),
        np.dtype(np.float32),
        transforms.ScaleReward(1.0),
        transforms.ScaleReward(2.0),
        transforms.ScaleReward(1.0, 2.0),
        transforms.ClipField('action', np.zeros(2)),
        transforms.ClipField('action', np.ones(2)),
    ]
    prints = [identity.fingerprint(value) for value in values]
    self.assertLen(set(prints), len(values))

  def test_a_function_has_none(self):
    with self.assertRaisesRegex(ValueError, 'Name it by a string'):
      identity.fingerprint([lambda: 1])


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
    found = statistics.compute_statistics(golden.stacked(episodes))
    again = cache.from_json(cache.to_json(found))
    self.assertEqual(again, found)
    self.assertNotEqual(again, dataclasses.replace(found, num_steps=0))
    self.assertEqual(again.num_truncated, found.num_truncated)
    self.assertEqual(list(again.fields), list(found.fields))
    pairs = [(again.returns, found.returns), (again.lengths, found.lengths)]
    pairs += [(again.fields[name], found.fields[name]) for name in found.fields]
    for one, other in pairs:
      self.assertEqual(one.dtype, other.dtype)
      self.assertEqual(list(one.quantiles), list(other.quantiles))
      for name in ('mean', 'std', 'min', 'max', 'count', 'not_finite'):
        self.assertAllEqual(getattr(one, name), getattr(other, name))
      self.assertAllEqual(one.quantile(0.5), other.quantile(0.5))

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
    for mapping in (step_mapping.StepMapping(), step_mapping.StepMapping(reward=None)):
      found = cache.cached_statistics(
          step_mapping.map_fields(_in_memory(ways.FIVE), mapping), directory
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

    def compute(**kwargs):
      return cache.cached_statistics(rlds_data, directory, **kwargs)

    compute()
    compute(identity=[transforms.ScaleReward(2.0)])
    compute(fields=['reward'])
    with open(os.path.join(directory, 'dataset_info.json'), 'w') as f:
      f.write('{"version": "2.0.0"}')
    compute()
    self.assertLen(self._files(directory), 4)
    cache.cached_statistics(
        _in_memory(golden.COMPLETE), directory
    )
    self.assertLen(self._files(directory), 5)

  def test_no_directory(self):
    with self.assertRaises(FileNotFoundError):
      cache.cached_statistics(golden.stacked([ways.FIVE]), '/no/where')


if __name__ == '__main__':
  tf.test.main()
