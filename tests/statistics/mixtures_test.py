"""Tests of the statistics of mixtures, against numpy on all of the data."""

import numpy as np
import tensorflow as tf

from rlds2reverb.statistics import compute
from rlds2reverb.statistics import mixtures
from tests import golden


def _episodes(seed, count, offset):
  rng = np.random.default_rng(seed)
  episodes = []
  for _ in range(count):
    episode = golden.make_episode([1.0] * rng.integers(2, 30), terminal=True)
    length = golden.length_of(episode)
    action = rng.normal(offset, 1 + seed, (length, 3)).astype(np.float32)
    action[0, 2] = np.nan
    episodes.append({**episode, 'action': action})
  return episodes


def _actions(episodes):
  """Returns the actions of the transitions, float64 `[N, 3]`."""
  return np.concatenate(
      [episode['action'][:-1].astype(np.float64) for episode in episodes]
  )


class MixturesTest(tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # The means are far from each other, and far above the deviations.
    cls.episodes = {
        'bridge': _episodes(0, 20, 0.0),
        'kuka': _episodes(1, 3, 1000.0),
        'droid': _episodes(2, 50, -5.0),
    }
    cls.data = {
        name: golden.stacked(episodes)
        for name, episodes in cls.episodes.items()
    }
    cls.found = compute.compute_statistics(
        cls.data, ['action', 'reward'], quantiles=[0.01, 0.5, 0.99]
    )

  def _check_moments(self, found):
    actions = _actions(sum(self.episodes.values(), []))
    action = found.fields['action']
    self.assertAllClose(action.mean, np.nanmean(actions, 0), 1e-12, 1e-12)
    self.assertAllClose(action.std, np.nanstd(actions, 0), 1e-12, 1e-12)
    self.assertAllEqual(action.min, np.nanmin(actions, 0))
    self.assertAllEqual(action.max, np.nanmax(actions, 0))
    self.assertAllEqual(action.count, np.isfinite(actions).sum(0))
    self.assertAllEqual(action.not_finite, [0, 0, 73])
    self.assertEqual(found.num_episodes, 73)
    self.assertEqual(found.num_transitions, len(actions))
    self.assertAllClose(found.lengths.mean, len(actions) / 73, 1e-12)

  def test_whole(self):
    self._check_moments(self.found.whole)
    actions = _actions(sum(self.episodes.values(), []))
    for level, values in self.found.whole.fields['action'].quantiles.items():
      # The sample holds all of them.
      self.assertAllClose(values, np.nanquantile(actions, level, 0), 1e-12)

  def test_by_dataset(self):
    self.assertEqual(list(self.found.by_dataset), list(self.data))
    for name, found in self.found.by_dataset.items():
      self.assertEqual(
          found.fields['action'],
          compute.compute_statistics(
              self.data[name], ['action'], quantiles=[0.01, 0.5, 0.99]
          ).fields['action'],
      )

  def test_merged_before(self):
    merged = mixtures.merge_statistics(self.found.by_dataset)
    self._check_moments(merged)
    with self.assertRaisesRegex(ValueError, 'quantile 0.01 was not computed'):
      merged.fields['action'].quantile(0.01)
    self.assertAllEqual(
        merged.fields['action'].quantile(0), merged.fields['action'].min
    )

  def test_formula_of_octo(self):
    # `combine_dataset_statistics` of Octo, from the statistics of each.
    parts = [one.fields['action'] for one in self.found.by_dataset.values()]
    n = np.array([part.count[0] for part in parts], np.float64)
    mean = sum(part.mean[0] * k for part, k in zip(parts, n)) / n.sum()
    squares = sum(
        k * part.std[0] ** 2 + k * (part.mean[0] - mean) ** 2
        for part, k in zip(parts, n)
    )
    merged = mixtures.merge_statistics(self.found.by_dataset)
    action = merged.fields['action']
    self.assertAllClose(action.mean[0], mean, 1e-12)
    self.assertAllClose(action.std[0], np.sqrt(squares / n.sum()), 1e-12)

  def test_a_data_set_without_numbers(self):
    nothing = golden.make_episode([1.0], terminal=False)
    nothing['action'] = np.ones([1, 3], np.float32)
    found = compute.compute_statistics(
        {'kuka': self.data['kuka'], 'none': golden.stacked([nothing])},
        ['action'],
    )
    merged = mixtures.merge_statistics(found.by_dataset)
    kuka = found.by_dataset['kuka'].fields['action']
    self.assertTrue(np.isnan(found.by_dataset['none'].fields['action'].mean[0]))
    for action in (found.whole.fields['action'], merged.fields['action']):
      self.assertAllClose(action.mean, kuka.mean, 1e-12)
      self.assertAllClose(action.std, kuka.std, 1e-12)

  def test_errors(self):
    other = golden.make_episode([1.0, 1.0], terminal=False)
    datasets = {'kuka': self.data['kuka'], 'plain': golden.stacked([other])}
    message = r'action: float32 \(3,\) in kuka, but .* in plain'
    with self.assertRaisesRegex(ValueError, message):
      compute.compute_statistics(datasets, ['action'])
    parts = {
        name: compute.compute_statistics(dataset, ['action'])
        for name, dataset in datasets.items()
    }
    with self.assertRaisesRegex(ValueError, message):
      mixtures.merge_statistics(parts)
    with self.assertRaisesRegex(ValueError, 'There are no data sets'):
      compute.compute_statistics({})
    with self.assertRaisesRegex(ValueError, 'There are no statistics'):
      mixtures.merge_statistics({})


if __name__ == '__main__':
  tf.test.main()
