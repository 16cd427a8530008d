r"""Sampling from a replay buffer, with a server and without one.

    python -m benchmarks.replay

The limits in a graph are a plain `tf.gather` of every column in memory, and the
call of a Python function that returns a constant batch; with updates, a second
call takes the priorities. The limit in NumPy is indexing one packed row, which
copies each window by `memcpy`, in one or several threads. A batch has a
contiguous array for each column, into which NumPy can split the copy. With
updates, the limit is such a copy of windows that the compiled kernels draw, and
weights and an update by the kernels.

cpprb and flashbax are measured on the same data if they are installed. They
require versions that TensorFlow 2.15 excludes, but work with it on Python 3.11:

    pip install --no-deps cpprb==11.0.0 flashbax==0.1.3 jax==0.4.30 \
        jaxlib==0.4.30 chex==0.1.86 flax==0.8.5 optax==0.2.3 toolz \
        orbax-checkpoint==0.5.20 scipy==1.13.1 tensorstore==0.1.64 \
        opt_einsum msgpack rich pygments markdown-it-py mdurl nest_asyncio
"""

from concurrent import futures
import functools
import importlib.util
import tempfile
import threading
import time

from absl import app
from absl import flags
from absl import logging
import numpy as np
import tensorflow as tf

from benchmarks import data
from benchmarks import timing
import rlds2reverb
from rlds2reverb.replay import local
from rlds2reverb.store import sum_tree

_STEPS = flags.DEFINE_integer('steps', 1_000_000, 'Steps to sample from.')
_BATCHES = flags.DEFINE_integer('batches', 2000, 'Batches of a run.')

# The size of a batch, and the number of frames of an item.
_PAIRS, _SEQUENCES = (256, 2), (32, 80)
_GATHER, _PACKED = 'plain tf.gather', 'NumPy, one packed row'
_SPLIT = f'{_PACKED}, split into columns'
_KERNELS = f'{_SPLIT}, drawn and updated by the kernels'
_CALL = "TensorFlow's call alone"
_CALLS = f'{_CALL}, with updates'
_CPPRB, _FLASHBAX = 'cpprb, a call a batch', 'flashbax, compiled'


def _in_graph(take, batches):
  """Returns a function that calls `take(number)` in a graph, for each batch."""

  @tf.function
  def run():
    total = tf.constant(0.0)
    for number in tf.range(batches):
      total += tf.reduce_sum(take(number))
    return total

  return lambda: run().numpy() and None


def _taking(dataset, batches):
  iterator = iter(dataset)
  return _in_graph(lambda _: next(iterator)[0].reward, batches)


def _looping(iterator, batches, use=lambda frames, info: None):
  def run():
    for _ in range(batches):
      use(*next(iterator))

  return run


def _updating(buffer, size, batches):
  """Returns ways to train by priorities: in a graph, and as NumPy arrays."""

  def update(frames, info):
    weights = buffer.importance_weights(info, 0.4)[:, 0]
    errors = weights + abs(frames.reward[:, 0])
    buffer.update_priorities(info.key, errors)
    return errors

  iterator = iter(buffer.as_dataset(size))
  return {
      'prioritized with updates, in a graph': _in_graph(
          lambda _: update(*next(iterator)), batches
      ),
      'prioritized with updates, a call a batch': _looping(
          iter(buffer.as_dataset(size)), batches, update
      ),
      'prioritized with updates, NumPy': _looping(
          buffer.batches(size).iterate(), batches, update
      ),
  }


def _gathering(columns, num_items, size, length):
  def take(number):
    starts = tf.random.stateless_uniform(
        [size], tf.stack([0, number]), maxval=num_items, dtype=tf.int32
    )
    rows = starts[:, tf.newaxis] + tf.range(length)
    frames = [tf.gather(leaf, rows) for leaf in tf.nest.flatten(columns)]
    # All columns count, as they do for who trains on them.
    return sum(tf.cast(tf.reduce_sum(leaf), tf.float32) for leaf in frames)

  return take


def _calling(spec, size, batches, is_updated=False):
  """Returns what TensorFlow takes to get the leaves of a batch from Python."""
  leaves = tf.nest.flatten(spec)
  arrays = [
      np.ones([size, *leaf.shape[1:]], leaf.dtype.as_numpy_dtype)
      for leaf in leaves
  ]

  def take(_):
    tensors = tf.numpy_function(
        lambda: arrays, [], [leaf.dtype for leaf in leaves]
    )
    frames, info = tf.nest.pack_sequence_as(spec, tensors)
    if is_updated:
      tf.numpy_function(lambda *unused: None, [info.key, frames.reward], [])
    return frames.reward

  return _in_graph(take, batches)


