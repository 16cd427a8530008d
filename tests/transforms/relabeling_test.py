"""Tests of actions that are made of states."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import applying
from rlds2reverb.transforms import relabeling
from tests import golden
from tests import ways


def _episode(length, seed=0):
  """Returns an episode of 8 numbers of state, and 7 of action."""
  rng = np.random.default_rng(seed)
  return {
      **golden.make_episode([1.0] * length, terminal=True),
      'observation': {'state': rng.normal(size=(length, 8)).astype(np.float32)},
      'action': rng.normal(size=(length, 7)).astype(np.float32),
  }


class ActionsFromStatesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_by_hand(self, run):
    states = np.float32([[1, 10], [4, 30], [9, 60]])
    episode = {
        **golden.make_episode([1.0] * 3, terminal=True),
        'observation': {'state': states},
        'action': np.float32([[7, 0.1], [8, 0.2], [9, 0.3]]),
    }
    for kind, moved in (
        ('difference', [[3, 20], [5, 30], [0, 0]]),
        ('absolute', [[4, 30], [9, 60], [9, 60]]),
    ):
      transform = relabeling.ActionsFromStates('observation/state', kind=kind)
      steps = run(transform, [episode])[0]['steps']
      self.assertAllClose(
          steps['action'],
          np.concatenate([moved, [[0.1], [0.2], [0.3]]], 1),
      )
      # Applied one after the other, the actions go through the states.
      at = states[0]
      for action, reached in zip(steps['action'][:-1], states[1:]):
        at = transform.target({'observation': {'state': at}, 'action': action})
        self.assertAllEqual(at, reached)

  @parameterized.named_parameters(*golden.FORMS_AND_PACKS.items())
  def test_formula_of_octo(self, form):
    episodes = [_episode(n, n) for n in (5, 1, 3, 9, 2)]
    rlds_data = applying.transform_episodes(
        form(episodes),
        [relabeling.ActionsFromStates('observation/state', size=6)],
    )
    if form is golden.packed:
      golden.assert_packs_hold(self, rlds_data)
    self.assertEqual(
        rlds_data.element_spec['steps']['action'],
        tf.TensorSpec([None, 7], tf.float32),
    )
    for found, episode in zip(rlds_data.as_numpy_iterator(), episodes):
      action, state = episode['action'], episode['observation']['state']
      # `relabel_actions` of Octo, whose episodes end a step earlier.
      octo = np.concatenate(
          [state[1:, :6] - state[:-1, :6], action[:-1, -1:]], axis=1
      )
      self.assertAllEqual(found['steps']['action'][:-1], octo)
      self.assertAllEqual(
          found['steps']['action'][-1], [0] * 6 + [action[-1, -1]]
      )
      self.assertAllEqual(found['steps']['observation']['state'], state)

  def test_numbers_that_are_kept(self):
    episode = _episode(4)
    for kept, expected in (((), []), ((0, -1), [0, 6])):
      found = relabeling.ActionsFromStates(
          'observation/state', start=6, kept=kept
      ).transform(episode)['action']
      state = episode['observation']['state']
      self.assertAllEqual(
          found[:-1, :2], (state[1:, 6:] - state[:-1, 6:]).astype(np.float32)
      )
      self.assertAllEqual(found[:, 2:], episode['action'][:, expected])

  def test_errors(self):
    episode = golden.stacked([_episode(3)])
    for message, arguments in (
        ('no field observation/pose', {'state': 'observation/pose'}),
        (
            'has 8 numbers, but 4 are needed from number 6',
            {'start': 6, 'size': 4},
        ),
        ('action has 7 numbers.*none at \\[7\\]', {'kept': [7]}),
        ("kind must be one of.*'delta'", {'kind': 'delta'}),
        ('observation must be one leaf', {'action': 'observation'}),
    ):
      arguments = {'state': 'observation/state', **arguments}
      with self.assertRaisesRegex(ValueError, message):
        episode.map(relabeling.ActionsFromStates(**arguments))


class MotionsFromPosesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*golden.FORMS_AND_PACKS.items())
  def test_motions_lead_through_the_poses(self, form):
    episodes = [_episode(n, n) for n in (4, 1, 6, 2)]
    for frame in ('base', 'end_effector'):
      transform = relabeling.MotionsFromPoses(
          'observation/state', 'euler_xyz', frame=frame, start=1
      )
      rlds_data = applying.transform_episodes(form(episodes), [transform])
      if form is golden.packed:
        golden.assert_packs_hold(self, rlds_data)
      for found, episode in zip(rlds_data.as_numpy_iterator(), episodes):
        action = found['steps']['action']
        self.assertEqual(action.shape, (len(action), 7))
        self.assertAllEqual(action[:, 6], episode['action'][:, 6])
        # The last one stays where it is.
        self.assertAllClose(action[-1, :6], np.zeros(6), 0, 1e-6)
        poses = episode['observation']['state'][:, 1:7]
        reached = transform.target(found['steps'])[:-1]
        self.assertAllClose(reached[:, :3], poses[1:, :3], 0, 1e-5)
        # Angles that are the same rotation: the same sines and cosines, or
        # those of the other branch; the matrices tell.
        for one, other in zip(reached[:, 3:], poses[1:, 3:]):
          self.assertAllClose(_matrix(one), _matrix(other), 0, 1e-5)

  def test_a_turn_beyond_pi(self):
    # From 3.1 to -3.1 is a turn of 0.083, where a difference says -6.2.
    states = np.zeros([2, 6])
    states[:, 5] = [3.1, -3.1]
    steps = {'state': states, 'action': np.zeros([2, 1])}
    found = relabeling.MotionsFromPoses(
        'state', 'euler_xyz', kept=()
    ).transform(steps)
    self.assertAllClose(found['action'][0, 5], 2 * np.pi - 6.2)

  def test_errors(self):
    episode = golden.stacked([_episode(3)])
    for message, arguments in (
        ("frame must be one of.*'tool'", {'frame': 'tool'}),
        ("one of.*'euler'", {'rotation': 'euler'}),
        ('but 7 are needed from number 2', {'rotation': 'quaternion_xyzw'}),
    ):
      arguments = {'rotation': 'euler_xyz', 'start': 2, **arguments}
      with self.assertRaisesRegex(ValueError, message):
        episode.map(
            relabeling.MotionsFromPoses('observation/state', **arguments)
        )


def _matrix(angles):
  """Returns Rz @ Ry @ Rx of roll, pitch and yaw."""
  a, b, c = np.asarray(angles, np.float64)
  x = [[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]]
  y = [[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]]
  z = [[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]]
  return np.array(z) @ y @ x


if __name__ == '__main__':
  tf.test.main()
