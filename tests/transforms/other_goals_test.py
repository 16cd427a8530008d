"""Tests of goals that other episodes have reached."""

import numpy as np
import tensorflow as tf

from rlds2reverb import transforms
from tests import golden


def _episodes(count=60):
  """Returns episodes whose observations tell the episode and the step."""
  episodes = []
  for number in range(count):
    steps = golden.make_episode([1.0] * (3 + number % 4), terminal=True)
    length = golden.length_of(steps)
    steps['observation'] = {'x': 100.0 * number + np.arange(length)}
    episodes.append(steps)
  return transforms.transform_episodes(
      golden.stacked(episodes), [transforms.RelabelGoals(seed=1)]
  )


def _read(data):
  return list(data.map(lambda e: e['steps']).as_numpy_iterator())


class OtherGoalsTest(tf.test.TestCase):

  def test_how_many_and_of_whom(self):
    data = _episodes()
    own = _read(data)
    found = _read(transforms.draw_goals_of_others(data, 0.3, seed=2))
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
    drawn = transforms.draw_goals_of_others(data, 0.5, seed=3)
    first = [steps['goal']['x'] for steps in _read(drawn)]
    again = [steps['goal']['x'] for steps in _read(drawn)]
    for one, other in zip(first, again):
      self.assertAllEqual(one, other)
    passes = _read(transforms.draw_goals_of_others(data.repeat(2), 0.5, seed=3))
    goals = [
        np.concatenate([s['goal']['x'] for s in part])
        for part in (passes[:5], passes[5:])
    ]
    self.assertNotAllEqual(*goals)

  def test_never(self):
    data = _episodes(3)
    for steps, own in zip(
        _read(transforms.draw_goals_of_others(data, 0.0)), _read(data)
    ):
      self.assertAllEqual(steps['goal']['x'], own['goal']['x'])
    with self.assertRaisesRegex(ValueError, 'probability must be'):
      transforms.draw_goals_of_others(data, 2.0)
    with self.assertRaisesRegex(ValueError, 'target'):
      transforms.draw_goals_of_others(data, 0.5, goal='target')


if __name__ == '__main__':
  tf.test.main()
