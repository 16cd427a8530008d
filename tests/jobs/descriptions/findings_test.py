"""Tests of what is found odd, on episodes that are odd on purpose."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.jobs.descriptions import findings
from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.jobs.descriptions import reading
from tests import golden
from tests.jobs.descriptions import odd_data


def _find(episodes, form=golden.stacked, **kwargs):
  return findings.find(reading.Reading(form(episodes), **kwargs))


class FindingsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*golden.FORMS_AND_BATCHES.items())
  def test_each_with_its_number_and_its_first_episode(self, form):
    found = _find(odd_data.EPISODES, form)
    places = {
        (one.kind, one.field): (one.num_episodes, one.episode, one.step)
        for one in found
    }
    self.assertLen(places, len(found))
    self.assertEqual(
        places,
        {
            ('empty', None): (1, odd_data.EMPTY, None),
            # Those with flags on several steps; the last of 2 terminal steps is
            # not the last step. The first step at fault is not looked for.
            ('invalid', None): (3, odd_data.TWO_FIRST, None),
            ('several_first', None): (1, odd_data.TWO_FIRST, 2),
            ('several_last', None): (1, odd_data.TWO_LAST, 5),
            ('several_terminal', None): (1, odd_data.TWO_TERMINAL, 4),
            ('bootstraps', None): (1, odd_data.BOOTSTRAPS, 4),
            ('zero_rewards', None): (1, odd_data.ZERO_REWARDS, None),
            ('last_reward', None): (1, odd_data.LAST_REWARD, 5),
            ('last_is_zero', None): (1, odd_data.DUMMY_ZERO, 5),
            ('last_is_repeated', None): (1, odd_data.DUMMY_REPEATED, 5),
            ('not_finite', 'observation/position'): (
                1,
                odd_data.WITH_NAN,
                2,
            ),
            ('outside_unit', 'action'): (1, odd_data.OUTSIDE, 1),
            ('duplicates', None): (1, odd_data.DUPLICATE, None),
        },
    )
    messages = {one.kind: one.message for one in found}
    self.assertEqual(
        messages['not_finite'],
        'In 1 of 14 episodes, observation/position has 2 numbers that are NaN'
        ' or infinite. The first is episode 8, step 2.',
    )
    self.assertIn(
        'the last step has a reward, which no transition has, 2.5 in all;',
        messages['last_reward'],
    )
    # 12 episodes of 5 transitions.
    self.assertStartsWith(
        messages['outside_unit'],
        'In 1 of 14 episodes, action has 2 of 120 values outside -1 to 1, where'
        ' nearly all the others are.',
    )
    self.assertEndsWith(
        messages['duplicates'],
        'The first is episode 10, which repeats episode 0.',
    )

  def test_what_makes_an_episode_the_same(self):
    for path, is_same in (
        (('discount',), True),
        (('action',), False),
        (('reward',), False),
        (('observation', 'position'), False),
    ):
      changed = leaf = odd_data.make(0)
      for key in path:
        leaf = leaf[key]
      leaf[2] /= 2
      kinds = [one.kind for one in _find([odd_data.make(0), changed])]
      self.assertEqual('duplicates' in kinds, is_same, path)

  def test_constant_columns(self):
    (found,) = _find(odd_data.clean(5))
    self.assertEqual((found.kind, found.num_episodes), ('constant', 5))
    self.assertIn(
        'observation/fixed is constant in 2 of its 2 numbers, [0] (0.5), [1]'
        ' (1.5)',
        found.message,
    )

  def test_actions_that_are_clipped(self):
    rng = np.random.default_rng(0)

    def with_actions(*actions):
      episode = odd_data.make(0, len(actions[0]) + 1)
      del episode['observation']['fixed']
      actions = [np.append(action, 0) for action in actions]
      episode['action'] = np.stack(actions, 1).astype(np.float32)
      return [episode]

    free = rng.uniform(-1, 1, 300)
    clipped = np.clip(rng.normal(size=300), -1, 1)
    share = [np.mean(clipped == end) for end in (-1, 1)]
    (found,) = _find(with_actions(free, clipped))
    self.assertEqual((found.kind, found.field), ('saturated', 'action'))
    self.assertEqual(
        found.message,
        '1 of 2 numbers of action are often exactly at an end of their range,'
        f' as if they were clipped: action[1] is -1 in {share[0]:.0%} and 1 in'
        f' {share[1]:.0%} of the steps.',
    )
    self.assertEqual(found.episode, 0)
    self.assertEqual(abs(clipped[found.step]), 1)
    # Whatever the range is, and though a few are outside of it.
    (found,) = _find(with_actions(5 * clipped, free))
    self.assertIn('action[0] is -5 in', found.message)
    beyond = clipped.copy()
    beyond[:3] = 7
    kinds = [one.kind for one in _find(with_actions(beyond, free))]
    self.assertEqual(kinds, ['outside_unit', 'saturated'])
    # A gripper, open or closed, is not clipped.
    self.assertEmpty(_find(with_actions(np.sign(free), free > 0)))

  @pytest.mark.long
  def test_bounds_that_are_known(self):
    # What is far outside -1 to 1 is no sign of anything...
    episodes = odd_data.clean(5)
    for episode in episodes:
      episode['action'] *= 10
    self.assertLen(_find(episodes), 1)
    # ... but bounds count, with a tolerance for rounding.
    highest = max(episode['action'][:-1, 1].max() for episode in episodes)
    for high, count in ((highest - 1e-7, 0), (highest - 0.1, 1)):
      found = [
          one
          for one in _find(
              episodes,
              bounds={
                  ('action',): metadata.Bounds(-10, np.array([10, high]), 'me')
              },
          )
          if one.kind == 'outside_bounds'
      ]
      self.assertLen(found, count)
    self.assertIn('outside the bounds of me', found[0].message)


if __name__ == '__main__':
  tf.test.main()
