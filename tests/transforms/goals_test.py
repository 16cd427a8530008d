"""Tests of goals: what they are, and how often each of them is drawn."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.transforms import applying
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import goals
from tests import golden
from tests import testing
from tests import ways

_LENGTH = 6  # steps of an episode, and so 5 transitions


def _goal_steps(transform, num_episodes=2000, length=_LENGTH):
  """Returns the goals of many equal episodes, `[num_episodes, length]`."""
  episode = golden.make_episode([1.0] * length, terminal=True)
  rlds_data = golden.stacked([episode]).repeat(num_episodes)
  rlds_data = applying.transform_episodes(rlds_data, [transform])
  return np.stack(
      [
          steps['goal_step']
          for steps in rlds_data.map(lambda e: e['steps']).as_numpy_iterator()
      ]
  )


def _check_frequencies(test, drawn, probabilities):
  """Checks how often each goal was drawn by Pearson's test."""
  values = sorted(probabilities)
  test.assertContainsSubset(set(drawn), set(values))
  if len(values) == 1:
    return
  counts = [np.sum(drawn == value) for value in values]
  statistic = testing.chi_square(counts, [probabilities[v] for v in values])
  test.assertLess(statistic, testing.CHI_SQUARE_LIMITS[len(values) - 1])


class RelabelGoalsTest(tf.test.TestCase, parameterized.TestCase):

  def test_uniform(self):
    drawn = _goal_steps(goals.RelabelGoals(seed=1))
    self.assertAllEqual(drawn[:, 5], np.full(2000, 5))
    for step in range(5):
      ahead = range(step + 1, 6)
      if step:  # five of them have four degrees of freedom
        _check_frequencies(
            self, drawn[:, step], {goal: 1 / len(ahead) for goal in ahead}
        )
      self.assertCountEqual(set(drawn[:, step]), ahead)

  @pytest.mark.long
  def test_uniform_from_the_step_itself_as_octo(self):
    # Octo's max_goal_distance=3: its goals are those before i + 3.
    drawn = _goal_steps(
        goals.RelabelGoals(include_current=True, max_distance=2, seed=2)
    )
    for step in range(6):
      possible = range(step, min(step + 3, 6))
      _check_frequencies(
          self, drawn[:, step], {goal: 1 / len(possible) for goal in possible}
      )

  def test_geometric_as_ogbench(self):
    drawn = _goal_steps(
        goals.RelabelGoals('geometric', discount=0.7, seed=3), length=5
    )
    for step in range(4):
      left = 4 - step
      expected = {step + k: 0.3 * 0.7 ** (k - 1) for k in range(1, left)}
      expected[4] = 0.7 ** (left - 1)  # what is beyond the end, too
      _check_frequencies(self, drawn[:, step], expected)
    self.assertAllEqual(drawn[:, 4], np.full(2000, 4))

  def test_last_and_current(self):
    drawn = _goal_steps(
        goals.RelabelGoals('last', current_probability=0.2, seed=4)
    )
    for step in range(5):
      _check_frequencies(self, drawn[:, step], {step: 0.2, 5: 0.8})
    plain = goals.RelabelGoals('last')
    self.assertFalse(plain.draws)
    self.assertAllEqual(_goal_steps(plain, 3), np.full([3, 6], 5))
    near = _goal_steps(goals.RelabelGoals('last', max_distance=2), 1)
    self.assertAllEqual(near, [[2, 3, 4, 5, 5, 5]])

  @pytest.mark.long
  def test_draws_of_steps_and_episodes_are_independent(self):
    drawn = _goal_steps(goals.RelabelGoals(include_current=True, seed=5))
    first, second = drawn[:, 2] - 2, drawn[:, 4] - 4  # of 4, and of 2
    counts = np.bincount(4 * second + first, minlength=8)
    self.assertLess(
        testing.chi_square(counts, np.full(8, 1 / 8)),
        testing.CHI_SQUARE_LIMITS[7],
    )
    # Neighbouring episodes.
    counts = np.bincount(2 * second[:-1:2] + second[1::2], minlength=4)
    self.assertLess(
        testing.chi_square(counts, np.full(4, 1 / 4)),
        testing.CHI_SQUARE_LIMITS[3],
    )
    other = _goal_steps(goals.RelabelGoals(include_current=True, seed=6), 50)
    self.assertNotAllEqual(drawn[:50], other)

  @parameterized.named_parameters(*ways.WITH_BATCHES)
  def test_fields(self, run):
    transform = goals.RelabelGoals('last')
    for result, episode in zip(
        run(transform, [ways.FIVE, ways.THREE]), [ways.FIVE, ways.THREE]
    ):
      steps = result['steps']
      length = golden.length_of(episode)
      self.assertAllEqual(steps['goal'], [episode['observation'][-1]] * length)
      self.assertAllEqual(steps['goal_step'], [length - 1] * length)
      self.assertEqual(steps['goal'].dtype, episode['observation'].dtype)
      back = transform.invert(steps)
      self.assertCountEqual(back, episode)

  @parameterized.parameters('uniform', 'geometric')
  def test_draws_in_batches(self, strategy):
    rng = np.random.default_rng(0)
    episodes = [
        golden.make_episode([1.0] * length, terminal=True, base=100 * index)
        for index, length in enumerate(rng.integers(1, 9, 20))
    ]
    changes = [
        filters.KeepEpisodes(min_length=2),
        applying.Compose(
            [
                goals.RelabelGoals(
                    strategy,
                    discount=0.9 if strategy == 'geometric' else None,
                    current_probability=0.1,
                    seed=9,
                ),
            ]
        ),
    ]
    by_batches = applying.transform_episodes(golden.batched(episodes), changes)
    found = golden.assert_batches_hold(self, by_batches)
    for episode in found:
      steps = episode['steps']
      self.assertAllEqual(
          steps['goal'], steps['observation'][steps['goal_step']]
      )
      self.assertAllInRange(steps['goal_step'], 0, len(steps['goal_step']) - 1)
    self.assertGreater(len({tuple(e['steps']['goal_step']) for e in found}), 8)

  def test_nested_observations_and_strings(self):
    episode = golden.make_episode([1.0] * 4, terminal=True)
    image = np.array([b'a', b'b', b'c', b'd'], object)
    episode['observation'] = {'image': image, 'state': np.eye(4)}
    transform = goals.RelabelGoals(goal='observation/goal', seed=1)
    rlds_data = golden.stacked([episode]).enumerate()
    for index, found in enumerate(
        rlds_data.map(lambda index, one: transform(one, index))
    ):
      goal, step = (
          found['steps']['observation']['goal'],
          found['steps']['goal_step'].numpy(),
      )
      self.assertAllEqual(goal['image'], image[step])
      self.assertAllEqual(goal['state'], np.eye(4)[step])
      # Eagerly, by hand.
      again = transform({'steps': episode}, index)
      self.assertAllEqual(again['steps']['goal_step'], step)

  def test_errors(self):
    for message, arguments in (
        ("strategy must be one of.*'future'", {'strategy': 'future'}),
        ('needs a discount between', {'strategy': 'geometric'}),
        ('needs a discount between', {'discount': 0.9}),
        (
            'needs a discount between',
            {'strategy': 'geometric', 'discount': 1.0},
        ),
        ('include_current is for', {'strategy': 'last', 'include_current': 1}),
        ('max_distance must be a positive', {'max_distance': 0}),
        ('current_probability must be', {'current_probability': 2}),
    ):
      with self.assertRaisesRegex(ValueError, message):
        goals.RelabelGoals(**arguments)
    draw = goals.RelabelGoals()
    for call in (draw, applying.Compose([draw])):
      with self.assertRaisesRegex(ValueError, 'transform_episodes'):
        golden.stacked([ways.FIVE]).map(call)
    with self.assertRaisesRegex(ValueError, 'no field camera'):
      applying.transform_episodes(
          golden.stacked([ways.FIVE]), [goals.RelabelGoals(field='camera')]
      )
    with self.assertRaisesRegex(ValueError, "a field 'action' already"):
      applying.transform_episodes(
          golden.stacked([ways.FIVE]), [goals.RelabelGoals(goal='action')]
      )


