"""Compares batches of robot data with Octo's and OpenVLA's loaders.

    python -m benchmarks.robot_batches --peers=FOLDER

FOLDER has checkouts of octo, openvla and dlimp; without it, they are skipped.
The data is a mixture of two data sets with two cameras and 256x256 JPEGs. A
batch has 64 items of 2 frames and 4 actions, resized to 224x224 by two threads.
The limit is decoding and resizing the same number of images. Each case runs in
a separate process, to measure its memory. Building an index is compared with
reading records.
"""

from concurrent import futures
import importlib
import io
import itertools
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import types
from unittest import mock

from absl import app
from absl import flags
import numpy as np

from benchmarks import data
from benchmarks import timing

_EPISODES = flags.DEFINE_integer('episodes', 10, 'Episodes of a data set.')
_STEPS = flags.DEFINE_integer('steps', 50, 'Steps of an episode.')
_BATCHES = flags.DEFINE_integer('batches', 20, 'The number of timed batches.')
_BUFFER = flags.DEFINE_integer('buffer', 1000, 'The shuffle buffer of peers.')
_PEERS = flags.DEFINE_string('peers', '', 'Checkouts of octo, openvla, dlimp.')
_CASE = flags.DEFINE_string('case', '', 'Only this case, in this process.')
_FOLDER = flags.DEFINE_string('folder', '', 'The folder of the data.')

_CAMERAS = ('eye', 'wrist')
_BATCH, _FRAMES, _ACTIONS, _SIZE, _THREADS = 64, 2, 4, (224, 224), 2
_IMAGES = _BATCH * _FRAMES * len(_CAMERAS)
_SOURCES = ('one', 'two')


def _data_of(source: str) -> str:
  return os.path.join(_FOLDER.value, source, '1.0.0')


def _write() -> None:
  """Writes the data sets."""
  import tensorflow_datasets as tfds

  from tests import tfds_files

  rng = np.random.default_rng(0)
  # Images are repeated, because encoding takes most of the time.
  images = [data.jpeg(rng, (256, 256)) for _ in range(100)]
  image = tfds.features.Image(shape=(256, 256, 3), encoding_format='jpeg')
  names = ('is_first', 'is_last', 'is_terminal')
  features = {
      'steps': tfds.features.Dataset(
          {
              'observation': dict.fromkeys(_CAMERAS, image),
              'action': tfds.features.Tensor(shape=(7,), dtype=np.float32),
              'reward': np.float32,
              'discount': np.float32,
              **dict.fromkeys(names, np.bool_),
          }
      )
  }

  def step(place):
    return {
        'observation': {
            camera: io.BytesIO(images[rng.integers(len(images))])
            for camera in _CAMERAS
        },
        'action': rng.normal(size=7).astype(np.float32),
        'reward': 0.0,
        'discount': 1.0,
        'is_first': place == 0,
        'is_last': place == _STEPS.value - 1,
        'is_terminal': False,
    }

  for source in _SOURCES:
    episodes = (
        {'steps': list(map(step, range(_STEPS.value)))}
        for _ in range(_EPISODES.value)
    )
    tfds_files.write(_data_of(source), features, episodes)


def _index():
  """Returns the MB/s of building the indexes, and of only reading records."""
  import tensorflow as tf

  from rlds2reverb import random_access

  paths = [
      os.fspath(path)
      for source in _SOURCES
      for path in sorted(pathlib.Path(_data_of(source)).glob('*tfrecord*'))
  ]
  num_bytes = sum(map(os.path.getsize, paths))

  def read():
    lengths = tf.data.TFRecordDataset(paths).map(tf.strings.length)
    lengths.reduce(0, lambda total, length: total + length)

  def build():
    for source in _SOURCES:
      folder = os.path.join(_FOLDER.value, f'{source}_index')
      shutil.rmtree(folder, ignore_errors=True)
      random_access.build_index(_data_of(source), folder)

  speeds = {}
  for _ in range(2):  # The second time, the files are in the page cache.
    for name, case in {'records': read, 'index': build}.items():
      begin = time.process_time()
      case()
      speeds[f'{name} MB/CPU s'] = (
          num_bytes / (time.process_time() - begin) / 1e6
      )
  return speeds


def _random_access():
  from rlds2reverb import random_access

  items = {
      source: random_access.Items(
          random_access.Index(os.path.join(_FOLDER.value, f'{source}_index')),
          random_access.ActionChunks(_FRAMES, _ACTIONS),
          images={f'observation/{camera}': _SIZE for camera in _CAMERAS},
      )
      for source in _SOURCES
  }
  batches = random_access.Batches(
      items, _BATCH, weights=dict.fromkeys(_SOURCES, 1.0)
  )
  return batches.iterate(num_threads=_THREADS)


