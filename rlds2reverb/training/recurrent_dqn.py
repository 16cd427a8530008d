"""Recurrent DQN: Q-learning with an LSTM as its memory."""

import dataclasses
from typing import Optional, Tuple

import gin
import tensorflow as tf
from tf_agents.networks import q_network
from tf_agents.networks import q_rnn_network
from tf_agents.specs import tensor_spec

from rlds2reverb.training import algorithm
from rlds2reverb.training import burn_in as burn_in_lib


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class RecurrentDqn(algorithm.Algorithm):
  """A double DQN with an LSTM; see `BurnInDqnAgent`.

  Attributes:
    sequence_length: the number of frames of a sequence, burn-in included.
    burn_in: how many of them only warm the state up.
    stored_state: whether a sequence starts at the recurrent state that is in
      the data, `policy_info['state']`, or else at zeros. The states of another
      network have no meaning here: use states of the recorded policy only if it
      is from the same training.
    input_layers: the units of each fully connected layer below the LSTM.
    lstm_size: the units of the LSTM; None for an agent without a memory.
    output_layers: the units of each fully connected layer above the LSTM.
    learning_rate: the learning rate of Adam.
    gamma: the discount factor, by which the discounts of the data, which are
      mostly 1, are multiplied.
    reward_scale: the factor by which rewards are multiplied.
    cql_alpha: the weight of the conservative loss.
    target_update_tau: the part of the network that goes into the target network
      at each train step.
  """

  sequence_length: int = 24
  burn_in: int = 8
  stored_state: bool = False
  input_layers: Tuple[int, ...] = (64,)
  lstm_size: Optional[int] = 64
  output_layers: Tuple[int, ...] = (64,)
  learning_rate: float = 1e-3
  gamma: float = 0.99
  reward_scale: float = 1.0
  cql_alpha: float = 0.1
  target_update_tau: float = 0.01

  end_of_episode = 'pad'

  def __post_init__(self):
    if self.sequence_length < self.burn_in + 2:
      raise ValueError(
          f'Sequences of {self.sequence_length} frames are too short for a'
          f' burn-in of {self.burn_in}: they need {self.burn_in + 2}.'
      )

  @property
  def uses_policy_info(self) -> bool:  # type: ignore[override]
    return self.stored_state

  def make_agent(self, time_step_spec, action_spec, train_step):
    action = algorithm.only_action(action_spec)
    if tensor_spec.is_continuous(action):
      raise ValueError(
          'RecurrentDqn needs a discrete action, but the environment has'
          f' {action}. CqlSac takes actions of floats.'
      )
    return burn_in_lib.BurnInDqnAgent(
        time_step_spec,
        action_spec,
        q_network=self._make_network(time_step_spec.observation, action_spec),
        optimizer=tf.keras.optimizers.Adam(self.learning_rate),
        burn_in=self.burn_in,
        stored_state=self.stored_state,
        cql_alpha=self.cql_alpha,
        target_update_tau=self.target_update_tau,
        gamma=self.gamma,
        reward_scale_factor=self.reward_scale,
        train_step_counter=train_step,
    )

  def _make_network(self, observation_spec, action_spec):
    if self.lstm_size is None:
      return q_network.QNetwork(
          observation_spec,
          action_spec,
          fc_layer_params=(*self.input_layers, *self.output_layers),
      )
    return q_rnn_network.QRnnNetwork(
        observation_spec,
        action_spec,
        input_fc_layer_params=self.input_layers,
        lstm_size=(self.lstm_size,),
        output_fc_layer_params=self.output_layers,
    )
