"""Measures how fast batches are sampled, with a server and without one.

    python -m benchmarks.replay

The limits are a plain `tf.gather` of every column from tensors in memory, in a
`tf.function`; the same of one packed row, 16 batches at once, through tf.data;
and NumPy's indexing of one packed row. Batches are consumed in a graph, by an
eager loop and as NumPy arrays. cpprb, flashbax and TorchRL are measured on the
same data where they are installed: pip install rlds2reverb[replay-peers].
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
_PACKED = 'one packed row, through tf.data'
_NUMPY = 'NumPy, one packed row'
_TORCHRL = 'TorchRL, in memory'
_CPPRB = 'cpprb, a call a batch'


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


def _as_numpy(dataset: tf.data.Dataset, batches: int) -> Callable[[], None]:
  iterator = dataset.as_numpy_iterator()

  def take():
    for _ in range(batches):
      next(iterator)

  return take


def _with_numpy_updates(
    buffer: local.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns a function that trains on NumPy batches by their priorities."""
  iterator = buffer.as_dataset(size).as_numpy_iterator()

  def take():
    for _ in range(batches):
      frames, info = next(iterator)
      probability = info.probability[:, 0]
      weights = (probability / probability.min()) ** -0.4
      errors = weights + np.abs(frames.reward[:, 0])
      buffer.update_priorities(info.key, errors)

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


