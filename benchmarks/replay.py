"""Measures how fast batches are sampled, with a server and without one.

    python -m benchmarks.replay

The limits are a plain `tf.gather` of every column from tensors in memory, in a
`tf.function`; the same of one packed row, 16 batches at once, through tf.data;
and NumPy's indexing of one packed row. Where NumPy works for a graph, it is the
same NumPy work in two functions without a data set, and a function that returns
one batch again and again: with the NumPy row beside it, it says what the way
into the graph takes. Batches are consumed in a graph, by an
eager loop and as NumPy arrays. cpprb, flashbax and TorchRL are measured on the
same data where they are installed; see `replay_peers`. `--cpu` is for a machine
that does other work: then what two threads do at once counts twice.
"""

import dataclasses
import io
import tempfile
import time
from typing import Any, Callable, List

from absl import app
from absl import flags
from absl import logging
import numpy as np
from PIL import Image
import tensorflow as tf

from benchmarks import data
from benchmarks import processes
from benchmarks import replay_peers
from benchmarks import timing
import rlds2reverb
from rlds2reverb.replay import local
from rlds2reverb.replay.local import batch_dataset

_STEPS = flags.DEFINE_integer(
    'steps', 1_000_000, 'How many steps are sampled from.', lower_bound=1
)
_BATCHES = flags.DEFINE_integer(
    'batches', 2000, 'How many batches of pairs one run takes.', lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is timed.', lower_bound=1
)
_IMAGES = flags.DEFINE_integer(
    'images', 10_000, 'How many images are sampled from.', lower_bound=100
)
_CPU = flags.DEFINE_boolean('cpu', False, 'Measures CPU time, not the clock.')
_LOAD = flags.DEFINE_string(
    'load', '', 'Only loads the data set of this folder, for its peak memory.'
)

# The size of a batch, and the number of frames of an item.
_PAIRS = 256, 2
_SEQUENCES = 32, 80
_GATHER = 'plain tf.gather'
_PACKED = 'one packed row, through tf.data'
_NUMPY = 'NumPy, one packed row'
_COPYING = 'copying images of 84x84, NumPy'
_SAME = 'one batch, returned by NumPy again and again, in a graph'


def _wait_for(take: Callable[[], tf.Tensor]) -> None:
  take().numpy()


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

  return lambda: _wait_for(take)


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
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
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