def _in_threads(runs):
  """Returns a function that runs functions in a thread each."""

  def run():
    with futures.ThreadPoolExecutor(len(runs)) as pool:
      for future in [pool.submit(run) for run in runs]:
        future.result()

  return run


def _learning(buffer, frame, size, batches, num_learners):
  """Returns a run of learner threads next to a thread that appends frames."""

  def run():
    is_done = threading.Event()

    def append():
      while not is_done.is_set():
        buffer.add_batch(frame)
        time.sleep(0.001)

    def learn():
      with buffer.batches(size).iterate() as iterator:
        _looping(iterator, batches // num_learners)()

    adder = threading.Thread(target=append)
    adder.start()
    _in_threads([learn] * num_learners)()
    is_done.set()
    adder.join()

  return run


def _windows(columns, length):
  """Returns windows of packed rows, and the dtype of a row of columns."""
  leaves = tf.nest.flatten(columns)
  parts = [
      np.ascontiguousarray(leaf).reshape([len(leaf), -1]).view(np.uint8)
      for leaf in leaves
  ]
  rows = np.concatenate(parts, 1)
  windows = np.ndarray(
      [len(rows) - length + 1],
      f'V{rows.shape[1] * length}',
      buffer=rows.data,
      strides=[rows.shape[1]],
  )
  fields = [(str(k), x.dtype, x.shape[1:]) for k, x in enumerate(leaves)]
  return windows, np.dtype(fields)


def _indexing(columns, num_items, size, length, batches, is_split=False):
  """Returns a run that copies windows, and then may split them into columns."""
  windows, dtype = _windows(columns, length)
  rng = np.random.default_rng(0)

  def run():
    for _ in range(batches):
      batch = windows[rng.integers(0, num_items, size)]
      if is_split:
        _split(batch, dtype)

  return run


def _split(batch, dtype):
  """Copies windows of packed rows into an array for each column."""
  rows = batch.view(dtype).reshape([len(batch), -1])
  for name in dtype.names:
    np.ascontiguousarray(rows[name])


def _drawing(columns, length, size, batches):
  """Returns a run that draws, copies and updates windows by the kernels."""
  from rlds2reverb.store import kernels

  windows, dtype = _windows(columns, length)
  count = len(windows)
  tree = sum_tree.SumTree(np.ones(count), 0.6)
  weights = np.empty(size, np.float32)

  def run():
    for number in range(batches):
      items, *values = tree.draw(np.uint64(0), number * size, size)
      _split(windows[items], dtype)
      kernels.compute_weights(*values, values[0], 1.0, True, -0.4, weights)
      tree.update(items, values[1], 0, count)

  return run


def _cpprb(columns, size, batches):
  """Returns cpprb's ways to sample transitions, if it is installed."""
  if not importlib.util.find_spec('cpprb'):
    return {}
  import cpprb

  arrays = {
      'obs': columns.observation,
      'act': columns.action,
      'rew': columns.reward,
      'next_obs': np.roll(columns.observation, -1, 0),
      'done': (columns.step_type == 2).astype(np.float32),
  }
  spec = {
      name: {'shape': leaf.shape[1:] or 1, 'dtype': leaf.dtype}
      for name, leaf in arrays.items()
  }
  count = len(columns.reward)
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

  return {_CPPRB: sample, f'{_CPPRB}, prioritized with updates': update}


def _flashbax(columns, size, batches):
  """Returns flashbax's ways to sample pairs in a compiled loop."""
  if not importlib.util.find_spec('flashbax'):
    return {}
  import flashbax
  import jax

  step = {
      name: getattr(columns, name)
      for name in ('observation', 'action', 'reward')
  }
  kwargs = dict(
      add_batch_size=1,
      sample_sequence_length=2,
      period=1,
      min_length_time_axis=2,
      max_length_time_axis=len(columns.reward),
      sample_batch_size=size,
  )
  prioritized = flashbax.make_prioritised_trajectory_buffer(
      **kwargs, priority_exponent=0.6
  )
  uniform = flashbax.make_trajectory_buffer(**kwargs)

  def compiled(buffer):
    tree_map = jax.tree_util.tree_map
    state = buffer.init(tree_map(lambda leaf: leaf[0], step))
    state = buffer.add(state, tree_map(lambda leaf: leaf[np.newaxis], step))

    def body(index, carry):
      state, total = carry
      batch = buffer.sample(state, jax.random.PRNGKey(index))
      reward = batch.experience['reward'][:, 0]
      if buffer is prioritized:
        state = buffer.set_priorities(state, batch.indices, abs(reward) + 1)
      leaves = jax.tree_util.tree_leaves(batch.experience)
      return state, total + sum(leaf.sum() for leaf in leaves)

    loop = jax.jit(
        lambda state: jax.lax.fori_loop(0, batches, body, (state, 0.0))[1]
    )
    return lambda: loop(state).block_until_ready() and None

  return {
      _FLASHBAX: compiled(uniform),
      f'{_FLASHBAX}, prioritized with updates': compiled(prioritized),
  }


def _compare(episodes, size, length, folder) -> None:
  """Compares the ways to sample one kind of items."""
  batches = max(_BATCHES.value // (1 if length == 2 else 8), 1)
  make = functools.partial(
      rlds2reverb.EpisodesReplayBuffer, episodes, rlds2reverb.Windows(length)
  )
  buffer = make()
  columns = tf.nest.map_structure(
      lambda leaf: leaf.numpy()[0], buffer.gather_all()
  )
  taking = lambda buffer: _taking(buffer.as_dataset(size), batches)
  reverb_buffer = rlds2reverb.open_replay_buffer(
      episodes, rlds2reverb.Windows(length), reverb_server=True
  )
  plain = _gathering(columns, buffer.num_items, size, length)
  spec = buffer.as_dataset(size).element_spec
  runs = {
      _GATHER: _in_graph(plain, batches),
      _CALL: _calling(spec, size, batches),
      _CALLS: _calling(spec, size, batches, True),
      _PACKED: _indexing(columns, buffer.num_items, size, length, batches),
      _SPLIT: _indexing(columns, buffer.num_items, size, length, batches, True),
      _KERNELS: _drawing(columns, length, size, batches),
      'uniform': taking(buffer),
      'without replacement': taking(
          make(sampler=local.WithoutReplacement(drop_last=True))
      ),
      'mapped files': taking(make(directory=f'{folder}/frames-{length}')),
      'uniform, a call a batch': _looping(
          iter(buffer.as_dataset(size)), batches
      ),
      'uniform, NumPy': _looping(buffer.batches(size).iterate(), batches),
      **_updating(make(sampler=local.Prioritized()), size, batches),
      'ReverbReplayBuffer': taking(reverb_buffer),
  }
  if length == 2:
    own = local.AppendableReplayBuffer(episodes, len(columns.reward))
    frame = tf.nest.map_structure(lambda leaf: leaf[:1], columns)
    for count in 1, 3:
      copying = _indexing(
          columns, buffer.num_items, size, length, batches // count
      )
      runs[f'{_PACKED}, threads: {count}'] = _in_threads([copying] * count)
      run = _learning(own, frame, size, batches, count)
      runs[f'uniform, NumPy, threads: {count}, and one that appends'] = run
    runs.update(_cpprb(columns, size, batches))
    runs.update(_flashbax(columns, size, batches))
  steps = batches * size * (1 if length == 2 else length)
  timing.compare(
      [timing.Case(name, steps, run, _GATHER) for name, run in runs.items()],
      [('packed row', _PACKED), ('cpprb', _CPPRB), ('flashbax', _FLASHBAX)],
  )


def _compare_images() -> None:
  """Compares sampling stacked frames of Atari with copying them."""
  count, size = 10_000, 32
  steps = {
      'observation': np.zeros([count, 84, 84, 4], np.uint8),
      'action': np.zeros(count, np.int64),
      'reward': np.zeros(count, np.float32),
      'discount': np.ones(count, np.float32),
      'is_first': np.arange(count) == 0,
      'is_last': np.arange(count) == count - 1,
      'is_terminal': np.zeros(count, bool),
  }
  buffer = rlds2reverb.EpisodesReplayBuffer(
      tf.data.Dataset.from_tensors({'steps': steps}), rlds2reverb.Windows(1)
  )
  images = {'observation': steps['observation']}
  batches = _BATCHES.value // 8
  runs = {
      _PACKED: _indexing(images, count, size, 1, batches),
      'uniform, NumPy': _looping(buffer.batches(size).iterate(), batches),
  }
  timing.compare(
      [timing.Case(k, batches * size, run, _PACKED) for k, run in runs.items()]
  )


def main(_) -> None:
  logging.set_verbosity(logging.ERROR)
  with data.temporary_episodes(_STEPS.value) as folder:
    episodes = rlds2reverb.load_episodes(folder)
    for size, length in (_PAIRS, _SEQUENCES):
      print(f'Batches of {size} items of {length} frames:')
      with tempfile.TemporaryDirectory() as frames:
        _compare(episodes, size, length, frames)
  print('Batches of 32 images of 84x84x4 bytes:')
  _compare_images()


if __name__ == '__main__':
  app.run(main)
