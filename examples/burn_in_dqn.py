"""A DQN agent that warms up its recurrent state on the first frames."""

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.dqn import dqn_agent
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

# The key of the recurrent state, a nest, in the policy_info of the data.
STATE = 'state'


class BurnInDqnAgent(dqn_agent.DqnAgent):
  """A double DQN agent for sequences, with burn-in and stored states.

  The agent of TF-Agents starts with a state of zeros and trains on every frame.
  This agent follows R2D2 (Kapturowski et al., "Recurrent Experience Replay in
  Distributed Reinforcement Learning", 2019). Both networks process the complete
  sequence, starting with the state stored with the first frame, or with zeros.
  Gradients stop at the end of the burn-in, whose frames have no loss:

      frame     0  1  2  3  4  5        burn_in=2, T=6
      state     .  .  |                 gradients stop at |
      loss            2  3  4           of the transition to the next frame

  A sequence at the start of an episode needs no burn-in, because the state of
  the first frame is zero. All its frames have a loss and a gradient; otherwise
  the start of an episode would never be trained.

  Frames after the end of an episode, such as padding, have no loss. The network
  may also be stateless.
  """

  def __init__(
      self,
      *args,
      burn_in: int,
      stored_state: bool = False,
      cql_alpha: float = 0.0,
      **kwargs,
  ):
    """Creates the agent.

    Args:
      *args: passed to `DqnAgent`.
      burn_in: the number of frames that only warm up the state.
      stored_state: whether sequences start with `policy_info['state']` of their
        first frame, a nest with the leaves of the network's state in the same
        order. By default they start with zeros.
      cql_alpha: the weight of the conservative loss, by default 0 as in R2D2.
        The loss keeps the values of actions outside of the data below the
        values of actions in the data: CQL(H) of Kumar et al., "Conservative
        Q-Learning for Offline Reinforcement Learning" (2020).
      **kwargs: passed to `DqnAgent`.

    Raises:
      ValueError: if `burn_in` is negative, or if `stored_state` is set but the
        network has no state.
    """
    super().__init__(*args, **kwargs)
    if burn_in < 0:
      raise ValueError(f'burn_in must not be negative, but is {burn_in}.')
    if stored_state and not self._q_network.state_spec:
      raise ValueError('stored_state needs a network with a state.')
    self._burn_in = burn_in
    self._stored_state = stored_state
    self._cql_alpha = cql_alpha

  def _loss(
      self,
      experience: trajectory.Trajectory,
      td_errors_loss_fn=None,
      gamma=1.0,
      reward_scale_factor=1.0,
      weights=None,
      training=False,
  ):
    """Returns the `LossInfo` of sequences `[B, T, ...]`; see the base class.

    Raises:
      ValueError: if no transition follows the burn-in.
    """
    length = experience.step_type.shape[1]
    if length is not None and length < self._burn_in + 2:
      raise ValueError(
          f'Sequences of {length} frames are too short for a burn-in of'
          f' {self._burn_in}: they need {self._burn_in + 2}.'
      )
    # `loss` of the base class passes none, so the agent's settings are used.
    del td_errors_loss_fn, gamma, reward_scale_factor
    values = self._unroll(self._q_network, experience, training)
    target_values = self._unroll(self._target_q_network, experience, False)
    best_actions = tf.argmax(values[:, 1:], axis=-1, output_type=tf.int32)
    frames = tf.nest.map_structure(lambda leaf: leaf[:, :-1], experience)
    action_values = common.index_with_actions(
        values[:, :-1], tf.cast(frames.action, tf.int32)
    )
    losses, errors = self._td_loss(
        action_values,
        common.index_with_actions(target_values[:, 1:], best_actions),
        self._reward_scale_factor * frames.reward,
        self._gamma * frames.discount,
    )
    mask = self._mask(frames)
    losses, errors = mask * losses, mask * errors
    conservative = mask * (
        tf.reduce_logsumexp(values[:, :-1], -1) - action_values
    )
    aggregated = common.aggregate_losses(
        per_example_loss=losses + self._cql_alpha * conservative,
        sample_weight=weights,
        regularization_loss=self._q_network.losses,
    )
    common.summarize_scalar_dict(
        {
            'td_loss': tf.reduce_mean(losses),
            'cql_loss': tf.reduce_mean(conservative),
            'total_loss': aggregated.total_loss,
        },
        step=self.train_step_counter,
        name_scope='Losses/',
    )
    return tf_agent.LossInfo(
        aggregated.total_loss,
        dqn_agent.DqnLossInfo(td_loss=losses, td_error=errors),
    )

  def _unroll(self, network, experience, training) -> tf.Tensor:
    """Returns the values of all actions at every frame, `[B, T, A]`."""

    def compute_values(first, stop, state):
      return network(
          tf.nest.map_structure(
              lambda leaf: leaf[:, first:stop], experience.observation
          ),
          step_type=experience.step_type[:, first:stop],
          network_state=state,
          training=training,
      )

    state = self._initial_state(network, experience)
    if not self._burn_in:
      return compute_values(0, None, state)[0]
    burn_in_values, state = compute_values(0, self._burn_in, state)
    keeps_gradient = experience.is_first()[:, 0]
    state = tf.nest.map_structure(
        lambda leaf: tf.where(
            keeps_gradient[:, tf.newaxis], leaf, tf.stop_gradient(leaf)
        ),
        state,
    )
    values, _ = compute_values(self._burn_in, None, state)
    return tf.concat([burn_in_values, values], axis=1)

  def _initial_state(self, network, experience) -> Any:
    """Returns the state at the first frame of each sequence, `[B, ...]`."""
    if not self._stored_state:
      return network.get_initial_state(tf.shape(experience.step_type)[0])
    return tf.nest.pack_sequence_as(
        network.state_spec,
        [leaf[:, 0] for leaf in tf.nest.flatten(experience.policy_info[STATE])],
    )

  def _mask(self, frames) -> tf.Tensor:
    """Returns float32 `[B, T - 1]`: 1 for frames with a loss, 0 for others."""
    is_last = tf.cast(frames.is_boundary(), tf.int32)
    continues = tf.cumsum(is_last, axis=1) == 0
    is_main = tf.range(tf.shape(is_last)[1]) >= self._burn_in
    return tf.cast(
        continues & (is_main[tf.newaxis] | frames.is_first()[:, :1]), tf.float32
    )
