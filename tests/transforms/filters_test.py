"""Tests of which episodes are kept."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import outcomes
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import filters
from tests import golden
from tests import ways

_SINGLE = ways.make([20], [], terminal=False)
# Their returns are 15, 60 and 0, their lengths 5, 3 and 0.
_EPISODES = [ways.FIVE, ways.THREE, _SINGLE]


class KeepEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  def _kept(self, run, keep, episodes=None):
    return list(run(keep, _EPISODES if episodes is None else episodes))

  @parameterized.named_parameters(*ways.ALL)
  def test_all_ways(self, run):
    keep = filters.KeepEpisodes(
        min_return=1.0,
        max_length=3,
        predicate=lambda episode: episode['steps']['observation'][0] > 0,
    )
    self.assertEqual(self._kept(run, keep), [False, True, False])

  def test_conditions(self):
    cases = {
        'min_return': (dict(min_return=15), [0, 1]),
        'above': (dict(min_return=15.5), [1]),
        'max_return': (dict(max_return=15), [0, 2]),
        'min_length': (dict(min_length=3), [0, 1]),
        'between_lengths': (dict(min_length=3.5), [0]),
        'max_length': (dict(max_length=3), [1, 2]),
        'terminal': (dict(success='steps/is_terminal'), [0]),
        'both': (dict(min_return=1, max_length=4), [1]),
        'none': ({}, [0, 1, 2]),
    }
    results = list(
        golden.stacked(_EPISODES)
        .map(
            lambda episode: {
                name: filters.KeepEpisodes(**conditions)(episode)
                for name, (conditions, _) in cases.items()
            }
        )
        .as_numpy_iterator()
    )
    self.assertLen(results, len(_EPISODES))
    for name, (_, kept) in cases.items():
      with self.subTest(name):
        self.assertEqual(
            [index for index, keep in enumerate(results) if keep[name]], kept
        )

  def test_filter(self):
    rlds_data = golden.stacked(_EPISODES)
    kept = rlds_data.filter(filters.KeepEpisodes(min_return=1, max_length=4))
    self.assertAllEqual(
        [episode['steps']['observation'][0] for episode in kept], [10]
    )

  def test_success_of_the_episode(self):
    rlds_data = (
        golden.nested(_EPISODES)
        .enumerate()
        .map(lambda index, episode: {**episode, 'info': {'success': index % 2}})
    )
    kept = rlds_data.filter(filters.KeepEpisodes(success='info/success'))
    self.assertLen(list(kept), 1)
    with self.assertRaisesRegex(ValueError, 'Did you mean info/success'):
      rlds_data.filter(filters.KeepEpisodes(success='info/sucess'))

  def test_random_episodes(self):
    rng = np.random.default_rng(0)
    episodes = golden.random_episodes(rng, 20)
    keep = filters.KeepEpisodes(min_return=-0.5, max_return=0.5)
    expected = []
    for episode in episodes:
      total = 0.0
      for step in range(golden.length_of(episode) - 1):
        total += float(episode['reward'][step])
      expected.append(-0.5 <= total <= 0.5)
    self.assertIn(True, expected)
    self.assertIn(False, expected)
    found = list(golden.stacked(episodes).map(keep).as_numpy_iterator())
    self.assertEqual(found, expected)

  def test_batches(self):
    rng = np.random.default_rng(0)
    episodes = golden.random_episodes(rng, 12)
    none = tf.nest.map_structure(lambda leaf: leaf[:0], episodes[0])
    episodes = [none, none, *episodes[:9], none, *episodes[9:]]
    episodes[4] = dict(episodes[4])
    episodes[4]['reward'] = np.full_like(episodes[4]['reward'], np.nan)
    rlds_data = (
        golden.stacked(episodes)
        .enumerate()
        .map(
            lambda index, episode: {
                **episode,
                'success': index % 2,
                'info': {'goals': tf.stack([index % 3 == 0, index % 5 == 0])},
            }
        )
    )
    # One batch has only episodes without steps.
    rlds_data = golden.in_batches(rlds_data, batch_size=2)
    lengths = [max(golden.length_of(episode) - 1, 0) for episode in episodes]
    returns = [
        float(episode['reward'][:-1].astype(np.float64).sum())
        for episode in episodes
    ]
    terminal = [episode['is_terminal'].any() for episode in episodes]
    has_steps = [golden.length_of(episode) > 0 for episode in episodes]
    cases = {
        'none': ({}, [True] * 15),
        'min_return': (dict(min_return=-0.5), [r >= -0.5 for r in returns]),
        'max_return': (dict(max_return=0.5), [r <= 0.5 for r in returns]),
        'min_length': (dict(min_length=2), [t >= 2 for t in lengths]),
        'max_length': (dict(max_length=3), [t <= 3 for t in lengths]),
        'several': (
            dict(min_length=1, max_length=5, max_return=1),
            [1 <= t <= 5 and r <= 1 for t, r in zip(lengths, returns)],
        ),
        'in_a_step': (dict(success='steps/is_terminal'), terminal),
        'in_a_vector': (dict(success='steps/observation'), has_steps),
        'in_the_episode': (
            dict(success='success'),
            [e % 2 == 1 for e in range(15)],
        ),
        'of_several': (
            dict(success='info/goals'),
            [e % 3 == 0 or e % 5 == 0 for e in range(15)],
        ),
    }
    results = list(
        data_sets.batches_of(rlds_data)
        .map(
            lambda batch: {
                name: filters.KeepEpisodes(**conditions).keep_each(batch)
                for name, (conditions, _) in cases.items()
            }
        )
        .as_numpy_iterator()
    )
    for name, (_, expected) in cases.items():
      with self.subTest(name):
        self.assertAllEqual(
            np.concatenate([result[name] for result in results]), expected
        )
    for name in 'several', 'in_the_episode':
      conditions, expected = cases[name]
      kept = applying.transform_episodes(
          rlds_data, [filters.KeepEpisodes(**conditions)]
      )
      self.assertLen(golden.assert_batches_hold(self, kept), sum(expected))
      # No batch without episodes comes out.
      for batch in data_sets.batches_of(kept):
        self.assertGreater(len(batch.row_splits), 1)

  def test_a_return_that_is_nearly_the_limit(self):
    # The sum depends on the order in which the rewards are added.
    rng = np.random.default_rng(0)
    episodes = [
        ways.make(np.zeros(1001), rng.normal(size=1000), terminal=False)
        for _ in range(3)
    ]
    rlds_data = golden.batched(episodes)
    steps = next(iter(rlds_data))['steps']
    total = outcomes.outcome(steps).undiscounted_return.numpy()
    kept = applying.transform_episodes(
        rlds_data, [filters.KeepEpisodes(min_return=total, max_return=total)]
    )
    self.assertLen(golden.assert_batches_hold(self, kept), 1)

  def test_a_predicate_in_batches(self):
    is_long = lambda episode: tf.size(episode['steps']['reward']) > 4
    kept = applying.transform_episodes(
        golden.batched(_EPISODES), [filters.KeepEpisodes(predicate=is_long)]
    )
    found = golden.assert_batches_hold(self, kept)
    expected = [one for one in _EPISODES if len(one['reward']) > 4]
    self.assertLen(found, len(expected))

  def test_reward_and_flags_of_other_dtypes(self):
    episode = dict(
        ways.FIVE,
        reward=ways.FIVE['reward'][:, None].astype(np.int32),
        is_last=ways.FIVE['is_last'][:, None].astype(np.uint8),
    )
    keep = filters.KeepEpisodes(min_return=15, max_return=15, min_length=5)
    steps = tf.nest.map_structure(tf.constant, episode)
    self.assertTrue(keep({'steps': steps}))

  def test_errors(self):
    rlds_data = golden.stacked(_EPISODES)
    with self.assertRaisesRegex(ValueError, r'one bool, but.*float32 \(\)'):
      rlds_data.filter(filters.KeepEpisodes(predicate=lambda episode: 1.0))
    with self.assertRaisesRegex(ValueError, 'must be a bool or number'):
      rlds_data.filter(filters.KeepEpisodes(success='steps'))
    vector = golden.stacked([dict(ways.FIVE, reward=ways.FIVE['action'])])
    with self.assertRaisesRegex(ValueError, 'one number a step'):
      vector.filter(filters.KeepEpisodes(min_return=1))

  def test_episode_of_arrays(self):
    episode = {'steps': ways.FIVE, 'info': {'success': np.array([0, 1])}}
    for conditions, expected in (
        (dict(min_return=15, max_length=5), True),
        (dict(max_return=14), False),
        (dict(success='steps/is_terminal'), True),
        (dict(success='info/success'), True),
    ):
      self.assertEqual(filters.KeepEpisodes(**conditions)(episode), expected)

  def test_missing_fields(self):
    for field, conditions in (
        ('is_terminal', dict(max_return=1)),
        ('reward', dict(min_return=1)),
    ):
      steps = {name: leaf for name, leaf in ways.FIVE.items() if name != field}
      with self.assertRaisesRegex(ValueError, f'There is no field {field}'):
        filters.KeepEpisodes(**conditions)({'steps': steps})

  def test_the_last_step_needs_no_flag(self):
    steps = {
        name: leaf for name, leaf in ways.FIVE.items() if name != 'is_last'
    }
    for flags in {}, {'is_last': np.zeros(6, bool)}:
      for conditions in (
          dict(min_length=5, max_length=5),
          dict(min_return=15, max_return=15),
      ):
        keep = filters.KeepEpisodes(**conditions)
        self.assertTrue(keep({'steps': {**steps, **flags}}))

  def test_reward_or_flag_that_is_no_number(self):
    for field in ('reward', 'is_terminal'):
      words = np.array([b'1'] * 4, object)
      data = golden.stacked([{**golden.COMPLETE, field: words}])
      with self.assertRaisesRegex(ValueError, f'{field} must be .*number'):
        data.filter(filters.KeepEpisodes(min_return=1.0))


if __name__ == '__main__':
  tf.test.main()
