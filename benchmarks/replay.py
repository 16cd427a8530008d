"""Measures how fast batches are sampled, with a server and without one.

    python -m benchmarks.replay

The limit is a plain `tf.gather` of every column from tensors in memory, in a
`tf.function`. Batches are consumed in a graph, and once more by an eager loop.
Where TorchRL is installed, its replay buffers are measured on the same data.
"""

import importlib.util
import tempfile
from typing import Any, Callable, List

from absl import app
from absl import flags
from absl import logging
import numpy as np
import tensorflow as tf

from benchmarks import data
from benchmarks import processes
from benchmarks import timing
import rlds2reverb
from rlds2reverb.replay import local

_STEPS = flags.DEFINE_integer(
    'steps', 1_000_000, 'How many steps are sampled from.', lower_bound=1
)
_BATCHES = flags.DEFINE_integer(
    'batches', 2000, 'How many batches of pairs one run takes.', lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is timed.', lower_bound=1
)
_LOAD = flags.DEFINE_string(
    'load', '', 'Only loads the data set of this folder, for its peak memory.'
)

# The size of a batch, and the number of frames of an item.
_PAIRS = 256, 2
_SEQUENCES = 32, 80
_GATHER = 'plain tf.gather'
_TORCHRL = 'TorchRL, in memory'


def _in_graph(dataset: tf.data.Dataset, batches: int) -> Callable[[], None]:
  """Returns a function that takes batches in a graph."""
  iterator = iter(dataset)

  @tf.function
  def take():
    total = tf.constant(0.0)
    for _ in tf.range(batches):
      frames, _ = next(iterator)
      total += tf.reduce_sum(frames.reward)
    return total

  return lambda: take().numpy() and None


def _eagerly(dataset: tf.data.Dataset, batches: int) -> Callable[[], None]:
  iterator = iter(dataset)

  def take():
    for _ in range(batches):
      next(iterator)

  return take


