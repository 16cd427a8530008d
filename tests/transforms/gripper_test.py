"""Tests of grippers, against Octo's functions written as loops."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import applying
from rlds2reverb.transforms import gripper
from tests import golden
from tests import ways


def _binarized(commands):
  """Octo's `binarize_gripper_actions`, of the actions of the transitions."""
  made = np.empty_like(commands)
  carry = commands[-1]
  for i in reversed(range(len(commands))):
    if not 0.05 <= commands[i] <= 0.95:
      carry = float(commands[i] > 0.95)
    made[i] = carry
  return made


def _absolute(commands):
  """Octo's `rel2abs_gripper_actions`: from -1, closed, and 1, open."""
  states = np.where(commands < -0.1, 1, np.where(commands > 0.1, -1, 0))
  given = states[states != 0]
  carry = -given[0] if len(given) else 1
  made = []
  for state in states:
    carry = state or carry
    made.append(carry / 2 + 0.5)
  return np.array(made)


def _episode(commands, dtype=np.float32):
  """Returns an episode whose actions end with a gripper's commands."""
  episode = golden.make_episode([1.0] * len(commands), terminal=False)
  commands = np.array(commands, dtype)
  other = np.arange(len(commands), dtype=dtype)
  return {**episode, 'action': np.stack([other, commands], 1)}


def _random_episodes(low, high):
  rng = np.random.default_rng(3)
  episodes = []
  for length in [7, 2, 1, 30, 1, 5, 12, 2, 9]:
    commands = rng.uniform(low, high, length)
    clear = rng.random(length) < 0.4
    commands[clear] = rng.choice([low, high], length)[clear]
    episodes.append(_episode(commands))
  return episodes


def _commands(episodes):
  return [episode['steps']['action'][:, -1] for episode in episodes]


class GripperTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_binarized_by_hand(self, run):
    # The last step's 1.0 has no meaning, and decides nothing.
    episode = _episode([0.02, 0.5, 0.98, 0.04, 0.3, 0.7, 1.0])
    steps = run(gripper.BinarizeGripper(), [episode])[0]['steps']
    self.assertAllClose(
        steps['action'], np.stack([range(7), [0, 1, 1, 0, 0.7, 0.7, 0.7]], 1)
    )
    self.assertEqual(steps['action'].dtype, np.float32)

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_absolute_by_hand(self, run):
    transform = gripper.RelativeToAbsoluteGripper()
    found = run(
        transform,
        [
            _episode([0, 1, 0.05, 0, -1, 0]),
            _episode([0, 0, -0.5, 1, 0, 0]),
            _episode([0, 0, 1]),  # a command of the last step
            _episode([1]),
        ],
    )
    for commands, expected in zip(
        _commands(found),
        ([1, 0, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0], [1, 1, 1], [1]),
    ):
      self.assertAllEqual(commands, expected)

  @parameterized.named_parameters(*golden.FORMS_AND_PACKS.items())
  def test_random_ones_are_those_of_octo(self, form):
    for transform, octo, low in (
        (gripper.BinarizeGripper(), _binarized, 0.0),
        (gripper.RelativeToAbsoluteGripper(), _absolute, -1.0),
    ):
      episodes = _random_episodes(low, 1.0)
      rlds_data = applying.transform_episodes(form(episodes), [transform])
      if form is golden.packed:
        golden.assert_packs_hold(self, rlds_data)
      found = _commands(rlds_data.as_numpy_iterator())
      self.assertLen(found, len(episodes))
      for commands, episode in zip(found, episodes):
        given = episode['action'][:, -1]
        if len(given) > 1:
          self.assertAllEqual(commands[:-1], octo(given[:-1]))
          self.assertEqual(commands[-1], commands[-2])

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_inverted(self, run):
    invert = gripper.InvertGripper('action', 0)
    steps = run(invert, [_episode([0.2, 0.7])])[0]['steps']
    self.assertAllClose(steps['action'], [[1, 0.2], [0, 0.7]])
    back = invert.invert({'action': steps['action']})['action']
    self.assertAllClose(back, [[0, 0.2], [1, 0.7]])
    self.assertEqual(invert.invert({}), {})

  def test_relative_commands_undo_absolute_ones(self):
    relative = np.float32([0, 1, 0, 0, -1, 0, 1, 0])
    absolute = gripper.RelativeToAbsoluteGripper(index=None).transform(
        {'action': relative}
    )['action']
    previous = np.concatenate([[1], absolute[:-1]])
    self.assertAllEqual(
        gripper.RelativeToAbsoluteGripper.relative(
            absolute, np.float32(previous)
        ),
        relative,
    )
    with self.assertRaisesRegex(ValueError, 'previous must be floats.*int'):
      gripper.RelativeToAbsoluteGripper.relative([1.0], [1])

  def test_errors(self):
    for action, index, message in (
        (tf.ones([3, 2], tf.int32), -1, 'action must be floats, but is int32'),
        (tf.ones([3, 2]), 2, 'action has 2 numbers, but no number 2'),
        (tf.ones([3]), -1, r'shape \(3,\), .* index=-1'),
        (tf.ones([3, 4, 2]), -1, r'shape \(3, 4, 2\).*Cut chunks later'),
        ({'arm': tf.ones([3, 2])}, -1, 'one leaf, but has several.*arm'),
    ):
      for transform in (
          gripper.BinarizeGripper(index=index),
          gripper.RelativeToAbsoluteGripper(index=index),
      ):
        with self.assertRaisesRegex(ValueError, message):
          transform.transform({'action': action})
    with self.assertRaisesRegex(ValueError, 'closed_below must not be above'):
      gripper.BinarizeGripper(closed_below=0.9, open_above=0.1)
    with self.assertRaisesRegex(ValueError, 'threshold must be 0 or more'):
      gripper.RelativeToAbsoluteGripper(threshold=-1)


if __name__ == '__main__':
  tf.test.main()
