"""Batches for robots from two cameras, beside Octo's and OpenVLA's loaders.

    python -m benchmarks.robot_batches --peers=/data/checkouts

Two data sets of 256x256 JPEGs are mixed; items have 2 observations and chunks
of 4 actions, images of 224x224 by Lanczos, batches of 64. Every case has a
process of its own. Of each it prints the frames a second (a frame has an image
of both cameras), the CPU time of a frame, the time to the first batch, and how
much memory grew by after the tenth batch, and at the most.

- `random access` opens indexes, which `index` has built, and reads in threads.
- `octo` and `openvla` are `make_interleaved_dataset` of both, with a shuffle
  buffer of `--buffer` frames; theirs have 500,000 and 256,000. They are left
  out without `--peers`, a folder with checkouts of github.com/octo-models/octo,
  openvla/openvla and kvablack/dlimp. They need the package huggingface_hub.
- `decoding` decodes and resizes images in memory with the same two threads, by
  what random access uses; `decoding, TensorFlow` as Octo and OpenVLA do.
- `index` prints the speed of building the indexes, in wall and CPU time, beside
  that of reading: the records alone, with their checksums, and the episodes as
  TFDS reads them, with images left encoded. It needs more than 1 GB of data:
  `--episodes=200 --steps=200`.
"""

from concurrent import futures
import importlib
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import types
from unittest import mock

from absl import app
from absl import flags
import numpy as np

from benchmarks import robot_data

_EPISODES = flags.DEFINE_integer('episodes', 10, 'Episodes of a data set.')
_STEPS = flags.DEFINE_integer('steps', 50, 'Steps of an episode.')
_BATCHES = flags.DEFINE_integer('batches', 20, 'Batches that are timed.')
_BUFFER = flags.DEFINE_integer('buffer', 1000, 'Frames of the shuffle buffer.')
_PEERS = flags.DEFINE_string('peers', '', 'Checkouts of octo, openvla, dlimp.')
_CASE = flags.DEFINE_string('case', '', 'The one case to run, in this process.')
_FOLDER = flags.DEFINE_string('folder', '', 'Where its data is.')

_CAMERAS = robot_data.CAMERAS
_BATCH, _FRAMES, _ACTIONS, _SIZE = 64, 2, 4, (224, 224)
_THREADS = 2
_IMAGES = _BATCH * _FRAMES * len(_CAMERAS)
_SOURCES = ('one', 'two')


def _directory(source: str) -> str:
  return os.path.join(_FOLDER.value, source, '1.0.0')


def _index():
  # pylint: disable=g-import-not-at-top
  import tensorflow as tf
  import tensorflow_datasets as tfds

  from rlds2reverb import datasets
  from rlds2reverb import random_access

  paths = [
      os.fspath(path)
      for source in _SOURCES
      for path in sorted(pathlib.Path(_directory(source)).glob('*tfrecord*'))
  ]
  num_bytes = sum(map(os.path.getsize, paths))

  def read():
    lengths = tf.data.TFRecordDataset(paths).map(tf.strings.length)
    lengths.reduce(0, lambda total, length: total + length)

  def load():
    skip = dict.fromkeys(_CAMERAS, tfds.decode.SkipDecoding())
    for source in _SOURCES:
      episodes = datasets.load_episodes(
          _directory(source), decoders={'steps': {'observation': skip}}
      )
      episodes.reduce(0, lambda count, episode: count + 1)

  def build():
    for source in _SOURCES:
      folder = os.path.join(_FOLDER.value, f'{source}_index')
      shutil.rmtree(folder, ignore_errors=True)
      random_access.build_index(_directory(source), folder)

  found = {}
  # The first time the files come from the disk, and functions are traced.
  for _ in range(2):
    for name, case in {'records': read, 'TFDS': load, 'index': build}.items():
      begin, cpu = time.perf_counter(), time.process_time()
      case()
      found[f'{name} MB/s'] = num_bytes / (time.perf_counter() - begin) / 1e6
      found[f'{name} MB/CPU s'] = num_bytes / (time.process_time() - cpu) / 1e6
  return found


def _random_access():
  # pylint: disable=g-import-not-at-top
  from rlds2reverb import random_access

  items = {
      source: random_access.Items(
          random_access.Index(os.path.join(_FOLDER.value, f'{source}_index')),
          random_access.ActionChunks(_FRAMES, _ACTIONS),
          images={
              f'observation/{camera}': _SIZE for camera in robot_data.CAMERAS
          },
      )
      for source in _SOURCES
  }
  batches = random_access.Batches(
      items, _BATCH, weights=dict.fromkeys(_SOURCES, 1.0)
  )
  return batches.iterate(num_threads=_THREADS)


