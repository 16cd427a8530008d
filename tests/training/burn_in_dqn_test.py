"""Tests of the agent with burn-in, against a network without one."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.networks import q_rnn_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from examples import burn_in_dqn

_OBSERVATION = tf.TensorSpec([2], tf.float32)
_ACTION = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
_GAMMA = 0.9
_UNITS = 4


def _values_of(network, observation, step_type, state):
  """Returns the values `[B, T, A]` of complete sequences."""
  batch = len(step_type)
  state = [
      tf.constant(each, tf.float32, shape=[batch, _UNITS]) for each in state
  ]
  values, _ = network(observation, step_type=step_type, network_state=state)
  return values.numpy()


def _make_agent(has_memory=True, burn_in=0, **kwargs):
  tf.keras.utils.set_random_seed(5)
  if has_memory:
    network = q_rnn_network.QRnnNetwork(
        _OBSERVATION,
        _ACTION,
        input_fc_layer_params=(3,),
        lstm_size=(_UNITS,),
        output_fc_layer_params=(3,),
    )
  else:
    network = q_network.QNetwork(_OBSERVATION, _ACTION, fc_layer_params=(3,))
  agent = burn_in_dqn.BurnInDqnAgent(
      ts.time_step_spec(_OBSERVATION),
      _ACTION,
      q_network=network,
      optimizer=tf.keras.optimizers.SGD(0.1),
      gamma=_GAMMA,
      td_errors_loss_fn=tf.math.squared_difference,
      burn_in=burn_in,
      **kwargs,
  )
  agent.initialize()
  # The networks differ, or a target that is taken from the wrong one would not
  # show.
  for variable in agent._target_q_network.variables:
    variable.assign(variable * 1.5 + 0.1)
  return agent


def _make_batch(step_types, seed=0):
  """Returns a `Trajectory` `[B, T, ...]` with the given step types."""
  generator = np.random.default_rng(seed)
  step_type = np.array(step_types, np.int32)
  shape = step_type.shape
  state = {
      str(i): generator.normal(size=(*shape, _UNITS)).astype(np.float32)
      for i in range(2)
  }
  return trajectory.Trajectory(
      step_type=step_type,
      observation=generator.normal(size=(*shape, 2)).astype(np.float32),
      action=generator.integers(0, 3, shape),
      policy_info={'state': state},
      next_step_type=np.roll(step_type, -1, axis=1),
      reward=generator.normal(size=shape).astype(np.float32),
      discount=generator.choice([0.0, 1.0], shape).astype(np.float32),
  )


def _expected_loss(agent, batch, state, mask, cql_alpha=0.0):
  """Returns the loss of a batch, of which `mask` `[B, T-1]` counts."""
  arguments = batch.observation, batch.step_type, state
  values = _values_of(agent._q_network, *arguments)
  target = _values_of(agent._target_q_network, *arguments)
  best = values[:, 1:].argmax(-1)

  def at(array, index):
    return np.take_along_axis(array, index[..., np.newaxis], -1)[..., 0]

  taken = at(values[:, :-1], batch.action[:, :-1])
  error = (
      batch.reward[:, :-1]
      + _GAMMA * batch.discount[:, :-1] * at(target[:, 1:], best)
      - taken
  )
  conservative = np.log(np.exp(values[:, :-1]).sum(-1)) - taken
  return np.mean(np.array(mask) * (error**2 + cql_alpha * conservative))


_FIRST, _MID, _LAST = 0, 1, 2
_MIDS = [_MID] * 6


class BurnInDqnAgentTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(
      (
          'of_the_frames_after_the_burn_in',
          dict(burn_in=2, cql_alpha=0.3),
          [_MIDS, _MIDS],
          [[0, 0, 1, 1, 1]] * 2,
      ),
      (
          'from_the_start_of_an_episode_without_burn_in',
          dict(burn_in=2),
          [[_FIRST, *_MIDS[1:]], _MIDS],
          [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]],
      ),
      (
          'none_from_the_last_step_on',  # Padding is LAST, too.
          {},
          [[_MID, _MID, _MID, _LAST, _LAST, _LAST], [*_MIDS[1:], _LAST]],
          [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]],
      ),
      (
          'from_the_state_stored_with_the_first_frame',
          dict(burn_in=1, stored_state=True),
          [_MIDS[:4]] * 3,
          [[0, 1, 1]] * 3,
      ),
  )
  def test_loss(self, arguments, step_types, mask):
    agent, batch = _make_agent(**arguments), _make_batch(step_types)
    loss = agent.loss(_tensors(batch)).loss
    zeros = np.zeros([len(step_types), _UNITS])
    stored = [batch.policy_info['state'][i][:, 0] for i in ('0', '1')]
    expected, other = (
        _expected_loss(agent, batch, state, mask, arguments.get('cql_alpha', 0))
        for state in ((zeros, zeros), stored)
    )
    if arguments.get('stored_state'):
      expected, other = other, expected
    self.assertAllClose(loss, expected, rtol=1e-5)
    self.assertNotAllClose(loss, other, rtol=1e-3)

  def test_burn_in_has_no_gradient(self):
    for step_type, trains_burn_in in ((_MID, False), (_FIRST, True)):
      agent = _make_agent(burn_in=2)
      batch = _tensors(_make_batch([[step_type] + [_MID] * 4]))
      with tf.GradientTape() as tape:
        tape.watch(batch.observation)
        loss = agent.loss(batch, training=True).loss
      gradient = tape.gradient(loss, batch.observation)
      size = tf.reduce_max(tf.abs(gradient[0, :4]), axis=1).numpy()
      self.assertAllEqual(size > 0, [trains_burn_in] * 2 + [True] * 2)

  def test_agent_without_memory_equals_double_dqn_of_tf_agents(self):
    agent = _make_agent(has_memory=False)
    batch = _make_batch([[_MID, _MID], [_MID, _LAST], [_LAST, _FIRST]])
    batch = batch._replace(policy_info=())
    theirs = dqn_agent.DdqnAgent(
        ts.time_step_spec(_OBSERVATION),
        _ACTION,
        q_network=agent._q_network,
        target_q_network=agent._target_q_network,
        optimizer=None,
        gamma=_GAMMA,
        td_errors_loss_fn=tf.math.squared_difference,
    )
    batch = _tensors(batch)
    self.assertAllClose(
        agent.loss(batch).loss, theirs._loss(batch, gamma=_GAMMA).loss
    )

  @parameterized.parameters(
      (dict(burn_in=3), 'burn-in of 3: they need 5'),
      (dict(burn_in=-1), 'burn_in must not be negative'),
      (dict(has_memory=False, stored_state=True), 'a network with a state'),
  )
  def test_incompatible_arguments_raise(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _make_agent(**arguments).loss(_tensors(_make_batch([_MIDS[:4]])))


def _tensors(batch):
  return tf.nest.map_structure(tf.convert_to_tensor, batch)


if __name__ == '__main__':
  absltest.main()
