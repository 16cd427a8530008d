"""Tests of the rules about the boundaries of an episode."""

import itertools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.trajectories import boundaries
from tests import golden


def _outline(episode, nan_field=None):
  """Returns the outline of an episode and of the first step that follows."""
  outline = {
      'is_first': np.append(episode['is_first'], True),
      'is_last': np.append(episode['is_last'], False),
      'is_terminal': np.append(episode['is_terminal'], False),
      'discount': np.append(episode['discount'], np.float32(0)),
  }
  if nan_field is not None:
    outline[outlines.NAN_FIELD] = np.append(np.int32(nan_field), np.int32(0))
  return outline


def _check(validation, nan_fields=()):
  """Returns a function of an outline: whether it is valid, and the message."""
  signature = {
      'is_first': tf.TensorSpec([None], tf.bool),
      'is_last': tf.TensorSpec([None], tf.bool),
      'is_terminal': tf.TensorSpec([None], tf.bool),
      'discount': tf.TensorSpec([None], tf.float32),
  }
  if nan_fields:
    signature[outlines.NAN_FIELD] = tf.TensorSpec([None], tf.int32)

  @tf.function(input_signature=[signature])
  def check(outline):
    verdict = boundaries.check_episode(
        tf.constant(7, tf.int64),
        outline,
        validation=validation,
        nan_fields=nan_fields,
    )
    return verdict.valid, verdict.describe()

  return check


def _episodes(max_length):
  """Yields an episode for each way to set the flags and the discounts."""
  for length in range(max_length + 1):
    for flags in itertools.product([False, True], repeat=3 * length):
      columns = np.array(flags, bool).reshape(3, length)
      episode = dict(zip(('is_first', 'is_last', 'is_terminal'), columns))
      for discount in ([1.0, 0.5, 0.0], [0.0, 1.5, -0.5]):
        yield {**episode, 'discount': np.float32(discount[:length])}


class BoundariesTest(parameterized.TestCase, tf.test.TestCase):

  def test_all_faults_of_all_short_episodes(self):
    @tf.function(reduce_retracing=True)
    def find(outline):
      return boundaries.find_faults(outline, validation='strict')

    for episode in _episodes(3):
      found = find(_outline(episode))
      steps = found.steps.numpy().tolist()
      self.assertEqual(steps, sorted(steps))
      fault = golden.find_fault(episode)
      if fault is None or fault[1] is None:
        self.assertEmpty(steps)
        continue
      self.assertEqual((found.rules.numpy()[0].decode(), steps[0]), fault)
      # A range of discounts is a rule of its own, whatever else is wrong.
      outside = np.flatnonzero(
          (episode['discount'] < 0) | (episode['discount'] > 1)
      )
      self.assertEqual(
          [
              step
              for step, rule in zip(steps, found.rules.numpy())
              if rule.decode() == golden.DISCOUNT_RANGE
          ],
          outside.tolist(),
      )
      at = {name: column[steps[0]] for name, column in episode.items()}
      self.assertEqual(
          found.values.numpy()[0].decode(),
          f'is_first={at["is_first"]:d}, is_last={at["is_last"]:d},'
          f' is_terminal={at["is_terminal"]:d}, discount={at["discount"]:g}',
      )

  def test_every_strict_rule_in_all_short_episodes(self):
    check = _check('strict')
    num_valid = 0
    for episode in _episodes(3):
      valid, message = check(_outline(episode))
      fault = golden.find_fault(episode)
      self.assertEqual(bool(valid), fault is None, episode)
      num_valid += fault is None
      if fault:
        sentence, step = fault
        self.assertStartsWith(message.numpy().decode(), sentence, episode)
        self.assertIn(golden.place(7, step), message.numpy().decode(), episode)
    # Terminal or not, of 1 to 3 steps; the other discounts only of 1 step.
    self.assertEqual(num_valid, 8)

  @parameterized.parameters(
      ([True, False], [False, True], [True, False], golden.TERMINAL_NOT_LAST),
      ([True, False], [False, False], [False, False], golden.FIRST_AFTER_MID),
      ([True, False], [True, False], [False] * 2, golden.NO_FIRST_AFTER_LAST),
      ([False, False], [False, True], [False, True], None),
      ([True, True], [True, True], [False, True], None),
      ([True], [False], [False], None),
      ([], [], [], None),
  )
  def test_rules_of_tf_agents(self, first, last, terminal, sentence):
    valid, message = _check('tf_agents')(
        _outline(
            {
                'is_first': np.array(first, bool),
                'is_last': np.array(last, bool),
                'is_terminal': np.array(terminal, bool),
                'discount': np.full([len(first)], 2, np.float32),
            }
        )
    )
    self.assertEqual(bool(valid), sentence is None)
    if sentence:
      self.assertStartsWith(message.numpy().decode(), sentence)

  def test_what_to_do_where_is_last_is_never_set(self):
    check = _check('strict')
    never = {
        **golden.COMPLETE,
        'is_last': np.zeros(4, bool),
        'is_terminal': np.zeros(4, bool),
    }
    _, message = check(_outline(never))
    self.assertEndsWith(
        message.numpy().decode(),
        '. If the data set never sets is_last, StepMapping(is_last=None) marks'
        ' the last step of every episode by its position.',
    )
    # A step in the middle that is a first one is another fault.
    early = {**golden.COMPLETE, 'is_first': np.array([1, 0, 1, 0], bool)}
    _, message = check(_outline(early))
    self.assertStartsWith(message.numpy().decode(), golden.FIRST_AFTER_MID)
    self.assertNotIn('is_last=None', message.numpy().decode())

  @parameterized.parameters('strict', 'tf_agents')
  def test_nan(self, validation):
    check = _check(validation, ('action', 'reward'))
    self.assertTrue(check(_outline(golden.COMPLETE, [0, 0, 0, 0]))[0])
    valid, message = check(_outline(golden.COMPLETE, [0, 0, 2, 1]))
    self.assertFalse(valid)
    message = message.numpy().decode()
    self.assertStartsWith(message, golden.NAN)
    self.assertIn(golden.place(7, 2), message)
    self.assertEndsWith(message, ', NaN in reward.')

  @parameterized.parameters('strict', 'tf_agents')
  def test_unequal_lengths(self, validation):
    # The outline of such an episode has no steps.
    outline = _outline(
        tf.nest.map_structure(lambda leaf: leaf[:0], golden.COMPLETE)
    )
    verdict = boundaries.check_episode(
        tf.constant(7, tf.int64),
        tf.nest.map_structure(tf.constant, outline),
        stacked_steps.Lengths(['action', 'reward'], tf.constant([3, 4])),
        validation=validation,
    )
    self.assertFalse(verdict.valid)
    self.assertEqual(
        verdict.describe().numpy().decode(),
        f'{golden.UNEQUAL_LENGTHS} Found at episode 7: action: 3, reward: 4.',
    )


if __name__ == '__main__':
  tf.test.main()