def _peer(module):
  """Returns an iterator of a peer's batches, made by its own functions."""
  if module.__name__.startswith('octo'):
    horizon, own = {'action_horizon': _ACTIONS}, {}
  else:
    horizon = {'future_action_window_size': _ACTIONS - 1}
    own = {'state_obs_keys': [None]}  # It cannot do without a state.
  dataset = module.make_interleaved_dataset(
      [
          {
              'name': source,
              'data_dir': _FOLDER.value,
              'image_obs_keys': {camera: camera for camera in _CAMERAS},
              **own,
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
  return _peer(importlib.import_module('octo.data.dataset'))


def _openvla():
  sys.path.insert(0, os.path.join(_PEERS.value, 'dlimp'))
  # These import models and PyTorch, which the loader does without.
  for name in ('prismatic', 'prismatic.vla', 'prismatic.vla.datasets'):
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(_PEERS.value, 'openvla', *name.split('.'))]
    sys.modules[name] = package
  sys.modules['prismatic.overwatch'] = mock.MagicMock()
  return _peer(importlib.import_module('prismatic.vla.datasets.rlds.dataset'))


def _decoding():
  # pylint: disable=g-import-not-at-top
  from rlds2reverb.random_access import images as images_lib

  rng = np.random.default_rng(0)
  images = [robot_data.encoded(rng) for _ in range(_IMAGES)]
  image_format = images_lib.ImageFormat(_SIZE)

  def batch(_):
    return [images_lib.decode(image, image_format) for image in images]

  with futures.ThreadPoolExecutor(_THREADS) as executor:
    waiting = [executor.submit(batch, 0) for _ in range(_THREADS)]
    while True:
      yield waiting.pop(0).result()
      waiting.append(executor.submit(batch, 0))


def _decoding_tensorflow():
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  rng = np.random.default_rng(0)
  images = tf.constant([robot_data.encoded(rng) for _ in range(_IMAGES)])

  def one(encoded):
    image = tf.io.decode_image(encoded, 3, expand_animations=False)
    image = tf.image.resize(image, _SIZE, 'lanczos3', antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)

  return iter(
      tf.data.Dataset.from_tensor_slices(images)
      .repeat()
      .map(one, num_parallel_calls=_THREADS)
      .batch(_IMAGES)
      .as_numpy_iterator()
  )


_CASES = {
    'random access': _random_access,
    'octo': _octo,
    'openvla': _openvla,
    'decoding': _decoding,
    'decoding, TensorFlow': _decoding_tensorflow,
}
_NEED_PEERS = ('octo', 'openvla')


def _memory(name: str) -> float:
  status = pathlib.Path('/proc/self/status').read_text()
  fields = dict(line.split(':', 1) for line in status.splitlines())
  return int(fields[name].split()[0]) / 1024


def _run_case() -> None:
  """Runs a case, and prints what it took as JSON."""
  if _CASE.value == 'write':
    for seed, source in enumerate(_SOURCES):
      robot_data.write(
          _directory(source), _EPISODES.value, _STEPS.value, 256, seed
      )
    print(json.dumps({}))
    return
  if _CASE.value == 'index':
    print(json.dumps(_index()))
    return
  if _CASE.value in _NEED_PEERS:
    # Neither their imports nor the statistics that they compute count.
    _CASES[_CASE.value]()
  begin = time.perf_counter()
  batches = _CASES[_CASE.value]()
  next(batches)
  first = time.perf_counter() - begin
  for _ in range(9):
    next(batches)
  before = _memory('VmRSS')
  begin, cpu = time.perf_counter(), time.process_time()
  for _ in itertools.islice(batches, _BATCHES.value):
    pass
  seconds = time.perf_counter() - begin
  cpu = time.process_time() - cpu
  count = _BATCH * _FRAMES * _BATCHES.value
  found = {
      'frames/s': count / seconds,
      'CPU ms': cpu / count * 1000,
      'first s': first,
      'grown MB': _memory('VmRSS') - before,
      'peak MB': _memory('VmHWM'),
  }
  print(json.dumps(found), flush=True)
  os._exit(0)  # Threads that read in advance need not end.


def main(_) -> None:
  if _CASE.value:
    _run_case()
    return
  with tempfile.TemporaryDirectory() as folder:
    cases = [case for case in _CASES if _PEERS.value or case not in _NEED_PEERS]
    for case in ('write', 'index', *cases):
      done = subprocess.run(
          [
              sys.executable,
              '-m',
              'benchmarks.robot_batches',
              f'--case={case}',
              f'--folder={folder}',
              *sys.argv[1:],
          ],
          check=True,
          stdout=subprocess.PIPE,
          text=True,
      )
      found = json.loads(done.stdout.splitlines()[-1])
      values = ''.join(f'{value:10,.2f} {key}' for key, value in found.items())
      print(f'{case:22}{values}', flush=True)


if __name__ == '__main__':
  app.run(main)
