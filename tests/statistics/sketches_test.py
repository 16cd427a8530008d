"""Tests of merged sketches against numpy on all of the data."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import reservoir
from rlds2reverb.statistics import sketches
from tests import golden


def _episodes(count, seed=0):
  rng = np.random.default_rng(seed)
  episodes = []
  for _ in range(count):
    episode = golden.make_episode([1] * rng.integers(2, 40), terminal=True)
    length = golden.length_of(episode)
    episode['reward'] = rng.gamma(2.0, size=length).astype(np.float32)
    episodes.append(episode)
  return episodes


def _merged(parts, **kwargs):
  """Returns the statistics of episodes whose sketches are merged in turn."""
  state = None
  for number, part in enumerate(parts):
    data = golden.stacked(part)
    accumulation = accumulation_lib.Accumulation(
        steps_lib.steps_spec(data.element_spec).step, seed=number, **kwargs
    )
    added = accumulation.state_of(data)
    state = added if state is None else sketches.merge(state, added, [number])
  return accumulation.statistics(state)


class SketchesTest(tf.test.TestCase):

  def test_merged_are_those_of_all_episodes(self):
    episodes = _episodes(60)
    found = _merged([episodes[:1], episodes[1:40], episodes[40:]])
    self.assertEqual(found.num_episodes, 60)
    rewards = np.concatenate([episode['reward'][:-1] for episode in episodes])
    rewards = rewards.astype(np.float64)
    reward = found.fields['reward']
    self.assertEqual(reward.count, len(rewards))
    self.assertEqual((reward.min, reward.max), (rewards.min(), rewards.max()))
    self.assertAllClose(reward.mean, rewards.mean(), 1e-12, 1e-12)
    self.assertAllClose(reward.std, rewards.std(), 1e-12, 1e-12)
    returns = [
        episode['reward'][:-1].astype(np.float64).sum() for episode in episodes
    ]
    for level, value in reward.quantiles.items():
      # The sample holds all of them.
      self.assertAllClose(value, np.quantile(rewards, level), 1e-12)
      self.assertAllClose(
          found.returns.quantiles[level], np.quantile(returns, level), 1e-6
      )

  def test_quantiles_of_more_than_the_sample_holds(self):
    size = 400
    episodes = _episodes(400, seed=1)
    rewards = np.sort(
        np.concatenate([episode['reward'][:-1] for episode in episodes])
    )
    found = _merged(
        [episodes[:50], episodes[50:60], episodes[60:250], episodes[250:]],
        sample_size=size,
        quantiles=(0.05, 0.5, 0.9),
    )
    self.assertEqual(found.fields['reward'].count, len(rewards))
    self.assertGreater(len(rewards), 10 * size)
    for level, value in found.fields['reward'].quantiles.items():
      rank = np.searchsorted(rewards, value) / len(rewards)
      # Four of the standard errors that `compute_statistics` states.
      self.assertNear(
          rank, level, 4 * np.sqrt(level * (1 - level) / size), f'{level}'
      )

  def test_written_and_read(self):
    data = golden.stacked(_episodes(3))
    accumulation = accumulation_lib.Accumulation(
        steps_lib.steps_spec(data.element_spec).step, sample_size=1000
    )
    state = accumulation.state_of(data)
    path = self.create_tempfile().full_path
    sketches.save(path, state)
    for found, expected in zip(
        tf.nest.flatten(sketches.load(path)), tf.nest.flatten(state)
    ):
      self.assertEqual(found.dtype, expected.dtype)
      self.assertAllEqual(found, expected)


class MergedReservoirTest(tf.test.TestCase):

  def _sample(self, rows, size=8, seed=0):
    rows = np.array(rows, np.float64)[:, None]
    empty = reservoir.empty(size, 1)
    return reservoir.add(empty, tf.constant(rows), seed)

  def test_all_rows_while_they_fit(self):
    merged = reservoir.merge(self._sample([1, 2, 3]), self._sample([4, 5]), [0])
    self.assertEqual(merged.seen, 5)
    self.assertAllEqual(merged.rows[:, 0], [1, 2, 3, 4, 5, 0, 0, 0])

  def test_every_row_of_both_is_as_likely(self):
    counts = np.zeros(60)
    repeats = 600
    for seed in range(repeats):
      merged = reservoir.merge(
          self._sample(range(10), seed=2 * seed),
          self._sample(range(10, 60), seed=2 * seed + 1),
          [seed],
      )
      self.assertLen(np.unique(merged.rows), 8)
      counts[merged.rows[:, 0].numpy().astype(int)] += 1
    share = 8 / 60
    deviation = np.sqrt(repeats * share * (1 - share))
    self.assertAllClose(
        counts, np.full(60, repeats * share), rtol=0, atol=4.5 * deviation
    )


if __name__ == '__main__':
  absltest.main()
