"""Tests of the recurrent DQN's hyper-parameters."""

from absl.testing import absltest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb.training import recurrent_dqn

_TIME_STEP = ts.time_step_spec(tf.TensorSpec([2], tf.float32))
_ACTION = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)


def _make_agent(**kwargs):
  train_step = tf.Variable(0, dtype=tf.int64)
  algorithm = recurrent_dqn.RecurrentDqn(**kwargs)
  return algorithm.make_agent(_TIME_STEP, _ACTION, train_step)


class RecurrentDqnTest(absltest.TestCase):

  def test_lstm_is_the_memory(self):
    spec = _make_agent(lstm_size=5).policy.policy_state_spec
    self.assertEqual([leaf.shape for leaf in spec], [(5,), (5,)])
    self.assertEqual(_make_agent(lstm_size=None).policy.policy_state_spec, ())

  def test_stored_state_needs_the_policy_info(self):
    for stored_state in True, False:
      algorithm = recurrent_dqn.RecurrentDqn(stored_state=stored_state)
      self.assertEqual(algorithm.uses_policy_info, stored_state)

  def test_sequence_must_hold_a_transition_after_the_burn_in(self):
    recurrent_dqn.RecurrentDqn(sequence_length=6, burn_in=4)
    with self.assertRaisesRegex(ValueError, 'burn-in of 5: they need 7'):
      recurrent_dqn.RecurrentDqn(sequence_length=6, burn_in=5)

  def test_needs_a_discrete_action(self):
    action = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
    with self.assertRaisesRegex(ValueError, 'needs a discrete action'):
      recurrent_dqn.RecurrentDqn().make_agent(
          _TIME_STEP, action, tf.Variable(0, dtype=tf.int64)
      )


if __name__ == '__main__':
  absltest.main()
