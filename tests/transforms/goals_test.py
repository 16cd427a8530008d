"""Tests of the goals that are drawn, and of their frequencies."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.transforms import applying
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import goals
from tests import chi_square
from tests import golden

_COMPOSE = applying.Compose
_LENGTH = 6  # steps of the episodes that are counted, and so 5 transitions


def _uniform(possible):
  return {goal: 1 / len(possible) for goal in possible}


def _geometric(step):
  """Goals with a discount of 0.7 in an episode that ends with step 5."""
  expected = {step + k: 0.3 * 0.7 ** (k - 1) for k in range(1, 5 - step)}
  return {**expected, 5: 0.7 ** max(4 - step, 0)}  # including all later steps


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
    actual = [episode['steps'] for episode in data.as_numpy_iterator()]
    self.assertLen(actual, np.sum(lengths > 1))
    for name, (_, expected) in _FREQUENCIES.items():
      self.assertEqual(relabel[name].draws, name not in ('last', 'near'))
      for steps in actual:
        own = steps['observation'][steps[name]]
        self.assertTrue((steps[f'of_{name}'] == own).all())
      drawn = [steps[name] for steps in actual if len(steps[name]) == _LENGTH]
      for step, column in enumerate(np.transpose(drawn)):
        probabilities = expected(step)
        values = sorted(probabilities)
        self.assertCountEqual(set(column), values)
        if len(values) > 1:
          counts = [np.sum(column == value) for value in values]
          statistic = chi_square.compute_statistic(
              counts, [probabilities[value] for value in values]
          )
          limit = chi_square.LIMITS[len(values) - 1]
          self.assertLess(statistic, limit, (name, step, counts))


def _episodes(count=60):
  """Returns episodes whose observations are numbers of the episode and step."""
  episodes = golden.make_episodes([3 + number % 4 for number in range(count)])
  return applying.transform_episodes(
      golden.stacked(episodes), [goals.RelabelGoals(seed=1)]
  )


def _read(data):
  return list(data.map(lambda e: e['steps']).as_numpy_iterator())


class GoalsFromOtherEpisodesTest(tf.test.TestCase):

  def test_fraction_and_source_of_goals_match_arguments(self):
    data = _episodes()
    original = _read(data)
    actual = _read(goals.draw_goals_from_other_episodes(data, 0.3, seed=2))
    replaced, places, drawn = [], set(), []
    for number, (steps, before) in enumerate(zip(actual, original)):
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
        self.assertAllLess(place, golden.length_of(original[int(other)]))
        replaced.append(other != number)
      places |= set(place)
      drawn += list(new)
    self.assertAllClose(np.mean(drawn), 0.3, rtol=0, atol=0.1)
    self.assertGreater(np.mean(replaced), 0.9)
    self.assertEqual(places, {0, 1, 2, 3, 4, 5})

  def test_draws_repeat_by_seed_and_differ_between_passes(self):
    data = _episodes(5)
    relabeled = goals.draw_goals_from_other_episodes(data, 0.5, seed=3)
    passes = goals.draw_goals_from_other_episodes(data.repeat(2), 0.5, seed=3)
    never = goals.draw_goals_from_other_episodes(data, 0.0)
    first, repeated, two_passes, unchanged, original = (
        np.concatenate([steps['goal'] for steps in _read(one)])
        for one in (relabeled, relabeled, passes, never, data)
    )
    self.assertAllEqual(first, repeated)
    self.assertNotAllEqual(*np.split(two_passes, 2))
    self.assertAllEqual(unchanged, original)
    for probability, goal in ((2.0, 'goal'), (0.5, 'target')):
      with self.assertRaisesRegex(ValueError, 'probability must be|target'):
        goals.draw_goals_from_other_episodes(data, probability, goal=goal)


_ACHIEVED, _DESIRED = 'observation/achieved_goal', 'observation/desired_goal'
_SIZES = (5, 1, 7, 2, 6, 5)  # steps of the episodes below


def _gymnasium_episode(index, length, terminal):
  """Returns an episode of Gymnasium-Robotics that tells episode and step."""
  episode = golden.make_episode([1] * length, terminal=terminal)
  achieved = 10.0 * index + np.arange(length)
  return {
      **episode,
      'discount': np.float32(1 - np.roll(episode['is_terminal'], -1)),
      'reward': np.linspace(0.5, 0.9, length, dtype=np.float32),
      'observation': {
          'observation': np.arange(3.0 * length).reshape(length, 3),
          'achieved_goal': np.stack([achieved, -achieved], 1),
          'desired_goal': np.full((length, 2), -1000.0 - index),
      },
  }


_EPISODES = [
    _gymnasium_episode(index, length, terminal=index % 2 == 0)
    for index, length in enumerate(_SIZES)
]


def _is_near(achieved, desired):
  return tf.norm(achieved - desired, axis=-1) < 2


def _reward(achieved, desired):
  return tf.where(_is_near(achieved, desired), 0.0, -1.0)


def _hindsight(strategy, probability=0.8, **arguments):
  return goals.RelabelGoals(
      strategy,
      field=_ACHIEVED,
      goal=_DESIRED,
      replace=True,
      probability=probability,
      compute_reward=_reward,
      seed=4,
      **arguments,
  )


class _NumpyHer:
  """Stable-Baselines3's `HerReplayBuffer` (2.8) of finished episodes.

  `"random"` is not in that version: any transition of any episode.
  """

  def __init__(self, episodes):
    self._ends = []  # the number of transitions of each episode
    self._achieved = []  # of the next observation of each transition
    for episode in episodes:
      achieved = episode['observation']['achieved_goal']
      self._ends.append(len(achieved) - 1)
      self._achieved.append(achieved[1:])

  def possible_goals(self, strategy, episode, transition):
    """Returns the goals that `_sample_goals` draws with equal probability."""
    end, achieved = self._ends[episode], self._achieved[episode]
    if strategy == 'final':
      return achieved[end - 1 : end]
    if strategy == 'future':
      return achieved[transition:end]
    if strategy == 'episode':
      return achieved[:end]
    return np.concatenate(self._achieved)

  def reward(self, episode, transition, goal):
    distance = np.linalg.norm(self._achieved[episode][transition] - goal)
    return np.float32(0 if distance < 2 else -1)


class HindsightTest(tf.test.TestCase, parameterized.TestCase):

  def test_worked_numbers(self):
    """Goals of the last step, whose achieved goal is [3, -3]."""
    episode = {'steps': _gymnasium_episode(0, 4, terminal=False)}
    relabel = _hindsight('final', 1, compute_terminal=_is_near)
    self.assertFalse(relabel.draws)
    steps = relabel(episode)['steps']
    self.assertAllEqual(steps['observation']['desired_goal'], [[3, -3]] * 4)
    self.assertAllEqual(steps['goal_step'], [3] * 4)
    # Step 1 reaches [2, -2], which is 1.41 from the goal; step 0 does not.
    self.assertAllEqual(steps['reward'][:3], [-1, 0, 0])
    self.assertEqual(steps['reward'][3], np.float32(0.9))
    self.assertAllEqual(steps['discount'], [1, 0, 0, 1])
    self.assertAllEqual(steps['is_terminal'], [0, 0, 0, 1])
    self.assertAllEqual(steps['is_last'], [0, 0, 0, 1])
    for name in 'action', 'is_first':
      self.assertAllEqual(steps[name], episode['steps'][name])
    for name in 'observation', 'achieved_goal':
      self.assertAllEqual(
          steps['observation'][name], episode['steps']['observation'][name]
      )
    inverted = relabel.invert(steps)
    self.assertNotIn('goal_step', inverted)
    self.assertIn('desired_goal', inverted['observation'])

  def test_a_terminal_episode_that_misses_its_new_goal(self):
    never = lambda achieved, desired: tf.zeros(tf.shape(achieved)[:1], tf.bool)
    episode = {'steps': _gymnasium_episode(0, 4, terminal=True)}
    self.assertAllEqual(episode['steps']['discount'], [1, 1, 0, 1])
    relabel = _hindsight('final', 1, compute_terminal=never)
    steps = relabel(episode)['steps']
    self.assertAllEqual(steps['discount'], [1] * 4)
    self.assertAllEqual(steps['is_terminal'], [0] * 4)
    # Without the function, terminals stay.
    steps = _hindsight('final', 1)(episode)['steps']
    self.assertAllEqual(steps['discount'], [1, 1, 0, 1])
    self.assertAllEqual(steps['is_terminal'], [0, 0, 0, 1])

  def test_an_action_at_the_last_step_keeps_its_reward(self):
    steps = _gymnasium_episode(0, 4, terminal=False)
    steps['has_action'] = np.ones(4, bool)
    steps = _hindsight('final', 1)({'steps': steps})['steps']
    self.assertAllEqual(steps['reward'], np.float32([-1, 0, 0, 0.9]))

  @parameterized.parameters('future', 'final', 'episode', 'random')
  def test_strategies_equal_stable_baselines3(self, strategy):
    repeats = 100
    oracle = _NumpyHer(_EPISODES)
    data = golden.batched(_EPISODES * repeats, batch_size=7)
    relabel = _hindsight(strategy, compute_terminal=_is_near)
    data = applying.transform_episodes(data, [relabel])
    drawn, relabeled = {}, []
    for number, episode in enumerate(data.as_numpy_iterator()):
      index, steps = number % len(_SIZES), episode['steps']
      original, last = _EPISODES[index], _SIZES[index] - 1
      new = steps['observation']['desired_goal']
      for t in range(last):
        is_new = (new[t] != original['observation']['desired_goal'][t]).any()
        relabeled.append(is_new)
        reward, discount = original['reward'][t], original['discount'][t]
        if is_new:
          goal = int(new[t][0])
          self.assertEqual(new[t][1], -goal)
          drawn.setdefault((index, t), []).append(goal)
          reward = oracle.reward(index, t, new[t])
          discount = reward != 0
          if strategy != 'random':
            own = original['observation']['achieved_goal']
            self.assertAllEqual(own[steps['goal_step'][t]], new[t])
        if strategy == 'random' or not is_new:
          self.assertEqual(steps['goal_step'][t], last + 1)
        self.assertEqual(steps['reward'][t], reward)
        self.assertEqual(steps['discount'][t], discount)
      terminal = original['is_terminal'][last]
      if last and relabeled[-1]:
        terminal = discount == 0
      self.assertEqual(steps['is_terminal'][last], terminal)
      self.assertFalse(steps['is_terminal'][:last].any())
    self.assertEqual(number, len(_SIZES) * repeats - 1)
    # n_sampled_goal=4; four standard deviations.
    self.assertLess(
        abs(np.mean(relabeled) - 0.8), 4 * np.sqrt(0.16 / len(relabeled))
    )
    for (index, t), actual in drawn.items():
      possible = oracle.possible_goals(strategy, index, t)[:, 0]
      if strategy == 'random':  # an episode of one step has only its own
        self.assertContainsSubset(actual, [*possible, 10])
        continue
      self.assertCountEqual(set(actual), possible)
      if len(possible) > 1:
        counts = [actual.count(int(goal)) for goal in possible]
        statistic = chi_square.compute_statistic(
            counts, [1 / len(possible)] * len(possible)
        )
        self.assertLess(statistic, chi_square.LIMITS[len(counts) - 1])
    if strategy == 'random':  # an episode, then one of its transitions
      actual = np.concatenate(list(drawn.values()))
      self.assertCountEqual(set(actual), [*possible, 10])
      for index in range(len(_SIZES)):
        share = np.mean(actual // 10 == index)
        self.assertAllClose(share, 1 / 6, rtol=0, atol=0.06)

  @parameterized.parameters('future', 'final', 'episode', 'geometric')
  def test_relabeled_steps_are_equal_in_all_forms(self, strategy):
    arguments = dict(discount=0.5) if strategy == 'geometric' else {}
    relabel = _hindsight(strategy, compute_terminal=_is_near, **arguments)
    expected = [
        relabel({'steps': episode}, index)['steps']
        for index, episode in enumerate(_EPISODES)
    ]
    for make in golden.FORMS_AND_BATCHES.values():
      data = make(_EPISODES)
      for relabeled in (
          applying.transform_episodes(data, [relabel]),
          data.enumerate().map(lambda i, e: relabel(e, i)),
      ):
        golden.assert_frames_equal(self, _read(relabeled), expected)

  @pytest.mark.long
  def test_random_strategy_is_equal_in_all_forms(self):
    relabel = _hindsight('random', compute_terminal=_is_near)
    first, *others = (
        _read(applying.transform_episodes(make(_EPISODES), [transform]))
        for make in golden.FORMS_AND_BATCHES.values()
        for transform in (relabel, _COMPOSE([relabel]))
    )
    for other in others:
      golden.assert_frames_equal(self, other, first)
    with self.assertRaisesRegex(ValueError, 'transform_episodes'):
      relabel({'steps': _EPISODES[0]}, 0)
    empty = tf.nest.map_structure(lambda leaf: leaf[:0], _EPISODES[0])
    data = golden.stacked([empty, _EPISODES[0], empty, _EPISODES[2]])
    found = _read(applying.transform_episodes(data, [relabel]))
    lengths = [golden.length_of(steps) for steps in found]
    self.assertEqual(lengths, [0, 5, 0, 7])

  def test_seeds_and_passes(self):
    first, again, other, both = (
        [
            steps['observation']['desired_goal']
            for steps in _read(applying.transform_episodes(data, [relabel]))
        ]
        for data, relabel in (
            (golden.stacked(_EPISODES), _hindsight('future')),
            (golden.stacked(_EPISODES), _hindsight('future')),
            (
                golden.stacked(_EPISODES),
                goals.RelabelGoals(**{**vars(_hindsight('future')), 'seed': 5}),
            ),
            (golden.stacked(_EPISODES).repeat(2), _hindsight('future')),
        )
    )
    first, again, other, both = map(np.concatenate, (first, again, other, both))
    self.assertAllEqual(first, again)
    self.assertNotAllEqual(first, other)
    self.assertAllEqual(both[: len(first)], first)
    self.assertNotAllEqual(both[len(first) :], first)

  def test_a_function_in_numpy(self):
    """Environments compute rewards in NumPy."""

    def in_numpy(achieved, desired):
      distance = np.linalg.norm(achieved - desired, axis=-1)
      return -(distance >= 2).astype(np.float32)

    relabel = _hindsight('episode')
    other = goals.RelabelGoals(
        **{
            **vars(relabel),
            'compute_reward': lambda achieved, desired: tf.numpy_function(
                in_numpy, [achieved, desired], tf.float32
            ),
        }
    )
    data = golden.stacked(_EPISODES)
    actual, expected = (
        _read(applying.transform_episodes(data, [one]))
        for one in (other, relabel)
    )
    golden.assert_frames_equal(self, actual, expected)

  @parameterized.parameters(
      (dict(probability=1.5), 'probability must be in'),
      (dict(probability=0.5, replace=False), 'Set replace=True'),
      (dict(strategy='episode', max_distance=2), 'has no max_distance'),
      (dict(strategy='random', current_probability=0.1), 'no current_prob'),
      (dict(strategy='final', include_current=True), 'include_current is for'),
      (dict(compute_reward=1.0), 'compute_reward must be a function'),
      (dict(replace=False), "field 'desired_goal' already"),
      (dict(goal='observation/desired'), 'no field observation/desired'),
      (dict(field='observation/achieved'), 'Did you mean.*achieved_goal'),
      (
          dict(goal='observation/observation'),
          r'observation/observation is float64 \(3,\) in each step, but'
          r' observation/achieved_goal is float64 \(2,\)',
      ),
      (dict(goal='reward'), r'reward is float32 \(\) in each step'),
      (
          dict(field='observation'),
          "observation/desired_goal has the leaves .*'/achieved_goal'",
      ),
      (
          dict(compute_reward=lambda achieved, desired: achieved - desired),
          r'compute_reward must return one number for each step, .*\(5, 2\)',
      ),
      (
          dict(compute_reward=lambda achieved, desired: achieved[1:, 0]),
          'compute_reward must return one number for each of the 5 steps',
      ),
      (
          dict(compute_terminal=lambda achieved, desired: True),
          'compute_terminal must return one number for each step',
      ),
  )
  def test_invalid_arguments_raise(self, arguments, message):
    errors = (ValueError, tf.errors.InvalidArgumentError)
    with self.assertRaisesRegex(errors, message):
      relabel = goals.RelabelGoals(
          **{
              **dict(field=_ACHIEVED, goal=_DESIRED, replace=True),
              **arguments,
          }
      )
      relabel({'steps': _EPISODES[0]}, 0)

  def test_missing_fields(self):
    for name in 'reward', 'is_terminal', 'discount':
      steps = {k: v for k, v in _EPISODES[0].items() if k != name}
      relabel = _hindsight('future', compute_terminal=_is_near)
      with self.assertRaisesRegex(ValueError, f'no field {name}'):
        relabel({'steps': steps}, 0)


if __name__ == '__main__':
  tf.test.main()
