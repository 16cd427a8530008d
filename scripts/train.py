r"""Trains an agent of TF-Agents on recorded episodes.

    rlds2reverb-record-episodes --config=training/pendulum_cql_sac \
        --directory=/tmp/pendulum
    rlds2reverb-train --config=training/pendulum_cql_sac \
        --dataset=/tmp/pendulum --directory=/tmp/run

The hyper-parameters are gin bindings, as in --gin_binding="CqlSac.gamma = 0.9".
If the program is interrupted, the same command goes on from its last
checkpoint.
"""

from __future__ import annotations

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb import training
  from rlds2reverb.datasets import files
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.replay.server import addresses
  from rlds2reverb.training import timed_learner

_ALGORITHMS = {
    'bc': 'BehavioralCloning',
    'cql_sac': 'CqlSac',
    'recurrent_dqn': 'RecurrentDqn',
}

flags_lib.define_source_flags()
_ALGORITHM = flags.DEFINE_enum(
    'algorithm',
    None,
    sorted(_ALGORITHMS),
    'Behavioural cloning; CQL-SAC, for actions of floats; or a DQN with an'
    ' LSTM, for discrete ones.',
)
_ENVIRONMENT = flags.DEFINE_string(
    'environment', None, 'The id of the gym environment of the evaluation.'
)
_DIRECTORY = flags.DEFINE_string(
    'directory',
    None,
    'Where the run is kept: summaries, checkpoints and the policy.',
)
_NUM_STEPS = flags.DEFINE_integer(
    'num_steps', 10_000, 'How many train steps are done.', lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer(
    'batch_size', 256, 'How many items a batch has.', lower_bound=1
)
_REVERB_SERVER = flags.DEFINE_string(
    'reverb_server',
    None,
    'Sample from a Reverb server: "new" for one that is started and filled'
    ' here, or the address host:port of one that holds the items. By default'
    ' there is none.',
)
_SUMMARY_INTERVAL = flags.DEFINE_integer(
    'summary_interval',
    100,
    'After how many train steps summaries are written.',
    lower_bound=1,
)
_CHECKPOINT_INTERVAL = flags.DEFINE_integer(
    'checkpoint_interval',
    1000,
    'After how many train steps a checkpoint is written.',
    lower_bound=1,
)
_EVAL_INTERVAL = flags.DEFINE_integer(
    'eval_interval',
    0,
    'After how many train steps the policy is evaluated; 0 for only at the'
    ' end.',
    lower_bound=0,
)
_NUM_EVAL_EPISODES = flags.DEFINE_integer(
    'num_eval_episodes',
    20,
    'How many episodes an evaluation plays.',
    lower_bound=1,
)
_SEED = flags.DEFINE_integer(
    'seed', 0, 'The seed of the networks, batches and environments.'
)


def _algorithm(source: sources_lib.Source) -> training.Algorithm:
  """Returns the algorithm with the hyper-parameters of a config."""
  make = getattr(training, _ALGORITHMS[_ALGORITHM.value])
  arguments = sources_lib.arguments_of(make.__name__, source)
  try:
    with usage.wrong_usage():
      return make(**arguments)
  except TypeError as e:
    raise app.UsageError(
        f'{make.__name__} cannot be made of what is bound: {e}.'
    ) from e


def main():
  # It registers the algorithms with gin.
  from rlds2reverb.training import trainer  # noqa: F401

  sources = flags_lib.sources_from_flags('train')
  if len(sources) > 1:
    raise app.UsageError('--dataset must be there once.')
  for flag in _ALGORITHM, _ENVIRONMENT, _DIRECTORY:
    if flag.value is None:
      raise app.UsageError(f'Flag --{flag.name} must have a value.')
  server = _REVERB_SERVER.value
  if server not in (None, 'new'):
    with usage.wrong_usage():
      addresses.check_address(server)
  (source,) = sources
  bound = sources_lib.arguments_of('ConversionRules', source)
  with usage.wrong_usage():
    rules = sources_lib.rules_of(
        source,
        terminal_discount=bound.get('terminal_discount', 'transition'),
    )
  result = training.train(
      _algorithm(source),
      sources_lib.open_source(source).read(),
      _ENVIRONMENT.value,
      files.user_path(_DIRECTORY.value),
      _NUM_STEPS.value,
      batches=training.BatchOptions(
          _BATCH_SIZE.value,
          True if server == 'new' else server or False,
          rules,
      ),
      monitoring=training.Monitoring(
          _SUMMARY_INTERVAL.value,
          _CHECKPOINT_INTERVAL.value,
          _EVAL_INTERVAL.value,
          _NUM_EVAL_EPISODES.value,
          progress=True,
      ),
      seed=_SEED.value,
  )
  print(
      f'Return {result.returns} after {result.num_steps} train steps'
      f'{timed_learner.describe_waiting(result.waiting_share)}.\n'
      f'The policy is in {result.policy_dir}'
  )


if __name__ == '__main__':
  usage.run(main)