def _peer(module, horizon, source_options=()):
  """Returns an iterator over the batches of a peer's own loader."""
  dataset = module.make_interleaved_dataset(
      [
          {
              'name': source,
              'data_dir': _FOLDER.value,
              'image_obs_keys': {camera: camera for camera in _CAMERAS},
              **dict(source_options),
          }
          for source in _SOURCES
      ],
      [1.0] * len(_SOURCES),
      train=True,
      shuffle_buffer_size=_BUFFER.value,
      traj_transform_kwargs={'window_size': _FRAMES, **horizon},
      frame_transform_kwargs={
          'resize_size': dict.fromkeys(_CAMERAS, _SIZE),
          'num_parallel_calls': _THREADS,
      },
      batch_size=_BATCH,
      traj_transform_threads=_THREADS,
      traj_read_threads=_THREADS,
  )
  dataset = dataset[0] if isinstance(dataset, tuple) else dataset
  return iter(dataset.as_numpy_iterator())


def _octo():
  for name in ('dlimp', 'octo'):
    sys.path.insert(0, os.path.join(_PEERS.value, name))
  module = importlib.import_module('octo.data.dataset')
  return _peer(module, {'action_horizon': _ACTIONS})


def _openvla():
  sys.path.insert(0, os.path.join(_PEERS.value, 'dlimp'))
  # These packages import models and PyTorch, which the loader does not need.
  for name in ('prismatic', 'prismatic.vla', 'prismatic.vla.datasets'):
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(_PEERS.value, 'openvla', *name.split('.'))]
    sys.modules[name] = package
  sys.modules['prismatic.overwatch'] = mock.MagicMock()
  return _peer(
      importlib.import_module('prismatic.vla.datasets.rlds.dataset'),
      {'future_action_window_size': _ACTIONS - 1},
      {'state_obs_keys': [None]},  # The loader requires a state.
  )


def _decoding():
  """Decodes and resizes the images of a batch: the limit."""
  from rlds2reverb.random_access import images as images_lib

  rng = np.random.default_rng(0)
  images = [data.jpeg(rng, (256, 256)) for _ in range(_IMAGES)]
  image_format = images_lib.ImageFormat(_SIZE)

  def decode_batch():
    return [images_lib.decode(image, image_format) for image in images]

  with futures.ThreadPoolExecutor(_THREADS) as executor:
    waiting = [executor.submit(decode_batch) for _ in range(_THREADS)]
    while True:
      yield waiting.pop(0).result()
      waiting.append(executor.submit(decode_batch))


_PEER_CASES = {'octo': _octo, 'openvla': _openvla}
_CASES = {'random access': _random_access, 'decoding': _decoding}


def _measure(case):
  """Returns the measurements of an iterator of batches."""
  if _CASE.value in _PEER_CASES:
    case()  # Excludes imports and the statistics that it computes.
  begin = time.perf_counter()
  batches = case()
  next(batches)
  first = time.perf_counter() - begin
  for _ in itertools.islice(batches, 9):
    pass
  begin, cpu = time.perf_counter(), time.process_time()
  for _ in itertools.islice(batches, _BATCHES.value):
    pass
  count = _BATCH * _FRAMES * _BATCHES.value
  return {
      'frames/s': count / (time.perf_counter() - begin),
      'CPU ms a frame': (time.process_time() - cpu) / count * 1000,
      'first s': first,
      'peak MiB': timing.memory_mib(),
  }


def main(_) -> None:
  cases = {**_CASES, **(_PEER_CASES if _PEERS.value else {})}
  if _CASE.value == 'write':
    _write()
    print(json.dumps({}))
  elif _CASE.value == 'index':
    print(json.dumps(_index()))
  elif _CASE.value:
    print(json.dumps(_measure(cases[_CASE.value])), flush=True)
    os._exit(0)  # Does not wait for threads that prefetch.
  else:
    with tempfile.TemporaryDirectory() as folder:
      for case in ('write', 'index', *cases):
        arguments = [f'--case={case}', f'--folder={folder}', *sys.argv[1:]]
        results = json.loads(timing.run_alone('robot_batches', *arguments))
        values = ''.join(
            f'{value:10,.2f} {key}' for key, value in results.items()
        )
        print(f'{case:16}{values}', flush=True)


if __name__ == '__main__':
  app.run(main)
