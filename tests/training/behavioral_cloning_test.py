"""Tests of the losses of behavioural cloning, against numpy."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

from rlds2reverb.training import behavioral_cloning

_OBSERVATION = tf.TensorSpec([2], tf.float32)
# The last frame is that of an episode's last step: its action means nothing.
_STEP_TYPES = [[0], [1], [1], [2]]


def _make_agent(action_spec):
  tf.keras.utils.set_random_seed(3)
  agent = behavioral_cloning.BehavioralCloning(
      layers=(5,), learning_rate=0.01
  ).make_agent(
      ts.time_step_spec(_OBSERVATION),
      action_spec,
      tf.Variable(0, dtype=tf.int64),
  )
  agent.initialize()
  return agent


def _make_batch(action):
  generator = np.random.default_rng(0)
  step_type = np.array(_STEP_TYPES, np.int32)
  return trajectory.Trajectory(
      step_type=step_type,
      observation=generator.normal(size=(4, 1, 2)).astype(np.float32),
      action=action,
      policy_info=(),
      next_step_type=np.array([[1], [1], [2], [0]], np.int32),
      reward=np.zeros([4, 1], np.float32),
      discount=np.ones([4, 1], np.float32),
  )


def _tensors(batch):
  return tf.nest.map_structure(tf.convert_to_tensor, batch)


def _hidden(agent, batch):
  """Returns the hidden units and the weights of the last layer."""
  weights = [w.numpy() for w in agent.cloning_network.trainable_weights]
  hidden = np.maximum(batch.observation[:, 0] @ weights[0] + weights[1], 0)
  return hidden @ weights[2] + weights[3]


class BehavioralCloningTest(tf.test.TestCase):

  def test_loss_of_discrete_actions_is_the_cross_entropy(self):
    agent = _make_agent(tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2))
    batch = _make_batch(np.array([[0], [2], [1], [0]]))
    logits = _hidden(agent, batch)
    log_probability = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    taken = log_probability[np.arange(4), batch.action[:, 0]]
    self.assertAllClose(agent.loss(_tensors(batch)).loss, -taken[:3].sum() / 4)

  def test_loss_of_floats_is_the_squared_error(self):
    for shape in (), (2,), (2, 3):
      spec = tensor_spec.BoundedTensorSpec(shape, tf.float32, -1, 1)
      agent = _make_agent(spec)
      action = np.random.default_rng(1).uniform(-1, 1, (4, 1, *shape))
      batch = _make_batch(action.astype(np.float32))
      output = np.tanh(_hidden(agent, batch))
      errors = (output - action.reshape(output.shape)) ** 2
      self.assertAllClose(
          agent.loss(_tensors(batch)).loss, errors.mean(axis=1)[:3].sum() / 4
      )

  def test_policy_takes_the_action_that_was_cloned(self):
    agent = _make_agent(tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2))
    batch = _make_batch(np.array([[0], [2], [1], [0]]))
    train = common.function(agent.train)
    for _ in range(300):
      train(_tensors(batch))
    step = ts.restart(batch.observation[:3, 0], batch_size=3)
    self.assertAllEqual(agent.policy.action(step).action, [0, 2, 1])

  def test_several_actions(self):
    with self.assertRaisesRegex(ValueError, 'take one action, but .* has 2'):
      _make_agent((_OBSERVATION, _OBSERVATION))


if __name__ == '__main__':
  absltest.main()
