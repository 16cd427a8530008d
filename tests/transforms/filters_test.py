"""Holds filters to conditions in numpy on random episodes."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import filters
from tests import call_modes
from tests import golden


def _episodes():
  """Returns 15 episodes, three of them without steps; one return is NaN."""
  episodes = golden.random_episodes(np.random.default_rng(0), 12)
  for number, steps in enumerate(episodes):
    words = np.full(golden.length_of(steps), b'', object)
    words[-1] = [b'', b'pick'][number % 2]
    steps['words'] = words
  none = tf.nest.map_structure(lambda leaf: leaf[:0], episodes[0])
  episodes = [none, none, *episodes[:9], none, *episodes[9:]]
  episodes[4] = dict(episodes[4])
  episodes[4]['reward'] = np.full_like(episodes[4]['reward'], np.nan)
  return episodes


_EPISODES = _episodes()
_T = [max(golden.length_of(steps) - 1, 0) for steps in _EPISODES]
_R = [
    float(steps['reward'][:-1].astype(np.float64).sum()) for steps in _EPISODES
]
# Conditions, and which episodes meet them.
_CASES = {
    'min_return': (dict(min_return=-0.5), [r >= -0.5 for r in _R]),
    'several': (
        dict(min_length=2, max_length=3, max_return=1),
        [2 <= t <= 3 and r <= 1 for t, r in zip(_T, _R)],
    ),
    'in_a_step': (
        dict(success='steps/is_terminal'),
        [steps['is_terminal'].any() for steps in _EPISODES],
    ),
    'of_several': (
        dict(success='info/goals'),
        [e % 3 == 0 or e % 5 == 0 for e in range(15)],
    ),
    'predicate': (
        dict(
            max_length=3,
            predicate=lambda e: tf.reduce_any(e['steps']['is_terminal']),
        ),
        [
            t <= 3 and steps['is_terminal'].any()
            for t, steps in zip(_T, _EPISODES)
        ],
    ),
    'labeled': (
        dict(labeled='words'),
        [(steps['words'] != b'').any() for steps in _EPISODES],
    ),
}


def _with_facts(index, episode):
  goals = tf.stack([index % 3 == 0, index % 5 == 0])
  return {**episode, 'info': {'goals': goals}}


class KeepEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  def test_kept_episodes_equal_numpy(self):
    keeps = {
        name: filters.KeepEpisodes(**case[0]) for name, case in _CASES.items()
    }
    data = golden.stacked(_EPISODES).enumerate().map(_with_facts)
    each = data.map(lambda e: {name: keep(e) for name, keep in keeps.items()})
    actual = list(each.as_numpy_iterator())
    # One batch has only episodes without steps.
    data = golden.in_batches(data, batch_size=2)
    batches = list(episode_dataset.batches_of(data))
    for name, (_, expected) in _CASES.items():
      with self.subTest(name):
        self.assertAllEqual([one[name] for one in actual], expected)
        kept = [keeps[name].keep_each(batch) for batch in batches]
        self.assertAllEqual(np.concatenate(kept), expected)
    kept = applying.transform_episodes(data, [keeps['several']])
    count = sum(_CASES['several'][1])
    self.assertLen(golden.assert_batches_hold(self, kept), count)
    # No batch without episodes comes out.
    for batch in episode_dataset.batches_of(kept):
      self.assertGreater(len(batch.row_splits), 1)

  def test_a_return_that_is_nearly_the_limit(self):
    # The sum depends on the order in which the rewards are added.
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=[2, 1000])
    data = golden.batched(
        [
            call_modes.make(np.zeros(1001), reward, terminal=False)
            for reward in rewards
        ]
    )
    steps = next(iter(data))['steps']
    total = float(
        batch_lib.compute_outcomes(
            batch_lib.make_batch(steps)
        ).undiscounted_return
    )
    keep = filters.KeepEpisodes(min_return=total, max_return=total)
    kept = applying.transform_episodes(data, [keep])
    self.assertLen(golden.assert_batches_hold(self, kept), 1)

  def test_flags_that_are_missing_or_of_other_dtypes(self):
    keep = filters.KeepEpisodes(
        min_return=15, max_return=15, min_length=5, max_length=5
    )
    without = {
        name: call_modes.FIVE[name]
        for name in call_modes.FIVE
        if name != 'is_last'
    }
    others = {
        'reward': call_modes.FIVE['reward'][:, None].astype(np.int32),
        'is_last': call_modes.FIVE['is_last'][:, None].astype(np.uint8),
    }
    for changes in ({}, {'is_last': np.zeros(6, bool)}, others):
      self.assertTrue(keep({'steps': {**without, **changes}}))

  @parameterized.parameters(
      ({}, dict(predicate=lambda episode: 1.0), r'one bool, but.*float32 \(\)'),
      ({}, dict(success='steps'), 'must be one leaf'),
      ({}, dict(success='info/sucess'), 'Did you mean info/success'),
      (
          {'reward': call_modes.FIVE['action']},
          dict(min_return=1),
          'one number a st',
      ),
      ({'reward': None}, dict(min_return=1), 'There is no field reward'),
      ({'is_terminal': None}, dict(max_return=1), 'no field is_terminal'),
      (
          {'is_terminal': np.array([b'1'] * 6)},
          dict(min_return=1),
          'is_terminal must be .*number',
      ),
  )
  def test_invalid_conditions_and_fields_raise(
      self, changes, conditions, message
  ):
    steps = {**call_modes.FIVE, **changes}
    steps = {name: leaf for name, leaf in steps.items() if leaf is not None}
    with self.assertRaisesRegex(ValueError, message):
      filters.KeepEpisodes(**conditions)(
          {'steps': steps, 'info': {'success': np.array([0, 1])}}
      )


if __name__ == '__main__':
  tf.test.main()
