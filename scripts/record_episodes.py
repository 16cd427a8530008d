r"""Records episodes of a gym environment as an RLDS data set on disk.

    rlds2reverb-record-episodes --environment=CartPole-v1 \
        --num_episodes=100 --directory=/tmp/cartpole

Actions are uniformly random, or those of a scripted or of a saved policy:

    rlds2reverb-record-episodes --environment=Pendulum-v1 \
        --policy=pendulum --randomness=0.8 --directory=/tmp/pendulum
"""

import os

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb.datasets import files
  from rlds2reverb.datasets import recording
  from rlds2reverb.episodes import checks
  from rlds2reverb.training import policies

flags_lib.define_gin_flags()
_ENVIRONMENT = flags.DEFINE_string(
    'environment', 'CartPole-v1', 'The id of a gym environment.'
)
_DIRECTORY = flags.DEFINE_string(
    'directory',
    None,
    'The directory to write, which must not exist yet, or be empty.',
)
_POLICY = flags.DEFINE_string(
    'policy',
    None,
    'A scripted policy, cart_pole or pendulum, or the directory of a policy'
    ' that TF-Agents has saved; by default actions are uniformly random.',
)
_RANDOMNESS = flags.DEFINE_float(
    'randomness',
    0.0,
    'With --policy: the highest probability of a random action. That of each'
    ' episode is drawn uniformly below it.',
    lower_bound=0.0,
    upper_bound=1.0,
)
flags.DEFINE_integer(
    'num_episodes', 100, 'How many episodes to record.', lower_bound=1
)
_FUNCTION = 'datasets.recording.record_episodes'
flags_lib.define(_FUNCTION, 'max_steps', lower_bound=1)
flags_lib.define(_FUNCTION, 'split', 'seed')


def main():
  # It registers environments of ours with gym.
  from rlds2reverb.training import environments  # noqa: F401

  flags_lib.take_bound_flags('record_episodes')
  if _DIRECTORY.value is None:
    raise app.UsageError('Flag --directory must have a value.')
  policy = None
  if _POLICY.value is not None:
    policy = policies.make_policy(
        files.user_path(_POLICY.value)
        if os.sep in _POLICY.value
        else _POLICY.value,
        _ENVIRONMENT.value,
        randomness=_RANDOMNESS.value,
        seed=flags.FLAGS.seed,
    )
  elif _RANDOMNESS.value:
    raise app.UsageError('--randomness needs a --policy.')
  values = flags.FLAGS
  directory = recording.record_episodes(
      _ENVIRONMENT.value,
      files.user_path(_DIRECTORY.value),
      values.num_episodes,
      policy=policy,
      max_steps=values.max_steps,
      split=values.split,
      seed=values.seed,
      progress=True,
  )
  episodes = checks.counted(values.num_episodes, 'episode')
  print(f'Recorded {episodes} in {directory}')


if __name__ == '__main__':
  usage.run(main)
