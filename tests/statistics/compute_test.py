"""Holds statistics to those that numpy computes of all data."""

import dataclasses
import functools
import json
import operator
import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.statistics import compute
from rlds2reverb.statistics import results
from rlds2reverb.transforms import normalization
from tests import call_modes
from tests import golden

_LEVELS = [0.0, 0.2, 0.5, 1.0]
_FLAGS = ('is_first', 'is_last', 'is_terminal', 'has_action')
_OF_TRANSITIONS = ('action', 'reward', 'discount')


def _numbers(episodes, acting_only=False):
  """Returns the numbers of each field that have a meaning, `[N, ...]`."""
  found = {}
  for steps in episodes:
    is_last = np.arange(golden.length_of(steps)) == golden.length_of(steps) - 1
    acts = steps.get('has_action', ~is_last)
    for keys, leaf in tree.flatten_with_path(steps):
      if keys[0] not in _FLAGS and leaf.dtype.kind not in 'OS':
        counts = ~is_last if keys[0] in _OF_TRANSITIONS else is_last | True
        if acting_only or keys[0] == 'action':
          counts = acts
        rows = leaf[counts].astype(np.float64)
        found.setdefault(paths.name_of(keys), []).append(rows)
  return {name: np.concatenate(rows) for name, rows in found.items()}


def _random(seed, count, offset=0.0, **kwargs):
  """Returns random episodes, of which some actions are NaN."""
  rng = np.random.default_rng(seed)
  episodes = golden.random_episodes(rng, count, **kwargs)
  for steps in episodes:
    action = rng.normal(offset, 1, (golden.length_of(steps), 3))
    action[rng.random(action.shape) < 0.1] = np.nan
    steps['action'] = action.astype(np.float32)
    steps['has_action'] = rng.random(len(action)) < 0.7
  return episodes


