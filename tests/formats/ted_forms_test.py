"""Tests of the forms of TED."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import ted_forms

# The steps 0 to 3, 4 and 5, and 6 alone; and an episode without any.
_COLUMNS = ted_forms.Columns(
    {'observation': tf.range(7)},
    {
        'action': tf.constant([0, 1, 2, 4]),
        'reward': tf.constant([10, 11, 12, 14]),
        **{key: tf.zeros([4], tf.bool) for key in ted_forms.END_KEYS},
    },
)
_NUM_STEPS = tf.constant([4, 2, 0, 1], tf.int64)


class FormsTest(parameterized.TestCase, tf.test.TestCase):

  def test_transitions(self):
    found = ted_forms.to_form('transitions', _COLUMNS, _NUM_STEPS)
    self.assertAllEqual(found['observation'], [0, 1, 2, 4])
    self.assertAllEqual(found['next']['observation'], [1, 2, 3, 5])
    self.assertAllEqual(found['action'], [0, 1, 2, 4])
    self.assertAllEqual(found['next']['reward'], [10, 11, 12, 14])
    self.assertNotIn('action', found['next'])

  def test_nested(self):
    found = ted_forms.to_form('nested', _COLUMNS, _NUM_STEPS)
    self.assertAllEqual(
        found['observation'],
        tf.ragged.constant([[0, 1, 2, 3], [4, 5], [], [6]]),
    )
    self.assertAllEqual(
        found['action'], tf.ragged.constant([[0, 1, 2], [4], [], []])
    )
    flat, lengths = ted_forms.from_nested(found)
    self.assertAllEqual(flat['observation'], np.arange(7))
    self.assertAllEqual(lengths, [3, 1, 0, 0])

  @parameterized.parameters(*ted_forms.FORMS)
  def test_form_of(self, form):
    found = ted_forms.to_form(form, _COLUMNS, _NUM_STEPS)
    self.assertEqual(ted_forms.form_of(found), form)
    ted_forms.check_form(found, form)

  def test_from_transitions(self):
    data = ted_forms.to_form('transitions', _COLUMNS, _NUM_STEPS)
    found = ted_forms.from_transitions(
        data, _NUM_STEPS, {'observation': tf.constant([6])}
    )
    self.assertAllEqual(found.steps['observation'], np.arange(7))
    self.assertAllEqual(found.transitions['reward'], [10, 11, 12, 14])

  def test_nan_follows_nan(self):
    nan = float('nan')
    data = {
        'observation': tf.constant([[0.0], [nan]]),
        'next': {
            'observation': tf.constant([[nan], [2.0]]),
            'done': tf.constant([False, True]),
        },
    }
    found = ted_forms.from_transitions(data, tf.constant([3], tf.int64), {})
    self.assertAllEqual(found.steps['observation'], [[0], [nan], [2]])


if __name__ == '__main__':
  tf.test.main()
