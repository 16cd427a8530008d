"""Tests of the transition rows of an episode."""

import numpy as np
import tensorflow as tf

from rlds2reverb.windows import transitions
from tests import contract
from tests import golden


class TransitionRowsTest(tf.test.TestCase):

  def test_the_contract_episode(self):
    rows = transitions.transition_rows(contract.A).columns
    self.assertAllEqual(rows['observation'], [0, 1, 2, 3, 4])
    self.assertAllEqual(rows['next_observation'], [1, 2, 3, 4, 5])
    self.assertAllEqual(rows['reward'], [1, 2, 3, 4, 5])
    self.assertAllEqual(rows['discount'], [1, 1, 1, 1, 0])
    self.assertAllEqual(rows['is_first'], [1, 0, 0, 0, 0])
    self.assertAllEqual(rows['is_last'], [0, 0, 0, 0, 1])
    self.assertAllEqual(rows['is_terminal'], [0, 0, 0, 0, 1])

  def test_edges_against_a_loop(self):
    def check(steps, rows):
      contract.assert_rows(self, rows.columns, contract.transitions(steps))

    contract.check_everywhere(
        self, transitions.transition_rows, contract.edge_episodes(3), check
    )

  def test_flags_and_discount_of_shape_one(self):
    steps = dict(contract.A)
    for name in ('is_first', 'is_last', 'is_terminal', 'discount'):
      steps[name] = steps[name].astype(np.int64)[:, np.newaxis]
    contract.assert_rows(
        self,
        tf.nest.map_structure(
            lambda leaf: leaf.numpy(),
            transitions.transition_rows(steps).columns,
        ),
        contract.transitions(contract.A),
    )

  def test_a_next_observation_of_the_steps_own(self):
    own = {**contract.A, 'next_observation': contract.A['observation'] + 1}
    with self.assertRaisesRegex(
        ValueError, "field 'next_observation' already.*RenameFields"
    ):
      transitions.transition_rows(own)
    # Without observations no column is added.
    del own['observation']
    self.assertAllEqual(
        transitions.transition_rows(own).columns['next_observation'],
        [1, 2, 3, 4, 5],
    )

  def test_fields_that_are_missing(self):
    rows = transitions.transition_rows({'action': tf.range(3)}).columns
    self.assertAllEqual(rows['action'], [0, 1])
    self.assertEqual(list(rows), ['action'])

  def test_steps_must_be_a_dict(self):
    with self.assertRaisesRegex(ValueError, 'must be a dict of fields'):
      transitions.transition_rows(tf.range(3))

  def test_ragged_field(self):
    ragged = tf.ragged.range(tf.range(6))
    with self.assertRaisesRegex(
        ValueError, 'words/a must be a dense tensor, but is RaggedTensor'
    ):
      transitions.transition_rows({**contract.A, 'words': {'a': ragged}})
    for form in golden.FORMS.values():
      data = golden.with_unused_fields(form([contract.A]))
      with self.assertRaisesRegex(ValueError, 'words must be a dense tensor'):
        data.map(lambda episode: transitions.transition_rows(episode['steps']))

  def test_flag_or_discount_that_is_no_number(self):
    words = np.array([b'1'] * 6, object)
    for field, column in (
        ('is_first', words),
        ('is_terminal', words),
        ('discount', words),
        ('discount', contract.A['is_last']),
        ('is_last', np.zeros([6, 2])),
    ):
      with self.assertRaisesRegex(ValueError, f'{field} must be one number'):
        transitions.transition_rows({**contract.A, field: column})


if __name__ == '__main__':
  tf.test.main()
