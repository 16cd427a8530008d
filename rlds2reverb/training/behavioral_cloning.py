"""Behavioural cloning: an actor learns to act as the data does."""

import dataclasses
from typing import Any, Tuple

import gin
import tensorflow as tf
from tf_agents.agents.behavioral_cloning import behavioral_cloning_agent
from tf_agents.agents.ddpg import actor_network
from tf_agents.networks import q_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.training import algorithm


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class BehavioralCloning(algorithm.Algorithm):
  """TF-Agents' `BehavioralCloningAgent` on single frames.

  The loss is the cross entropy of a discrete action, or the squared error of an
  action of floats. The frame of an episode's last step, whose action has no
  meaning, has no loss.

  Attributes:
    layers: the units of each fully connected layer.
    learning_rate: the learning rate of Adam.
  """

  layers: Tuple[int, ...] = (128, 128)
  learning_rate: float = 1e-3

  sequence_length = 1

  def make_agent(self, time_step_spec, action_spec, train_step):
    action = algorithm.only_action(action_spec)
    is_continuous = tensor_spec.is_continuous(action)
    make_network = (
        actor_network.ActorNetwork if is_continuous else q_network.QNetwork
    )
    network = make_network(
        time_step_spec.observation, action_spec, fc_layer_params=self.layers
    )

    def loss(experience: trajectory.Trajectory, training: bool) -> tf.Tensor:
      output, _ = network(
          experience.observation, experience.step_type, training=training
      )
      return _loss(experience, output, is_continuous)

    return behavioral_cloning_agent.BehavioralCloningAgent(
        time_step_spec,
        action_spec,
        cloning_network=network,
        optimizer=tf.keras.optimizers.Adam(self.learning_rate),
        num_outer_dims=2,
        loss_fn=loss,
        train_step_counter=train_step,
    )


def _loss(
    experience: trajectory.Trajectory, output: Any, is_continuous: bool
) -> tf.Tensor:
  """Returns the loss of each frame, `[B, T]`.

  Args:
    experience: a `Trajectory` `[B, T, ...]` with a single action.
    output: the output of the network: actions, or logits `[B, T, A]`.
    is_continuous: whether the action is one of floats.
  """
  (action,) = tf.nest.flatten(experience.action)
  if is_continuous:
    (output,) = tf.nest.flatten(output)
    # The network has flattened batch and time.
    errors = tf.reshape(output, tf.shape(action)) - action
    shape = tf.concat([tf.shape(experience.step_type), [-1]], 0)
    losses = tf.reduce_mean(tf.reshape(errors**2, shape), axis=-1)
  else:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(action, output)
  return tf.where(experience.is_boundary(), 0.0, losses)
