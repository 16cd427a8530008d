r"""Trains CQL-SAC on recorded swing-ups of a pendulum.

    rlds2reverb-record-episodes --config=training/pendulum_cql_sac \
        --directory=/tmp/pendulum
    python -m examples.cql_sac /tmp/pendulum /tmp/run

The agent reaches a return of about -160. The mean return of the data is -561;
the recorded controller reaches -154 without random actions. The same command
resumes an interrupted run. Gin bindings may follow, such as
"train_eval.num_steps = 9000". See Kumar et al., "Conservative Q-Learning for
Offline Reinforcement Learning" (2020).
"""

from absl import app
import gin
import tensorflow as tf
from tf_agents.agents.cql import cql_sac_agent
from tf_agents.agents.ddpg import critic_network
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.networks import actor_distribution_network
from tf_agents.policies import greedy_policy
from tf_agents.train import learner as learner_lib
from tf_agents.train.utils import train_utils

import rlds2reverb
from rlds2reverb import training


@gin.configurable(module=__name__)
def train_eval(
    dataset,
    directory,
    num_steps=5000,
    *,
    environment='Pendulum-v1',
    layers=(128, 128),
    learning_rate=1e-3,
    alpha_learning_rate=3e-4,
    cql_alpha=0.2,
    num_cql_samples=4,
    gamma=0.97,
    reward_scale=0.1,
    target_update_tau=0.02,
    batch_size=256,
    checkpoint_interval=1000,
    num_eval_episodes=20,
    seed=0,
):
  """Trains a policy, and returns the returns of its evaluation.

  Args:
    dataset: the name or directory of a data set, see `load_episodes`.
    directory: the folder of the run.
    num_steps: the number of train steps, including those of earlier runs.
    environment: the id of the gym environment of the evaluation.
    layers: the units of each fully connected layer.
    learning_rate: the learning rate of the actor and of the critics (Adam).
    alpha_learning_rate: the learning rate of the entropy weight (Adam).
    cql_alpha: the weight of the conservative loss.
    num_cql_samples: the number of actions of the policy, and of random actions,
      that are drawn for the conservative loss of each transition.
    gamma: the discount factor, which multiplies the discounts of the data.
    reward_scale: the factor by which rewards are multiplied.
    target_update_tau: the Polyak coefficient of the target critics.
    batch_size: the number of transitions of a batch.
    checkpoint_interval: the number of train steps between checkpoints.
    num_eval_episodes: the number of episodes of the final evaluation.
    seed: the seed of the networks, the batches and the environments.
  """
  settings = dict(locals())
  tf.keras.utils.set_random_seed(seed)
  episodes = rlds2reverb.load_episodes(dataset)
  specs = training.get_specs(environment, episodes)
  # Observations get mean 0 and deviation 1; float actions lie in [-1, 1].
  normalization = training.fit_normalization(episodes)
  time_step_spec, action_spec = training.normalize_specs(*specs)
  directory = training.open_run(
      directory, {**settings, 'normalization': normalization}
  )
  replay_buffer = rlds2reverb.open_replay_buffer(
      normalization.apply(episodes),
      rlds2reverb.Windows(2),
      options=rlds2reverb.ConversionOptions(
          # Learners skip the frame of the last step of an episode.
          rlds2reverb.ConversionRules(terminal_discount='transition')
      ),
      seed=seed,
  )

  train_step = train_utils.create_train_step()
  agent = cql_sac_agent.CqlSacAgent(
      time_step_spec,
      action_spec,
      critic_network=critic_network.CriticNetwork(
          (time_step_spec.observation, action_spec),
          joint_fc_layer_params=layers,
          kernel_initializer='glorot_uniform',
          last_kernel_initializer='glorot_uniform',
      ),
      actor_network=actor_distribution_network.ActorDistributionNetwork(
          time_step_spec.observation,
          action_spec,
          fc_layer_params=layers,
          continuous_projection_net=(
              tanh_normal_projection_network.TanhNormalProjectionNetwork
          ),
      ),
      actor_optimizer=tf.keras.optimizers.Adam(learning_rate),
      critic_optimizer=tf.keras.optimizers.Adam(learning_rate),
      alpha_optimizer=tf.keras.optimizers.Adam(alpha_learning_rate),
      cql_alpha=cql_alpha,
      num_cql_samples=num_cql_samples,
      include_critic_entropy_term=False,
      use_lagrange_cql_alpha=False,
      gamma=gamma,
      reward_scale_factor=reward_scale,
      target_update_tau=target_update_tau,
      train_step_counter=train_step,
  )
  learner = learner_lib.Learner(
      directory,
      train_step,
      agent,
      lambda: replay_buffer.as_dataset(batch_size, num_steps=2),
      checkpoint_interval=0,  # `train` also saves the replay buffer.
      summary_interval=100,
  )
  policy = training.DenormalizedPolicy(
      greedy_policy.GreedyPolicy(agent.policy), *specs, normalization
  )
  return training.train(
      learner,
      training.Evaluator(policy, environment, num_eval_episodes, seed=seed),
      directory,
      num_steps,
      checkpoint_interval=checkpoint_interval,
      agent=agent,
      train_step=train_step,
      replay_buffer=replay_buffer,
  )


def main(args):
  _, dataset, directory, *bindings = args
  gin.parse_config(bindings)
  print(f'Return {train_eval(dataset, directory)}')


if __name__ == '__main__':
  app.run(main)