class ComputeTest(tf.test.TestCase, parameterized.TestCase):

  def _assert_field(self, actual, rows, levels=()):
    finite = np.isfinite(rows)
    self.assertAllEqual(actual.count, finite.sum(0))
    self.assertAllEqual(actual.not_finite, (~finite).sum(0))
    rows = np.where(finite, rows, np.nan)
    self.assertAllClose(actual.mean, np.nanmean(rows, 0), 1e-12, 1e-12)
    self.assertAllClose(actual.std, np.nanstd(rows, 0), 1e-12, 1e-12)
    self.assertAllEqual(actual.min, np.nanmin(rows, 0))
    self.assertAllEqual(actual.max, np.nanmax(rows, 0))
    for level in levels:
      quantile = actual.quantile(level)
      self.assertEqual(quantile.shape, rows.shape[1:])
      self.assertAllClose(quantile, np.nanquantile(rows, level, 0), 1e-12)

  def _assert_all(self, actual, episodes, levels=(), acting_only=False):
    expected = _numbers(episodes, acting_only)
    self.assertCountEqual(actual.fields, expected)
    for name, rows in expected.items():
      with self.subTest(name):
        self._assert_field(actual.fields[name], rows, levels)
    lengths = np.array([golden.length_of(steps) for steps in episodes])
    self.assertEqual(actual.num_episodes, len(episodes))
    self.assertEqual(actual.num_steps, lengths.sum())
    self.assertEqual(actual.num_transitions, (lengths - 1).sum())
    num_terminal = sum(steps['is_terminal'][-1] for steps in episodes)
    self.assertEqual(actual.num_terminal, num_terminal)
    self.assertEqual(actual.num_truncated, len(episodes) - num_terminal)
    self._assert_field(actual.lengths, lengths - 1.0, levels)
    returns = [steps['reward'][:-1].astype('f8').sum() for steps in episodes]
    self._assert_field(actual.returns, np.array(returns), levels)

  @parameterized.parameters(
      (golden.stacked, True), (golden.nested, False), (golden.batched, True)
  )
  @pytest.mark.few(1)
  def test_random_episodes(self, form, acting_only):
    episodes = _random(0, 12, nested_fields=True)
    episodes[0]['reward'][:] = np.nan
    actual = compute.compute_statistics(
        form(episodes), quantiles=_LEVELS, acting_only=acting_only
    )
    self._assert_all(actual, episodes, _LEVELS, acting_only)
    again = results.from_json(results.to_json(actual))
    self.assertEqual(again, actual)
    self.assertNotEqual(again, dataclasses.replace(actual, num_steps=0))

  def test_more_steps_than_the_sample_holds(self):
    # The mean is far greater than the deviation: in float32, or by the sum of
    # squares, nothing of the deviation is left.
    rng = np.random.default_rng(0)
    rows = (1e6 + rng.normal(size=3 * 4096 + 5)).astype(np.float32)
    pieces = [
        call_modes.make(one, one[1:], terminal=False)
        for one in np.split(rows, range(1000, len(rows), 1000))
    ]
    actual = compute.compute_statistics(
        {'a': golden.stacked(pieces[:5]), 'b': golden.stacked(pieces[5:])},
        ['observation'],
        sample_size=1000,
    )
    self._assert_field(
        actual.combined.fields['observation'], rows.astype(np.float64)
    )
    for one, data in (
        (actual.combined, rows),
        (actual.by_dataset['a'], rows[:5000]),
        (actual.by_dataset['b'], rows[5000:]),
    ):
      for level, number in one.fields['observation'].quantiles.items():
        # Four of the standard errors that `compute_statistics` states.
        error = 4 * np.sqrt(level * (1 - level) / 1000)
        self.assertNear((data < number).mean(), level, error)

  def test_mixtures(self):
    parts = {
        name: _random(seed, count, offset)
        for seed, (name, count, offset) in enumerate(
            [('bridge', 10, 0.0), ('kuka', 3, 1000.0), ('droid', 20, -5.0)]
        )
    }
    datasets = {name: golden.batched(part) for name, part in parts.items()}
    actual = compute.compute_statistics(datasets, quantiles=_LEVELS)
    everything = sum(parts.values(), [])
    self._assert_all(actual.combined, everything, _LEVELS)
    self.assertEqual(list(actual.by_dataset), list(parts))
    for name, part in parts.items():
      self._assert_all(actual.by_dataset[name], part, _LEVELS)
    # As `combine_dataset_statistics` of Octo, which has the same sums.
    merged = results.merge_statistics(actual.by_dataset)
    self._assert_all(merged, everything)
    with self.assertRaisesRegex(ValueError, 'quantile 0.2 was not computed'):
      merged.fields['action'].quantile(0.2)

  def test_images_and_strings_are_excluded_by_default(self):
    steps = dict(
        call_modes.FIVE,
        observation={
            'image': np.zeros([6, 19, 18, 3], np.uint8),
            'png': np.array([b'no image'] * 6, object),
            'state': np.arange(6.0),
        },
    )
    data = golden.nested([steps])
    actual = compute.compute_statistics(data).fields
    self.assertIn('observation/state', actual)
    self.assertNotIn('observation/image', actual)
    self.assertNotIn('observation/png', actual)
    named = compute.compute_statistics(data, ['observation/image']).fields
    self.assertEqual(named['observation/image'].mean.shape, (19, 18, 3))
    with self.assertRaisesRegex(ValueError, 'observation/png must have'):
      compute.compute_statistics(data, ['observation'])
    ragged = golden.with_unused_fields(golden.nested([golden.COMPLETE]))
    self.assertNotIn('points', compute.compute_statistics(ragged).fields)

  def test_batches_give_the_same_to_the_last_bit(self):
    none = tf.nest.map_structure(lambda leaf: leaf[:0], _random(0, 1)[0])
    episodes = [none, none, *_random(0, 20, max_length=50), none]
    data = golden.batched(episodes, batch_size=4)
    # The sample holds neither all steps nor all episodes.
    expected, actual = (
        compute.compute_statistics(one, sample_size=15)
        for one in (data.map(lambda episode: episode), data)
    )
    self.assertEqual(actual, expected)
    self._assert_all(actual, episodes[2:-1])

  def test_no_numbers(self):
    nothing = {name: leaf[:0] for name, leaf in call_modes.FIVE.items()}
    single = call_modes.make([20], [], terminal=True)
    for episodes, count in ([], 0), ([nothing, single], 1):
      data = golden.batched(episodes, golden.stacked_spec(call_modes.FIVE))
      found = compute.compute_statistics({'a': data, 'b': data})
      merged = results.merge_statistics(found.by_dataset)
      for one in found.combined, merged:
        self.assertEqual((one.num_episodes, one.num_steps), (2 * count,) * 2)
        self.assertEqual(one.num_transitions, 0)
        self.assertAllEqual(one.fields['action'].mean, [np.nan] * 2)
        self.assertAllEqual(one.fields['action'].count, [0, 0])

  def test_an_episode_of_unequal_lengths(self):
    invalid = {**call_modes.THREE, 'unused': np.zeros(1)}
    data = golden.batched([{**call_modes.FIVE, 'unused': np.zeros(6)}, invalid])
    for one in data, data.map(lambda episode: episode):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          r'must have the same number of steps.*unused:\] \[1\]',
      ):
        compute.compute_statistics(one, ['observation'])

  def test_invalid_arguments_raise(self):
    data = golden.stacked([golden.COMPLETE])
    for arguments, message in (
        ({'fields': ['observations']}, 'Did you mean observation'),
        ({'fields': 'reward'}, r"Write \['reward'\]"),
        ({'quantiles': [1.5]}, r'quantiles must be in \[0, 1\]'),
        ({'sample_size': 0}, 'sample_size must be a positive integer'),
        ({'sample_size': 2.5}, 'sample_size must be a positive integer'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        compute.compute_statistics(data, **arguments)
    datasets = {'kuka': golden.stacked([call_modes.FIVE]), 'plain': data}
    message = r'action: float64 \(2,\) in kuka, but int64 \(\) in plain'
    with self.assertRaisesRegex(ValueError, message):
      compute.compute_statistics(datasets, ['action'])
    parts = {
        name: compute.compute_statistics(dataset)
        for name, dataset in datasets.items()
    }
    with self.assertRaisesRegex(ValueError, message):
      results.merge_statistics(parts)
    with self.assertRaisesRegex(ValueError, 'There are no data sets'):
      compute.compute_statistics({})
    with self.assertRaisesRegex(ValueError, 'There are no statistics'):
      results.merge_statistics({})


def _in_memory(episode):
  return tf.data.Dataset.from_tensors({'steps': episode})


class CachedStatisticsTest(parameterized.TestCase, tf.test.TestCase):

  def _files(self, directory):
    return [
        name for name in os.listdir(directory) if name.startswith('statistics')
    ]

  def test_computed_once_for_each_pipeline(self):
    directory = self.create_tempdir().full_path
    data = _in_memory(call_modes.FIVE)

    def read(data=data, **kwargs):
      return compute.cached_statistics(data, directory, **kwargs)

    self.assertEqual(read().returns.mean, 15)
    (name,) = self._files(directory)
    path = os.path.join(directory, name)
    with open(path) as f:
      content = f.read()
    with open(path, 'w') as f:
      f.write(content.replace('15.0', '16.0'))  # would not be there if computed
    self.assertEqual(read().returns.mean, 16)
    # Whatever differs is computed again.
    for scale in (1.0, 100.0):

      def change(episode, scale=scale):
        steps = episode['steps']
        return {'steps': {**steps, 'action': steps['action'] * scale}}

      actual = read(data.map(change), identity=['train'])
      self.assertAllClose(
          actual.fields['action'].std,
          scale * call_modes.FIVE['action'][:-1].std(0),
      )
    read(identity=[normalization.ScaleReward(2.0)])
    read(fields=['reward'])
    with open(os.path.join(directory, 'dataset_info.json'), 'w') as f:
      f.write('{"version": "2.0.0"}')
    self.assertEqual(read().returns.mean, 15)
    self.assertLen(self._files(directory), 6)

  def test_statistics_of_generators_are_not_cached(self):
    directory = self.create_tempdir().full_path
    episodes = [call_modes.FIVE]
    rlds_data = golden.stacked(episodes)  # from a generator
    for episode, expected in ((call_modes.FIVE, 15), (call_modes.THREE, 60)):
      episodes[0] = episode
      with self.assertLogs('absl', 'WARNING') as logs:
        actual = compute.cached_statistics(rlds_data, directory)
      self.assertEqual(actual.returns.mean, expected)
      self.assertIn('may differ the next time', logs.output[0])
      self.assertIn('PyFunc', logs.output[0])
    self.assertEmpty(self._files(directory))

  def test_values_that_are_nested_too_deeply(self):
    path = self.create_tempfile(content='[' * 5000 + ']' * 5000).full_path
    with self.assertRaisesRegex(OSError, f'{path} is damaged: .*nested too'):
      compute.load_statistics(path)

  @parameterized.parameters(
      (('num_episodes',), -4, 'num_episodes must be an integer of at least 0'),
      (('num_episodes',), 3, 'add up to num_episodes, but are 1 of 3'),
      (('num_steps',), '6', 'num_steps must be an integer'),
      (('num_steps',), None, 'num_steps must be an integer'),
      (('num_steps',), 1, 'num_transitions is 5, but num_steps is 1'),
      (('num_truncated',), True, 'num_truncated must be an integer'),
      (('num_terminal',), 2**40, 'add up'),
      (('returns', 'count'), 1.5, 'count of returns must be numbers'),
      (('lengths', 'not_finite'), -1, 'not_finite of lengths must not be neg'),
      (('fields', 'reward', 'std'), -0.5, "std of the field 'reward' must not"),
      (('fields', 'reward', 'mean'), [1.0, 2.0], r'shape \[\], as count'),
      (('fields', 'reward', 'max'), '', "max of the field 'reward' must be"),
      (('fields', 'reward', 'max'), -1e9, "min of the field 'reward' is above"),
      (('fields', 'reward', 'dtype'), 'number', 'number'),
      (('fields', 'reward', 'quantiles', '0.5'), None, 'quantile 0.5 of'),
      (('fields', 'reward', 'quantiles', 'x'), 1.0, 'float'),
      (('fields', 'reward', 'count'), 2**70, 'count of'),
  )
  def test_statistics_that_cannot_be(self, keys, value, error):
    actual = compute.compute_statistics(golden.stacked([call_modes.FIVE]))
    path = self.create_tempfile(content=results.to_json(actual)).full_path
    self.assertEqual(compute.load_statistics(path), actual)
    content = json.loads(results.to_json(actual))
    functools.reduce(operator.getitem, keys[:-1], content)[keys[-1]] = value
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(content, f)
    with self.assertRaisesRegex(OSError, f'{path} is damaged: .*{error}'):
      compute.load_statistics(path)

  def test_statistics_are_saved_with_the_newest_version(self):
    directory = self.create_tempdir().full_path
    for version in '1.0.0', '2.0.0', '10.0.0':
      os.mkdir(os.path.join(directory, version))
      path = os.path.join(directory, version, 'dataset_info.json')
      with open(path, 'w') as f:
        f.write(f'{{"version": "{version}"}}')
    compute.cached_statistics(_in_memory(call_modes.FIVE), directory)
    newest = os.path.join(directory, '10.0.0')
    self.assertEmpty(self._files(directory))
    self.assertLen(self._files(newest), 1)
    with self.assertRaises(FileNotFoundError):
      compute.cached_statistics(golden.stacked([call_modes.FIVE]), '/no/where')


if __name__ == '__main__':
  tf.test.main()