def _with_updates(
    buffer: local.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns a function that takes batches, and updates their priorities."""
  iterator = iter(buffer.as_dataset(size))

  @tf.function
  def take():
    for _ in tf.range(batches):
      frames, info = next(iterator)
      weights = buffer.importance_weights(info, 0.4)[:, 0]
      errors = weights + tf.abs(frames.reward[:, 0])
      buffer.update_priorities(info.key, errors)

  return take


def _gathering(
    columns: Any, num_items: int, size: int, length: int, batches: int
) -> Callable[[], None]:
  """Returns a function that gathers rows of tensors in memory."""

  @tf.function
  def take():
    total = tf.constant(0.0)
    for step in tf.range(batches):
      starts = tf.random.stateless_uniform(
          [size], tf.stack([0, step]), maxval=num_items, dtype=tf.int32
      )
      rows = starts[:, tf.newaxis] + tf.range(length)
      frames = tf.nest.map_structure(
          lambda leaf: tf.gather(leaf, rows), columns
      )
      total += tf.reduce_sum(frames.reward)
      # All columns count, as they do for who trains on them.
      total += sum(
          tf.cast(tf.reshape(leaf, [-1])[0], tf.float32)
          for leaf in tf.nest.flatten(frames)
      )
    return total

  return lambda: take().numpy() and None


def _torchrl_cases(
    columns: Any, batches: int, folder: str
) -> List[timing.Case]:
  """Returns the cases of TorchRL: transitions, and slices of two."""
  # pylint: disable=g-import-not-at-top
  import tensordict
  import torch
  from torchrl.data import replay_buffers

  length = data.EPISODE_LENGTH.value
  arrays = {
      'observation': columns.observation.numpy(),
      'action': columns.action.numpy(),
      'reward': columns.reward.numpy(),
      'done': columns.step_type.numpy() == 2,
      'episode': np.arange(len(columns.reward)) // length,
  }
  rows = {name: torch.from_numpy(leaf) for name, leaf in arrays.items()}
  rows['next_observation'] = torch.roll(rows['observation'], -1, 0)
  size, _ = _PAIRS
  in_memory = lambda: replay_buffers.LazyTensorStorage(len(columns.reward))
  mapped = lambda: replay_buffers.LazyMemmapStorage(
      len(columns.reward), scratch_dir=folder
  )
  slices = lambda: replay_buffers.SliceSampler(slice_len=2, traj_key='episode')
  cases = []
  for name, storage, sampler, count in (
      (_TORCHRL, in_memory, None, size),
      ('TorchRL, mapped', mapped, None, size),
      ('TorchRL, slices of 2', in_memory, slices, 2 * size),
  ):
    buffer = replay_buffers.TensorDictReplayBuffer(
        storage=storage(), batch_size=count, sampler=sampler and sampler()
    )
    buffer.extend(tensordict.TensorDict(rows, batch_size=[len(columns.reward)]))

    def run(buffer=buffer):
      for _ in range(batches):
        buffer.sample()

    cases.append(timing.Case(name, batches * size, run))
  return cases


def _sampling_cases(
    episodes: tf.data.Dataset, size: int, length: int, folder: str
) -> List[timing.Case]:
  """Returns the cases of one kind of batches."""
  batches = max(_BATCHES.value * 2 // length, 1)
  steps = batches * size * (length if length > 2 else 1)
  make = lambda **kwargs: rlds2reverb.EpisodesReplayBuffer(
      episodes, length, **kwargs
  )
  buffer = make()
  shared = lambda sampler: local.EpisodesReplayBuffer(
      buffer.store, sampler=sampler
  )
  mapped = make(directory=f'{folder}/frames-{length}')
  in_epochs = local.WithoutReplacement(drop_last=True)
  prioritized = shared(local.Prioritized())
  reverb_buffer = rlds2reverb.open_replay_buffer(
      episodes, length, reverb_server=True
  )
  columns = tf.nest.map_structure(
      lambda leaf: tf.squeeze(leaf, 0), buffer.gather_all()
  )
  # A server has some batches ready, so a few of them would tell nothing.
  few = max(batches // 4, 100)
  case = lambda name, run: timing.Case(name, steps, run)
  cases = [
      case(
          _GATHER,
          _gathering(columns, buffer.num_items, size, length, batches),
      ),
      case('uniform', _in_graph(buffer.as_dataset(size), batches)),
      case('uniform, eager loop', _eagerly(buffer.as_dataset(size), batches)),
      case(
          'without replacement',
          _in_graph(shared(in_epochs).as_dataset(size), batches),
      ),
      case(
          'episode first',
          _in_graph(shared(local.EpisodeFirst()).as_dataset(size), batches),
      ),
      case(
          'prioritized, with updates',
          _with_updates(prioritized, size, batches),
      ),
      case('memory-mapped', _in_graph(mapped.as_dataset(size), batches)),
      timing.Case(
          'ReverbReplayBuffer',
          steps // batches * few,
          _in_graph(reverb_buffer.as_dataset(size, length), few),
      ),
  ]
  if length == 2 and importlib.util.find_spec('torchrl'):
    cases += _torchrl_cases(columns, batches, folder)
  return cases


def _load(directory: str) -> None:
  rlds2reverb.EpisodesReplayBuffer(rlds2reverb.load_episodes(directory))


def _convert(directory: str) -> None:
  blocks = rlds2reverb.convert_rlds_to_trajectory_blocks(
      rlds2reverb.load_episodes(directory)
  )
  count = blocks.reduce(
      np.int64(0), lambda count, block: count + tf.size(block.reward, tf.int64)
  )
  assert count.numpy()


def _print_memory(directory: str, steps: int) -> None:
  """Prints what the frames take, beside their bytes."""
  spec = rlds2reverb.create_trajectory_data_spec(
      rlds2reverb.load_episodes(directory)
  )
  row_bytes = sum(
      leaf.shape.num_elements() * leaf.dtype.size
      for leaf in tf.nest.flatten(spec)
  )
  peaks = {}
  with data.temporary_episodes(data.EPISODE_LENGTH.value) as small:
    for name, folder in (('few', small), ('all', directory)):
      peaks[name] = processes.run(
          'benchmarks.replay', [f'--load={folder}'], 600
      )
  added = (peaks['all'] - peaks['few']) * 2**20
  print(
      f'Loading takes {added / 1e6:.0f} MB of memory at its peak for'
      f' {row_bytes * steps / 1e6:.0f} MB of rows, which is'
      f' {added / (row_bytes * steps):.2f} times as much.'
  )


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.WARNING)
  if _LOAD.value:
    _load(_LOAD.value)
    print(processes.peak_mib())
    return
  steps = data.whole_steps(_STEPS.value)
  with data.temporary_episodes(steps) as directory:
    with tempfile.TemporaryDirectory() as folder:
      episodes = rlds2reverb.load_episodes(directory)
      for size, length in (_PAIRS, _SEQUENCES):
        print(
            f'Batches of {size} items of {length} frames:'
            f' {"transitions" if length == 2 else "steps"} a second'
        )
        cases = _sampling_cases(episodes, size, length, folder)
        speeds = timing.measure(cases, _REPEATS.value)
        references = [('gather', _GATHER), ('Reverb', 'ReverbReplayBuffer')]
        if _TORCHRL in speeds:
          references.append(('TorchRL', _TORCHRL))
        timing.print_table(cases, speeds, references)
        del cases
    cases = [
        timing.Case('conversion alone', steps, lambda: _convert(directory)),
        timing.Case('loading', steps, lambda: _load(directory)),
    ]
    timing.print_table(
        cases,
        timing.measure(cases, _REPEATS.value),
        [('conversion', 'conversion alone')],
    )
    _print_memory(directory, steps)


if __name__ == '__main__':
  app.run(main)
