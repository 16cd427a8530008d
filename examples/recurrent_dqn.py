r"""Trains a DQN with an LSTM on CartPole with hidden velocities.

    rlds2reverb-record-episodes --directory=/tmp/hidden \
        --config=training/position_only_cartpole_recurrent_dqn
    python -m examples.recurrent_dqn /tmp/hidden /tmp/run

The agent reaches a return of 500, the maximum. Without the LSTM, which the
binding "train_eval.lstm_size = None" after the command removes, it reaches 40.
The mean return of the data is 231. The same command resumes an interrupted run.
"""

from absl import app
import gin
import tensorflow as tf
from tf_agents.networks import q_network
from tf_agents.networks import q_rnn_network
from tf_agents.train import learner as learner_lib
from tf_agents.train.utils import train_utils

from examples import burn_in_dqn
import rlds2reverb
from rlds2reverb import fields
from rlds2reverb import training


@gin.configurable(module=__name__)
def train_eval(
    dataset,
    directory,
    num_steps=1000,
    *,
    environment='PositionOnlyCartPole-v1',
    sequence_length=24,
    burn_in=8,
    stored_state=False,
    layers=(64,),
    lstm_size=64,
    learning_rate=1e-3,
    gamma=0.99,
    cql_alpha=0.1,
    target_update_tau=0.01,
    batch_size=64,
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
    sequence_length: the number of frames of a sequence, including the burn-in.
    burn_in: the number of these frames that only warm up the recurrent state.
    stored_state: whether a sequence starts with the recurrent state in the
      `policy_info` of the data, which must come from the same network. By
      default it starts with zeros.
    layers: the units of each fully connected layer below and above the LSTM.
    lstm_size: the units of the LSTM; None for an agent without memory.
    learning_rate: the learning rate of Adam.
    gamma: the discount factor, which multiplies the discounts of the data.
    cql_alpha: the weight of the conservative loss.
    target_update_tau: the weight of the network in each soft update of the
      target network.
    batch_size: the number of sequences of a batch.
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
      rlds2reverb.Windows(sequence_length, end='pad'),
      options=rlds2reverb.ConversionOptions(
          # Learners skip the frame of the last step of an episode.
          rlds2reverb.ConversionRules(terminal_discount='transition'),
          fields.step_policy_info if stored_state else None,
      ),
      seed=seed,
  )

  if lstm_size is None:
    network = q_network.QNetwork(
        time_step_spec.observation, action_spec, fc_layer_params=2 * layers
    )
  else:
    network = q_rnn_network.QRnnNetwork(
        time_step_spec.observation,
        action_spec,
        input_fc_layer_params=layers,
        lstm_size=(lstm_size,),
        output_fc_layer_params=layers,
    )
  train_step = train_utils.create_train_step()
  agent = burn_in_dqn.BurnInDqnAgent(
      time_step_spec,
      action_spec,
      q_network=network,
      optimizer=tf.keras.optimizers.Adam(learning_rate),
      burn_in=burn_in,
      stored_state=stored_state,
      cql_alpha=cql_alpha,
      target_update_tau=target_update_tau,
      gamma=gamma,
      train_step_counter=train_step,
  )
  learner = learner_lib.Learner(
      directory,
      train_step,
      agent,
      lambda: replay_buffer.as_dataset(batch_size, num_steps=sequence_length),
      checkpoint_interval=0,  # `train` also saves the replay buffer.
      summary_interval=100,
  )
  policy = training.DenormalizedPolicy(agent.policy, *specs, normalization)
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
