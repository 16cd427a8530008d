"""Tests of what says of each step whether its action counts."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import transforms
from rlds2reverb import windows
from tests import golden
from tests import ways


def _acting(steps, *, last=True):
  flags = np.append(np.ones(golden.length_of(steps) - 1, bool), last)
  return {**steps, 'has_action': flags}


class LastActionsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_marks(self, run):
    found = run(transforms.MarkActions(), [ways.THREE])[0]['steps']
    self.assertAllEqual(found['has_action'], [1, 1, 1, 0])
    for steps in _acting(ways.THREE), _acting(ways.THREE, last=False):
      found = run(transforms.MarkActions(), [steps])[0]['steps']
      self.assertAllEqual(found['has_action'], steps['has_action'])

  def test_grippers_follow(self):
    # The last command decides those before it, and stays.
    command = np.float32([[0.5], [0.5], [0.5], [1.0]])
    steps = {**ways.THREE, 'action': command}
    binarize = transforms.BinarizeGripper()
    for given, expected in (
        (steps, [0.5, 0.5, 0.5, 0.5]),
        (_acting(steps), [1, 1, 1, 1]),
    ):
      found = binarize.transform(tf.nest.map_structure(tf.constant, given))
      self.assertAllEqual(found['action'][:, 0], expected)
    absolute = transforms.RelativeToAbsoluteGripper()
    steps = {**steps, 'action': np.float32([[0], [0], [0], [1]])}
    for given, expected in (
        (steps, [1, 1, 1, 1]),
        (_acting(steps), [1, 1, 1, 0]),
    ):
      found = absolute.transform(tf.nest.map_structure(tf.constant, given))
      self.assertAllEqual(found['action'][:, 0], expected)

  def test_one_step_that_acts(self):
    steps = _acting(ways.make([20], [], terminal=True))
    steps['action'] = np.float32([[0.99]])
    found = transforms.BinarizeGripper().transform(
        tf.nest.map_structure(tf.constant, steps)
    )
    self.assertAllEqual(found['action'], [[1]])

  def test_actions_of_states_have_none(self):
    steps = tf.nest.map_structure(tf.constant, _acting(ways.THREE))
    steps['observation'] = tf.stack([steps['observation']] * 2, 1)
    found = transforms.ActionsFromStates('observation').transform(steps)
    self.assertAllEqual(found['has_action'], [1, 1, 1, 0])

  def test_chunks_follow(self):
    steps = _acting({'action': np.arange(1, 5), 'is_first': np.eye(4)[0] > 0})
    found = windows.stack_and_chunk(steps, num_actions=2, fill='zeros')
    self.assertAllEqual(found['action'], [[1, 2], [2, 3], [3, 4], [4, 0]])
    self.assertAllEqual(found['action_mask'], [[1, 1], [1, 1], [1, 1], [1, 0]])
    steps['has_action'][-1] = False
    found = windows.stack_and_chunk(steps, num_actions=2, fill='zeros')
    self.assertAllEqual(found['action'], [[1, 2], [2, 3], [3, 0], [0, 0]])


if __name__ == '__main__':
  tf.test.main()
