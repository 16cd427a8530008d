"""Tests of goals: what they are, and how often each of them is drawn."""

import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import applying
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import goals
from tests import golden
from tests import testing

_COMPOSE = applying.Compose
_LENGTH = 6  # steps of the episodes that are counted, and so 5 transitions


def _uniform(possible):
  return {goal: 1 / len(possible) for goal in possible}


def _geometric(step):
  """Goals with a discount of 0.7 in an episode that ends with step 5."""
  expected = {step + k: 0.3 * 0.7 ** (k - 1) for k in range(1, 5 - step)}
  return {**expected, 5: 0.7 ** max(4 - step, 0)}  # what is beyond, too


# Arguments, and the probabilities of the goals of a step.
_FREQUENCIES = {
    'uniform': ({}, lambda step: _uniform(range(min(step + 1, 5), 6))),
    # Octo's max_goal_distance=3: its goals are those before i + 3.
    'octo': (
        dict(include_current=True, max_distance=2),
        lambda step: _uniform(range(step, min(step + 3, 6))),
    ),
    'ogbench': (dict(strategy='geometric', discount=0.7), _geometric),
    'current': (
        dict(strategy='last', current_probability=0.2),
        lambda step: {step: 0.2, 5: 0.8} if step < 5 else {5: 1.0},
    ),
    'last': (dict(strategy='last'), lambda step: {5: 1.0}),
    'near': (
        dict(strategy='last', max_distance=2),
        lambda step: {min(step + 2, 5): 1.0},
    ),
}


class RelabelGoalsTest(tf.test.TestCase):

  def test_goals_and_their_frequencies(self):
    relabel = {
        name: goals.RelabelGoals(
            goal=f'of_{name}', goal_step=name, seed=9, **arguments
        )
        for name, (arguments, _) in _FREQUENCIES.items()
    }
    rng = np.random.default_rng(0)
    lengths = rng.permutation([_LENGTH] * 700 + [*rng.integers(1, 9, 100)])
    data = golden.batched(golden.make_episodes(lengths), batch_size=200)
    data = applying.transform_episodes(
        data,
        [filters.KeepEpisodes(min_length=1), _COMPOSE([*relabel.values()])],
    )
    found = [episode['steps'] for episode in data.as_numpy_iterator()]
    self.assertLen(found, np.sum(lengths > 1))
    for name, (_, expected) in _FREQUENCIES.items():
      self.assertEqual(relabel[name].draws, name not in ('last', 'near'))
      for steps in found:
        own = steps['observation'][steps[name]]
        self.assertTrue((steps[f'of_{name}'] == own).all())
      drawn = [steps[name] for steps in found if len(steps[name]) == _LENGTH]
      for step, column in enumerate(np.transpose(drawn)):
        probabilities = expected(step)
        values = sorted(probabilities)
        self.assertCountEqual(set(column), values)
        if len(values) > 1:
          counts = [np.sum(column == value) for value in values]
          statistic = testing.chi_square(
              counts, [probabilities[value] for value in values]
          )
          limit = testing.CHI_SQUARE_LIMITS[len(values) - 1]
          self.assertLess(statistic, limit, (name, step, counts))


def _episodes(count=60):
  """Returns episodes whose observations tell the episode and the step."""
  episodes = golden.make_episodes([3 + number % 4 for number in range(count)])
  return applying.transform_episodes(
      golden.stacked(episodes), [goals.RelabelGoals(seed=1)]
  )


def _read(data):
  return list(data.map(lambda e: e['steps']).as_numpy_iterator())


class OtherGoalsTest(tf.test.TestCase):

  def test_how_many_and_of_whom(self):
    data = _episodes()
    own = _read(data)
    found = _read(goals.draw_goals_of_others(data, 0.3, seed=2))
    replaced, places, drawn = [], set(), []
    for number, (steps, before) in enumerate(zip(found, own)):
      length = golden.length_of(steps)
      self.assertAllEqual(steps['observation'], before['observation'])
      new = steps['goal_step'] == length
      goal = steps['goal'][:, 0]
      self.assertAllEqual(goal[~new], before['goal'][~new, 0])
      self.assertAllEqual(steps['goal_step'][~new], before['goal_step'][~new])
      # All of one episode, and steps that it has.
      others, place = goal[new] // 100, goal[new] % 100
      self.assertLessEqual(len(set(others)), 1)
      for other in others[:1]:
        self.assertAllLess(place, golden.length_of(own[int(other)]))
        replaced.append(other != number)
      places |= set(place)
      drawn += list(new)
    self.assertAllClose(np.mean(drawn), 0.3, rtol=0, atol=0.1)
    self.assertGreater(np.mean(replaced), 0.9)
    self.assertEqual(places, {0, 1, 2, 3, 4, 5})

  def test_the_same_again_others_in_another_pass_and_never(self):
    data = _episodes(5)
    made = goals.draw_goals_of_others(data, 0.5, seed=3)
    passes = goals.draw_goals_of_others(data.repeat(2), 0.5, seed=3)
    never = goals.draw_goals_of_others(data, 0.0)
    first, again, both, kept, own = (
        np.concatenate([steps['goal'] for steps in _read(one)])
        for one in (made, made, passes, never, data)
    )
    self.assertAllEqual(first, again)
    self.assertNotAllEqual(*np.split(both, 2))
    self.assertAllEqual(kept, own)
    for probability, goal in ((2.0, 'goal'), (0.5, 'target')):
      with self.assertRaisesRegex(ValueError, 'probability must be|target'):
        goals.draw_goals_of_others(data, probability, goal=goal)


if __name__ == '__main__':
  tf.test.main()