def _episodes(count=60):
  """Returns episodes whose observations tell the episode and the step."""
  episodes = []
  for number in range(count):
    steps = golden.make_episode([1.0] * (3 + number % 4), terminal=True)
    length = golden.length_of(steps)
    steps['observation'] = {'x': 100.0 * number + np.arange(length)}
    episodes.append(steps)
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
    replaced, places = [], []
    for number, (steps, before) in enumerate(zip(found, own)):
      length = golden.length_of(steps)
      self.assertAllEqual(steps['observation']['x'], before['observation']['x'])
      new = steps['goal_step'] == length
      goal = steps['goal']['x']
      self.assertAllEqual(goal[~new], before['goal']['x'][~new])
      self.assertAllEqual(steps['goal_step'][~new], before['goal_step'][~new])
      # All of one episode, and steps that it has.
      others, place = goal[new] // 100, goal[new] % 100
      self.assertLessEqual(len(set(others)), 1)
      for other in others[:1]:
        self.assertAllLess(place, golden.length_of(own[int(other)]))
        replaced.append(other != number)
      places += list(place)
    count = sum((s['goal_step'] == len(s['goal_step'])).sum() for s in found)
    total = sum(len(s['goal_step']) for s in found)
    self.assertAllClose(count / total, 0.3, rtol=0, atol=0.1)
    self.assertGreater(np.mean(replaced), 0.9)
    self.assertEqual(set(places), {0, 1, 2, 3, 4, 5})

  def test_the_same_again_and_others_in_another_pass(self):
    data = _episodes(5)
    made = goals.draw_goals_of_others(data, 0.5, seed=3)
    first = [steps['goal']['x'] for steps in _read(made)]
    again = [steps['goal']['x'] for steps in _read(made)]
    for one, other in zip(first, again):
      self.assertAllEqual(one, other)
    passes = _read(goals.draw_goals_of_others(data.repeat(2), 0.5, seed=3))
    drawn = [
        np.concatenate([s['goal']['x'] for s in part])
        for part in (passes[:5], passes[5:])
    ]
    self.assertNotAllEqual(*drawn)

  def test_never(self):
    data = _episodes(3)
    for steps, own in zip(
        _read(goals.draw_goals_of_others(data, 0.0)), _read(data)
    ):
      self.assertAllEqual(steps['goal']['x'], own['goal']['x'])
    with self.assertRaisesRegex(ValueError, 'probability must be'):
      goals.draw_goals_of_others(data, 2.0)
    with self.assertRaisesRegex(ValueError, 'target'):
      goals.draw_goals_of_others(data, 0.5, goal='target')


if __name__ == '__main__':
  tf.test.main()
