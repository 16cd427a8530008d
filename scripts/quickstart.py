"""Records episodes, converts them, and samples a batch from Reverb.

    python -m scripts.quickstart

The program prints the result of each stage. Later runs read the episodes that
the first run has recorded. If Reverb is not installed, the batch is sampled by
a replay buffer without a server.
"""

import importlib.util
import os
import time

from absl import flags
from etils import epy

from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  import reverb
  from tf_agents.replay_buffers import reverb_replay_buffer
  from tf_agents.replay_buffers import reverb_utils
  from tf_agents.specs import tensor_spec
  import tree

  import rlds2reverb
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import rlds
  from rlds2reverb.store import kernels

flags.DEFINE_string(
    'directory',
    os.path.join('~', '.cache', 'rlds2reverb', 'cartpole'),
    'The directory of the recorded episodes.',
)
flags.DEFINE_integer(
    'num_episodes', 50, 'The number of episodes to record.', lower_bound=1
)
flags.DEFINE_integer(
    'batch_size', 64, 'The number of items to sample.', lower_bound=1
)
FLAGS = flags.FLAGS

_ENVIRONMENT = 'CartPole-v1'
_TABLE = 'experience'


def _print_stage(stage, text):
  print(f'{stage:<10} {text}', flush=True)


def _print_leaves(nest, describe):
  for path, leaf in tree.flatten_with_path(nest):
    print(f'{"":<10}   {"/".join(map(str, path)):<16} {describe(leaf)}')


def _print_batch(replay_buffer):
  dataset = replay_buffer.as_dataset(
      sample_batch_size=FLAGS.batch_size, num_steps=2
  )
  batch, _ = next(iter(dataset))
  _print_stage('sampled', f'a batch of {FLAGS.batch_size} items:')
  _print_leaves(batch, lambda leaf: f'{leaf.dtype.name} {leaf.shape}')


def _push_and_sample(episodes, data_spec, max_size):
  """Pushes the episodes to a Reverb server, and samples a batch from it."""
  table = reverb.Table(
      _TABLE,
      sampler=reverb.selectors.Uniform(),
      remover=reverb.selectors.Fifo(),
      max_size=max_size,
      rate_limiter=reverb.rate_limiters.MinSize(1),
      signature=tensor_spec.add_outer_dim(data_spec),
  )
  server = reverb.Server([table])
  try:
    replay_buffer = reverb_replay_buffer.ReverbReplayBuffer(
        data_spec, table_name=_TABLE, sequence_length=2, local_server=server
    )
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        replay_buffer.py_client, _TABLE, sequence_length=2
    )
    report = rlds2reverb.ConversionReport()
    start = time.perf_counter()
    pushed = rlds2reverb.push_rlds_to_reverb(
        episodes,
        observer,
        options=rlds2reverb.ConversionOptions(
            rlds2reverb.ConversionRules(terminal_discount='transition'),
            report=report,
        ),
    )
    seconds = time.perf_counter() - start
    observer.close()
    _print_stage(
        'pushed',
        f'{pushed} trajectories, {pushed / seconds:,.0f} per second; the Reverb'
        f' server confirmed {report.inserted_items[_TABLE]} items of 2 steps',
    )
    _print_batch(replay_buffer)
  finally:
    server.stop()


def main():
  directory = files.user_path(FLAGS.directory)
  if not files.names_in(directory):
    rlds2reverb.datasets.record_episodes(
        _ENVIRONMENT, directory, FLAGS.num_episodes, progress=True
    )
  episodes = rlds2reverb.load_episodes(directory)
  lengths = [
      len(episode[rlds.STEPS][rlds.REWARD])
      for episode in episodes.as_numpy_iterator()
  ]
  _print_stage(
      'read', f'{len(lengths)} episodes, {sum(lengths)} steps from {directory}'
  )

  _print_stage(
      'kernels',
      f'compiled, or loaded from the cache, in {kernels.seconds:.1f} s',
  )
  data_spec = rlds2reverb.create_trajectory_data_spec(episodes)
  blocks = rlds2reverb.convert_rlds_to_trajectories(episodes, batched=True)
  frames = sum(len(block.step_type) for block in blocks.as_numpy_iterator())
  # The first pass builds the graph, so only the second one is timed.
  start = time.perf_counter()
  for _ in blocks:
    pass
  seconds = time.perf_counter() - start
  rate = f'{frames / seconds:,.0f} per second'
  _print_stage('converted', f'{frames} trajectories, {rate}, to')
  _print_leaves(data_spec, lambda spec: f'{spec.dtype.name} {spec.shape}')

  if importlib.util.find_spec('reverb') is not None:
    with usage.quiet_stderr(usage.REVERB_LINES):
      _push_and_sample(episodes, data_spec, max_size=2 * frames)
  else:
    _print_stage('no Reverb', 'is installed: sampling without a server')
    _print_batch(rlds2reverb.open_replay_buffer(episodes))


if __name__ == '__main__':
  usage.run(main)