def _with_eager_updates(
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns a function that trains eagerly on batches by their priorities."""
  iterator = iter(buffer.as_dataset(size))

  def take():
    for _ in range(batches):
      frames, info = next(iterator)
      weights = buffer.importance_weights(info, 0.4)[:, 0]
      errors = weights + tf.abs(frames.reward[:, 0])
      buffer.update_priorities(info.key, errors)

  return take


def _updates_alone(
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns a function that updates the priorities of one batch eagerly."""
  _, info = next(iter(buffer.as_dataset(size)))
  errors = tf.ones([size])

  def update():
    for _ in range(batches):
      buffer.update_priorities(info.key, errors)

  return update


def _updates_in_graph(
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns a function that does so in a `tf.function`."""
  _, info = next(iter(buffer.as_dataset(size)))

  @tf.function
  def update():
    for _ in tf.range(batches):
      buffer.update_priorities(info.key, tf.ones([size]))

  return update


def _with_updates(
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
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

  return lambda: _wait_for(take)


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


def _trainer_alone(
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns the limit of `_with_eager_updates`: what is not the buffer's."""
  frames, info = next(iter(buffer.as_dataset(size)))
  weights = buffer.importance_weights(info, 0.4)

  def take():
    for _ in range(batches):
      _ = weights[:, 0] + tf.abs(frames.reward[:, 0])

  return take


def _with_numpy_functions(
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns the limit of `_with_updates`: NumPy, called twice a batch.

  All that is left of TensorFlow are the two calls. There is no data set.
  """
  iterator = buffer.as_dataset(size).as_numpy_iterator()
  frames, info = next(iterator)
  dtypes = [leaf.dtype for leaf in tf.nest.flatten((frames, info))]

  def update(*leaves):
    frames_, info_ = tf.nest.pack_sequence_as((frames, info), leaves)
    probability = info_.probability[:, 0]
    weights = (probability / probability.min()) ** -0.4
    errors = weights + np.abs(frames_.reward[:, 0])
    buffer.update_priorities(info_.key, errors)

  @tf.function
  def take():
    for _ in tf.range(batches):
      leaves = tf.numpy_function(
          lambda: tf.nest.flatten(next(iterator)), [], dtypes
      )
      tf.numpy_function(update, leaves, [])

  return take


def _same_batch(
    buffer: rlds2reverb.EpisodesReplayBuffer, size: int, batches: int
) -> Callable[[], None]:
  """Returns the limit of what NumPy reads for a graph: one batch, always."""
  spec = buffer.as_dataset(size).element_spec
  batch = next(buffer.as_dataset(size).as_numpy_iterator())
  leaves = tf.nest.flatten(batch)
  dataset = batch_dataset.map_here(
      tf.data.Dataset.range(2**62),
      lambda number: tf.numpy_function(
          lambda: leaves, [], [leaf.dtype for leaf in leaves]
      ),
      spec,
  )
  return _in_graph(dataset, batches)


def _empty_functions(size: int, batches: int) -> Callable[[], None]:
  """Returns a function that goes from a graph to NumPy twice a batch."""

  @tf.function
  def call():
    for _ in tf.range(batches):
      [ones] = tf.numpy_function(
          lambda: [np.ones(size, np.float32)], [], [tf.float32]
      )
      tf.numpy_function(lambda _: None, [ones], [])

  return call


def _prioritized_cases(
    store: Any, size: int, steps: int, batches: int
) -> List[timing.Case]:
  """Returns the cases of priorities that a trainer updates."""
  ways = {
      'prioritized, with updates': _with_updates,
      'prioritized, updates, a call a batch': _with_eager_updates,
      'prioritized, updates, NumPy': _with_numpy_updates,
      'updates alone, called eagerly': _updates_alone,
      'updates alone, in a tf.function': _updates_in_graph,
      "the trainer's eager operations alone": _trainer_alone,
      'the same by two NumPy functions, without a data set': (
          _with_numpy_functions
      ),
      _SAME: _same_batch,
  }
  runs = {
      name: way(
          rlds2reverb.EpisodesReplayBuffer(store, sampler=local.Prioritized()),
          size,
          batches,
      )
      for name, way in ways.items()
  }
  runs['two NumPy functions that do nothing, in a graph'] = _empty_functions(
      size, batches
  )
  return [timing.Case(name, steps, run) for name, run in runs.items()]


def _small_cases(episodes: tf.data.Dataset) -> List[timing.Case]:
  """Returns the prioritized cases on a tenth of the frames."""
  size, _ = _PAIRS
  whole = rlds2reverb.EpisodesReplayBuffer(episodes).store
  store = whole.top_episodes(-(-len(whole.runs.num_rows) // 10))
  batches = _BATCHES.value
  columns = tf.nest.map_structure(
      lambda leaf: tf.squeeze(leaf, 0),
      rlds2reverb.EpisodesReplayBuffer(store).gather_all(),
  )
  return [
      *_prioritized_cases(store, size, batches * size, batches),
      *replay_peers.cpprb_cases(columns, size, batches),
  ]


def _sampling_cases(
    episodes: tf.data.Dataset, size: int, length: int, folder: str
) -> List[timing.Case]:
  """Returns the cases of one kind of batches."""
  batches = max(_BATCHES.value // (1 if length == 2 else 8), 1)
  steps = batches * size * (length if length > 2 else 1)
  make = lambda **kwargs: rlds2reverb.EpisodesReplayBuffer(
      episodes, rlds2reverb.Windows(length), **kwargs
  )
  buffer = make()
  weighted = dataclasses.replace(
      buffer.store,
      priorities=np.random.default_rng(0).uniform(size=buffer.num_items),
  )
  shared = lambda sampler, store=buffer.store: rlds2reverb.EpisodesReplayBuffer(
      store, sampler=sampler
  )
  in_graph = lambda buffer: _in_graph(buffer.as_dataset(size), batches)
  reverb_buffer = rlds2reverb.open_replay_buffer(
      episodes, rlds2reverb.Windows(length), reverb_server=True
  )
  columns = tf.nest.map_structure(
      lambda leaf: tf.squeeze(leaf, 0), buffer.gather_all()
  )
  runs = {
      _GATHER: _gathering(columns, buffer.num_items, size, length, batches),
      'uniform': in_graph(buffer),
      'weighted': in_graph(shared(local.Weighted(), weighted)),
      'without replacement': in_graph(
          shared(local.WithoutReplacement(drop_last=True))
      ),
      'episode first': in_graph(shared(local.EpisodeFirst())),
      'memory-mapped': in_graph(make(directory=f'{folder}/frames-{length}')),
      'uniform, a call a batch': _eagerly(buffer.as_dataset(size), batches),
      'uniform, NumPy': _as_numpy(buffer.as_dataset(size), batches),
  }
  cases = [timing.Case(name, steps, run) for name, run in runs.items()]
  cases += _prioritized_cases(buffer.store, size, steps, batches)
  # A server has some batches ready, so a few of them would tell nothing.
  few = max(batches // 4, 100)
  cases.append(
      timing.Case(
          'ReverbReplayBuffer',
          steps // batches * few,
          _in_graph(reverb_buffer.as_dataset(size, length), few),
      )
  )
  cases += _packed_cases(columns, buffer.num_items, size, length, batches)
  if length == 2:
    cases += replay_peers.cases(columns, size, batches, folder)
  return cases


def _image_buffer(image: Any) -> rlds2reverb.EpisodesReplayBuffer:
  """Returns a replay buffer whose frames show `image(k)`, a function."""
  length = 100
  images = [image(step) for step in range(length)]
  steps = {
      'observation': tf.constant(images),
      'action': tf.zeros([length, 6]),
      'reward': tf.zeros([length]),
      'discount': tf.ones([length]),
      'is_first': tf.range(length) == 0,
      'is_last': tf.range(length) == length - 1,
      'is_terminal': tf.range(length) == length - 1,
  }
  episodes = tf.data.Dataset.from_tensors({'steps': steps})
  return rlds2reverb.EpisodesReplayBuffer(
      episodes.repeat(_IMAGES.value // length)
  )


def _image_cases() -> List[timing.Case]:
  """Returns the cases of images: encoded, decoded, and raw."""
  size, batches = 32, max(_BATCHES.value // 10, 1)
  rng = np.random.default_rng(0)

  def jpeg(_):
    # Noise of a few pixels, so that a file has some KB.
    small = rng.integers(0, 256, [16, 16, 3]).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((84, 84)).save(file, 'JPEG', quality=95)
    return file.getvalue()

  encoded = _image_buffer(jpeg)
  frames, _ = next(encoded.as_dataset(256).as_numpy_iterator())
  strings = frames.observation[:size]
  num_bytes = int(np.mean([len(each) for each in frames.observation.flat]))
  raw = lambda *shape: _image_buffer(
      lambda _: rng.integers(0, 256, shape).astype(np.uint8)
  )
  same, pixels = raw(num_bytes), raw(84, 84, 3)
  decode = lambda nest: rlds2reverb.transforms.decode_images(
      nest, ['observation'], size=(84, 84)
  )
  decoded = encoded.as_dataset(size).map(
      lambda frames, info: (decode(frames), info)
  )

  @tf.function
  def decode_one_by_one(images):
    total = tf.constant(0)
    for image in images:
      total += tf.cast(tf.io.decode_jpeg(image)[0, 0, 0], tf.int32)
    return total

  flat = tf.constant(strings.ravel())

  def decode_alone():
    for _ in range(batches):
      decode_one_by_one(flat).numpy()

  rows = pixels.store.rows[1]
  starts = rng.integers(0, len(rows) - 1, [batches, size])

  def copy():
    for each in starts:
      rows[(each[:, np.newaxis] + np.arange(2)).ravel()]  # pylint: disable=pointless-statement

  memory = [np.empty([6 * size, rows.shape[1]], np.uint8) for _ in range(3)]

  def copy_elsewhere():
    # Batches that a trainer still has are not in the cache.
    for number in range(0, batches, 3):
      each = starts[number : number + 3].ravel()
      places = (each[:, np.newaxis] + np.arange(2)).ravel()
      out = memory[number // 3 % 3][: len(places)]
      rows.take(places, axis=0, out=out, mode='clip')

  def take(buffer):
    return _in_graph(buffer.as_dataset(size), batches)

  images = batches * size * 2
  runs = {
      f'JPEGs of {num_bytes} bytes': take(encoded),
      'raw ones of the same bytes': take(same),
      'JPEGs, NumPy': _as_numpy(encoded.as_dataset(size), batches),
      'raw ones of the same bytes, NumPy': _as_numpy(
          same.as_dataset(size), batches
      ),
      'JPEGs, decoded': _in_graph(decoded, batches),
      'decoding alone, one by one': decode_alone,
      'raw images of 84x84': take(pixels),
      'raw images of 84x84, NumPy': _as_numpy(pixels.as_dataset(size), batches),
      _COPYING: copy,
      'the same into the memory of nine batches, in turns': copy_elsewhere,
      _SAME: _same_batch(pixels, size, batches),
  }
  return [timing.Case(name, images, run) for name, run in runs.items()]


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


def _print(cases, speeds):
  references = [
      ('gather', _GATHER),
      ('packed', _PACKED),
      ('NumPy', _NUMPY),
      ('Reverb', 'ReverbReplayBuffer'),
      ('cpprb', replay_peers.CPPRB),
      ('prioritized', replay_peers.CPPRB_PRIORITIZED),
      ('TorchRL', replay_peers.TORCHRL),
  ]
  timing.print_table(
      cases, speeds, [each for each in references if each[1] in speeds]
  )


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.WARNING)
  if _LOAD.value:
    _load(_LOAD.value)
    print(processes.peak_mib())
    return
  clock = time.process_time if _CPU.value else time.perf_counter
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
        speeds = timing.measure(cases, _REPEATS.value, clock)
        _print(cases, speeds)
        del cases
      print('The same pairs, of a tenth of the frames: transitions a second')
      cases = _small_cases(episodes)
      _print(cases, timing.measure(cases, _REPEATS.value, clock))
      del cases
    print('Batches of 32 pairs of images: images a second')
    cases = _image_cases()
    timing.print_table(
        cases,
        timing.measure(cases, _REPEATS.value, clock),
        [('same bytes', 'raw ones of the same bytes'), ('copying', _COPYING)],
    )
    cases = [
        timing.Case('conversion alone', steps, lambda: _convert(directory)),
        timing.Case('loading', steps, lambda: _load(directory)),
    ]
    timing.print_table(
        cases,
        timing.measure(cases, _REPEATS.value, clock),
        [('conversion', 'conversion alone')],
    )
    _print_memory(directory, steps)


if __name__ == '__main__':
  app.run(main)
