r"""Trains a behavioral clone of a recorded controller of CartPole.

    rlds2reverb-record-episodes --config=training/cartpole_bc \
        --directory=/tmp/cartpole
    python -m examples.behavioral_cloning /tmp/cartpole /tmp/clone

The clone reaches a return of 500, the maximum; the data has 355. The same
command resumes an interrupted run. Gin bindings may follow, such as
"train_eval.num_steps = 2000".
"""

from absl import app
import gin
import tensorflow as tf
from tf_agents.agents.behavioral_cloning import behavioral_cloning_agent
from tf_agents.agents.ddpg import actor_network
from tf_agents.networks import q_network
from tf_agents.policies import greedy_policy
from tf_agents.specs import tensor_spec
from tf_agents.train import learner as learner_lib
from tf_agents.train.utils import train_utils

import rlds2reverb
from rlds2reverb import training


@gin.configurable(module=__name__)
def train_eval(
    dataset,
    directory,
    num_steps=1000,
    *,
    environment='CartPole-v1',
    layers=(128, 128),
    learning_rate=1e-3,
    batch_size=256,
    checkpoint_interval=1000,
    num_eval_episodes=20,
    seed=0,
):
  """Trains a clone, and returns the returns of its evaluation.

  Args:
    dataset: the name or directory of a data set, see `load_episodes`.
    directory: the folder of the run.
    num_steps: the number of train steps, including those of earlier runs.
    environment: the id of the gym environment of the evaluation.
    layers: the units of each fully connected layer.
    learning_rate: the learning rate of Adam.
    batch_size: the number of frames of a batch.
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
      normalization.apply(episodes), rlds2reverb.Windows(1), seed=seed
  )

  is_continuous = tensor_spec.is_continuous(action_spec)
  make_network = (
      actor_network.ActorNetwork if is_continuous else q_network.QNetwork
  )
  network = make_network(
      time_step_spec.observation, action_spec, fc_layer_params=layers
  )

  def compute_loss(experience, training):
    output, _ = network(
        experience.observation, experience.step_type, training=training
    )
    return compute_losses(experience, output, is_continuous)

  train_step = train_utils.create_train_step()
  agent = behavioral_cloning_agent.BehavioralCloningAgent(
      time_step_spec,
      action_spec,
      cloning_network=network,
      optimizer=tf.keras.optimizers.Adam(learning_rate),
      num_outer_dims=2,
      loss_fn=compute_loss,
      train_step_counter=train_step,
  )
  learner = learner_lib.Learner(
      directory,
      train_step,
      agent,
      lambda: replay_buffer.as_dataset(batch_size, num_steps=1),
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


def compute_losses(experience, output, is_continuous):
  """Returns the squared error, or cross entropy, of each frame, `[B, T]`."""
  action = experience.action
  if is_continuous:
    # The network has flattened batch and time.
    errors = tf.reshape(output, tf.shape(action)) - action
    shape = tf.concat([tf.shape(experience.step_type), [-1]], 0)
    loss = tf.reduce_mean(tf.reshape(errors**2, shape), axis=-1)
  else:
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(action, output)
  # The action of the last step of an episode is meaningless.
  return tf.where(experience.is_boundary(), 0.0, loss)


def main(args):
  _, dataset, directory, *bindings = args
  gin.parse_config(bindings)
  print(f'Return {train_eval(dataset, directory)}')


if __name__ == '__main__':
  app.run(main)
