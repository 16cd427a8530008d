"""CQL-SAC: conservative Q-learning on top of soft actor-critic."""

import dataclasses
from typing import Tuple

import gin
import tensorflow as tf
from tf_agents.agents.cql import cql_sac_agent
from tf_agents.agents.ddpg import critic_network
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.networks import actor_distribution_network
from tf_agents.specs import tensor_spec

from rlds2reverb.training import algorithm


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class CqlSac(algorithm.Algorithm):
  """TF-Agents' `CqlSacAgent`, with a fixed weight of the conservative loss.

  After Kumar et al., "Conservative Q-Learning for Offline Reinforcement
  Learning" (2020), https://arxiv.org/abs/2006.04779.

  Attributes:
    actor_layers: the units of each fully connected layer of the actor.
    critic_layers: the same of each critic.
    actor_learning_rate: the learning rate of the actor's Adam.
    critic_learning_rate: the learning rate of the critics' Adam.
    alpha_learning_rate: the learning rate of the entropy weight's Adam.
    cql_alpha: the weight of the conservative loss. The better the data covers
      the actions, the smaller it may be.
    num_cql_samples: how many actions of the policy, and how many random ones,
      are drawn for the conservative loss of each transition.
    num_bc_steps: how many train steps at first clone the data's behaviour.
    gamma: the discount factor, by which the discounts of the data, which are
      mostly 1, are multiplied.
    reward_scale: the factor by which rewards are multiplied.
    target_update_tau: the part of the critics that goes into the target
      critics at each train step.
  """

  actor_layers: Tuple[int, ...] = (128, 128)
  critic_layers: Tuple[int, ...] = (128, 128)
  actor_learning_rate: float = 3e-4
  critic_learning_rate: float = 1e-3
  alpha_learning_rate: float = 3e-4
  cql_alpha: float = 1.0
  num_cql_samples: int = 4
  num_bc_steps: int = 0
  gamma: float = 0.99
  reward_scale: float = 1.0
  target_update_tau: float = 0.005

  def make_agent(self, time_step_spec, action_spec, train_step):
    action = algorithm.only_action(action_spec)
    if not tensor_spec.is_continuous(action):
      raise ValueError(
          'CqlSac needs an action of floats, but the environment has'
          f' {action}. RecurrentDqn takes discrete actions.'
      )
    observation_spec = time_step_spec.observation
    return cql_sac_agent.CqlSacAgent(
        time_step_spec,
        action_spec,
        critic_network=critic_network.CriticNetwork(
            (observation_spec, action_spec),
            joint_fc_layer_params=self.critic_layers,
            kernel_initializer='glorot_uniform',
            last_kernel_initializer='glorot_uniform',
        ),
        actor_network=actor_distribution_network.ActorDistributionNetwork(
            observation_spec,
            action_spec,
            fc_layer_params=self.actor_layers,
            continuous_projection_net=(
                tanh_normal_projection_network.TanhNormalProjectionNetwork
            ),
        ),
        actor_optimizer=tf.keras.optimizers.Adam(self.actor_learning_rate),
        critic_optimizer=tf.keras.optimizers.Adam(self.critic_learning_rate),
        alpha_optimizer=tf.keras.optimizers.Adam(self.alpha_learning_rate),
        cql_alpha=self.cql_alpha,
        num_cql_samples=self.num_cql_samples,
        include_critic_entropy_term=False,
        use_lagrange_cql_alpha=False,
        num_bc_steps=self.num_bc_steps,
        gamma=self.gamma,
        reward_scale_factor=self.reward_scale,
        target_update_tau=self.target_update_tau,
        train_step_counter=train_step,
    )