def _packed_cases(
    columns: Any, num_items: int, size: int, length: int, batches: int
) -> List[timing.Case]:
  """Returns the limits: all columns of a frame in one row of bytes."""
  parts = [
      np.ascontiguousarray(leaf.numpy()).reshape([len(leaf), -1]).view(np.uint8)
      for leaf in tf.nest.flatten(columns)
  ]
  ends = np.cumsum([part.shape[1] for part in parts])
  rows = np.concatenate(parts, 1)
  dtypes = [leaf.dtype for leaf in tf.nest.flatten(columns)]
  with tf.device('cpu'):
    tensor = tf.constant(rows)

  def read(group):
    starts = tf.random.stateless_uniform(
        [16, size],
        tf.stack([tf.constant(0, tf.int64), group]),
        maxval=num_items,
        dtype=tf.int64,
    )
    found = tf.gather(tensor, starts[..., tf.newaxis] + np.arange(length))
    leaves = []
    for end, part, dtype in zip(ends, parts, dtypes):
      leaf = found[..., end - part.shape[1] : end]
      shape = [*found.shape[:-1], part.shape[1] // dtype.size, dtype.size]
      leaves.append(tf.bitcast(tf.reshape(leaf, shape), dtype))
    frames = tf.nest.pack_sequence_as(columns, leaves)
    return frames, group + tf.zeros([16], tf.int64)

  dataset = tf.data.Dataset.range(2**62).map(read).unbatch().prefetch(16)
  runs = np.ndarray(
      [len(rows) - length + 1],
      f'V{rows.shape[1] * length}',
      buffer=rows.data,
      strides=[rows.shape[1]],
  )
  rng = np.random.default_rng(0)

  def index():
    for _ in range(batches):
      runs[rng.integers(0, num_items, size)]  # pylint: disable=pointless-statement

  steps = batches * size * (length if length > 2 else 1)
  return [
      timing.Case(_PACKED, steps, _in_graph(dataset, batches)),
      timing.Case(_NUMPY, steps, index),
  ]


def _cpprb_cases(columns: Any, batches: int) -> List[timing.Case]:
  """Returns the cases of cpprb: transitions, uniform and prioritized."""
  import cpprb  # pylint: disable=g-import-not-at-top

  size, _ = _PAIRS
  count = len(columns.reward)
  following = np.roll(columns.observation.numpy(), -1, 0)
  arrays = {
      'obs': columns.observation.numpy(),
      'act': columns.action.numpy(),
      'rew': columns.reward.numpy(),
      'next_obs': following,
      'done': (columns.step_type.numpy() == 2).astype(np.float32),
  }
  spec = {
      name: {'shape': leaf.shape[1:] or 1, 'dtype': leaf.dtype}
      for name, leaf in arrays.items()
  }
  uniform = cpprb.ReplayBuffer(count, spec)
  prioritized = cpprb.PrioritizedReplayBuffer(count, spec, alpha=0.6)
  uniform.add(**arrays)
  prioritized.add(**arrays)

  def sample():
    for _ in range(batches):
      uniform.sample(size)

  def update():
    for _ in range(batches):
      batch = prioritized.sample(size, beta=0.4)
      errors = batch['weights'] + np.abs(batch['rew'][:, 0])
      prioritized.update_priorities(batch['indexes'], errors)

  return [
      timing.Case(_CPPRB, batches * size, sample),
      timing.Case('cpprb, prioritized with updates', batches * size, update),
  ]


def _flashbax_cases(columns: Any, batches: int) -> List[timing.Case]:
  """Returns the cases of flashbax: transitions, in a compiled loop."""
  # pylint: disable=g-import-not-at-top
  import flashbax
  import jax

  size, _ = _PAIRS
  step = {
      'observation': columns.observation.numpy(),
      'action': columns.action.numpy(),
      'reward': columns.reward.numpy(),
  }
  kwargs = dict(
      add_batch_size=1,
      sample_sequence_length=2,
      period=1,
      min_length_time_axis=2,
      max_length_time_axis=len(columns.reward),
      sample_batch_size=size,
  )
  cases = []
  for name, buffer in (
      ('flashbax, compiled', flashbax.make_trajectory_buffer(**kwargs)),
      (
          'flashbax, prioritized with updates',
          flashbax.make_prioritised_trajectory_buffer(
              **kwargs, priority_exponent=0.6
          ),
      ),
  ):
    state = buffer.init(jax.tree_util.tree_map(lambda leaf: leaf[0], step))
    state = buffer.add(
        state, jax.tree_util.tree_map(lambda leaf: leaf[np.newaxis], step)
    )

    def body(index, carry, buffer=buffer, name=name):
      state, total = carry
      batch = buffer.sample(state, jax.random.PRNGKey(index))
      reward = batch.experience['reward'][:, 0]
      if 'prioritized' in name:
        state = buffer.set_priorities(state, batch.indices, abs(reward) + 1)
      # All columns count, as they do for who trains on them.
      return state, total + sum(
          leaf.sum() for leaf in jax.tree_util.tree_leaves(batch.experience)
      )

    loop = jax.jit(
        lambda state, body=body: jax.lax.fori_loop(
            0, batches, body, (state, 0.0)
        )[1]
    )
    cases.append(
        timing.Case(
            name,
            batches * size,
            lambda loop=loop, state=state: loop(state).block_until_ready(),
        )
    )
  return cases


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
      episodes, rlds2reverb.Windows(length), **kwargs
  )
  buffer = make()
  shared = lambda sampler: local.EpisodesReplayBuffer(
      buffer.store, sampler=sampler
  )
  mapped = make(directory=f'{folder}/frames-{length}')
  in_epochs = local.WithoutReplacement(drop_last=True)
  prioritized = shared(local.Prioritized())
  reverb_buffer = rlds2reverb.open_replay_buffer(
      episodes, rlds2reverb.Windows(length), reverb_server=True
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
      case(
          'uniform, a call a batch', _eagerly(buffer.as_dataset(size), batches)
      ),
      case('uniform, NumPy', _as_numpy(buffer.as_dataset(size), batches)),
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
      case(
          'prioritized, with updates, NumPy',
          _with_numpy_updates(shared(local.Prioritized()), size, batches),
      ),
      case('memory-mapped', _in_graph(mapped.as_dataset(size), batches)),
      timing.Case(
          'ReverbReplayBuffer',
          steps // batches * few,
          _in_graph(reverb_buffer.as_dataset(size, length), few),
      ),
  ]
  cases += _packed_cases(columns, buffer.num_items, size, length, batches)
  if length == 2:
    if importlib.util.find_spec('cpprb'):
      cases += _cpprb_cases(columns, batches)
    if importlib.util.find_spec('flashbax'):
      cases += _flashbax_cases(columns, batches)
    if importlib.util.find_spec('torchrl'):
      cases += _torchrl_cases(columns, batches, folder)
  return cases


def _load(directory: str) -> None:
  rlds2reverb.EpisodesReplayBuffer(rlds2reverb.load_episodes(directory))


def _convert(directory: str) -> None:
  blocks = rlds2reverb.convert_rlds_to_trajectories(
      rlds2reverb.load_episodes(directory), batched=True
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
        references = [
            ('gather', _GATHER),
            ('packed', _PACKED),
            ('Reverb', 'ReverbReplayBuffer'),
        ]
        if _CPPRB in speeds:
          references.append(('cpprb', _CPPRB))
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
