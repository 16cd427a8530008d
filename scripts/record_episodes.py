r"""Records episodes of an environment as an RLDS data set on disk.

    rlds2reverb-record-episodes --environment=CartPole-v1 \
        --num_episodes=100 --directory=/tmp/cartpole

By default, actions are uniformly random. A scripted or saved policy records
better episodes:

    rlds2reverb-record-episodes --environment=Pendulum-v1 \
        --policy=pendulum --randomness=0.8 --directory=/tmp/pendulum
"""

import os

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  from rlds2reverb.datasets import files
  from rlds2reverb.datasets import recording
  from rlds2reverb.episodes import checks

flags.DEFINE_multi_string('config', None, 'A gin file that sets flags.')
flags.DEFINE_multi_string(
    'gin_binding',
    [],
    'A binding that sets a flag and takes precedence over --config, such as'
    ' "record_episodes.seed = 1".',
)
flags.DEFINE_string(
    'environment',
    'CartPole-v1',
    'The id of a Gymnasium environment, such as CartPole-v1, ALE/Breakout-v5 or'
    ' package:Id-v0, or dm_control/DOMAIN-TASK.',
)
flags.DEFINE_string(
    'directory',
    None,
    'The directory to write, which must not exist yet, or be empty.',
)
flags.DEFINE_string(
    'policy',
    None,
    'A scripted policy, cart_pole or pendulum, or the directory of a policy'
    ' that TF-Agents has saved; by default actions are uniformly random.',
)
flags.DEFINE_float(
    'randomness',
    0.0,
    'With --policy: the maximum probability of a random action. The probability'
    ' of each episode is sampled uniformly from 0 to it.',
    lower_bound=0.0,
    upper_bound=1.0,
)
flags.DEFINE_integer(
    'num_episodes', 100, 'The number of episodes to record.', lower_bound=1
)
flags.DEFINE_integer(
    'max_steps',
    None,
    'The number of transitions after which an episode is truncated.',
    lower_bound=1,
)
flags.DEFINE_string('split', 'train', 'The name of the split.')
flags.DEFINE_integer(
    'seed',
    0,
    'The seed of the environment and of the random actions. An environment of'
    ' dm_env is seeded when it is made.',
)
flags_lib.define_file_format('file_format')
FLAGS = flags.FLAGS


def main():
  # Registers PositionOnlyCartPole-v1.
  from rlds2reverb.training import environments

  flags_lib.take_bound_flags('record_episodes')
  usage.require('directory')
  policy = None
  if FLAGS.policy is not None:
    policy = environments.make_policy(
        files.user_path(FLAGS.policy)
        if os.sep in FLAGS.policy
        else FLAGS.policy,
        FLAGS.environment,
        randomness=FLAGS.randomness,
        seed=FLAGS.seed,
    )
  elif FLAGS.randomness:
    raise app.UsageError('--randomness needs a --policy.')

  directory = recording.record_episodes(
      FLAGS.environment,
      files.user_path(FLAGS.directory),
      FLAGS.num_episodes,
      policy=policy,
      max_steps=FLAGS.max_steps,
      split=FLAGS.split,
      seed=FLAGS.seed,
      progress=True,
      file_format=FLAGS.file_format,
  )
  episodes = checks.counted(FLAGS.num_episodes, 'episode')
  print(f'Recorded {episodes} in {directory}')


if __name__ == '__main__':
  usage.run(main)
