"""Tests of the actions of a robot that drives."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import waypoints
from tests import golden
from tests import ways


def _episode(length, terminal=False):
  rng = np.random.default_rng(length)
  step = np.arange(length)
  return {
      'observation': {'state': rng.normal(size=(length, 3))},
      'action': rng.normal(size=(length, 2)),
      'reward': np.float32(step + 1),
      'discount': np.ones(length, np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & terminal,
      'has_action': np.ones(length, bool),
  }


def _octo(episode, every):
  """What `gnm_dataset_transform` of Octo makes, step by step."""
  state, action = episode['observation']['state'], episode['action']
  position, yaw = state[:, :2], state[:, 2]
  scale = np.linalg.norm(action[0]) / np.linalg.norm(position[1] - position[0])
  found = []
  for step in range(0, len(action) - every, every):
    angle = yaw[step]
    turned = np.array(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    )
    found.append((position[step + every] - position[step]) @ turned * scale)
  return np.reshape(found, [-1, 2])


class WaypointsTest(tf.test.TestCase, parameterized.TestCase):

  def _transform(self, **kwargs):
    return waypoints.ActionsFromWaypoints('observation/state', **kwargs)

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_as_octo(self, run):
    episodes = [_episode(8), _episode(7, terminal=True), _episode(3)]
    found = run(self._transform(every=3), episodes)
    for episode, made in zip(episodes, found):
      steps = made['steps']
      expected = _octo(episode, 3)
      self.assertAllClose(steps['action'][:-1], expected, atol=1e-12)
      self.assertAllEqual(steps['action'][-1], [0, 0])
      kept = 3 * np.arange(len(expected) + 1)
      self.assertAllEqual(
          steps['observation']['state'], episode['observation']['state'][kept]
      )
      last = np.arange(len(kept)) == len(kept) - 1
      self.assertAllEqual(steps['is_last'], last)
      self.assertAllEqual(steps['has_action'], ~last)
    first, second, short = (made['steps'] for made in found)
    # Steps 0 to 6 of both: 1 + 2 + 3, 4 + 5 + 6, and what stands on step 6.
    self.assertAllEqual(first['reward'], [6, 15, 7])
    self.assertAllEqual(first['is_terminal'], [False, False, False])
    self.assertAllEqual(second['is_terminal'], [False, False, True])
    self.assertAllEqual(short['reward'], [1])

  def test_a_robot_that_waits_first(self):
    episode = _episode(5)
    episode['observation']['state'][1] = episode['observation']['state'][0]
    state, action = episode['observation']['state'], episode['action']
    (data,) = golden.stacked([episode])
    steps = self._transform(every=1)(data)['steps']
    ways_made = np.linalg.norm(np.diff(state[:, :2], axis=0), axis=1)
    scale = np.linalg.norm(action[1]) / ways_made[1]
    self.assertAllClose(
        np.linalg.norm(steps['action'], axis=1), [*ways_made * scale, 0]
    )

  def test_a_robot_that_never_moves(self):
    episode = _episode(4)
    episode['observation']['state'][:] = 1.0
    (data,) = golden.stacked([episode])
    steps = self._transform(every=2)(data)['steps']
    self.assertAllEqual(steps['action'], np.zeros([2, 2]))

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, 'every must be a positive'):
      self._transform(every=0)
    with self.assertRaisesRegex(ValueError, 'has 2 numbers, but 1 are needed'):
      waypoints.ActionsFromWaypoints('action')(
          next(iter(golden.stacked([_episode(4)])))
      )


if __name__ == '__main__':
  tf.test.main()
