"""Batches for robots from two cameras, beside a shuffle buffer and decoding.

    python -m benchmarks.robot_batches

Two data sets of 256x256 JPEGs are mixed; items have 2 observations and chunks
of 4 actions, images of 224x224 by Lanczos, batches of 64. Every case has a
process of its own. Of each it prints the images a second, the CPU time of an
image, the time to the first batch, and how much memory grew by after the tenth
batch, and at the most.

- `random access` opens indexes, which `index` has built, and reads in threads.
- `shuffle buffer` is what Octo and OpenVLA do, in `tf.data`: chunks of whole
  episodes, a buffer of encoded frames, decoding and resizing by TensorFlow.
- `decoding` decodes and resizes images in memory with the same two threads, by
  what random access uses; `decoding, TensorFlow` by TensorFlow.
"""

from concurrent import futures
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags
import numpy as np
from PIL import Image

_EPISODES = flags.DEFINE_integer('episodes', 10, 'Episodes of a data set.')
_STEPS = flags.DEFINE_integer('steps', 50, 'Steps of an episode.')
_BATCHES = flags.DEFINE_integer('batches', 20, 'Batches that are timed.')
_BUFFER = flags.DEFINE_integer('buffer', 500, 'Frames of the shuffle buffer.')
_CASE = flags.DEFINE_string('case', '', 'The one case to run, in this process.')
_FOLDER = flags.DEFINE_string('folder', '', 'Where its data is.')

_CAMERAS = ('eye', 'wrist')
_BATCH, _FRAMES, _ACTIONS, _SIZE = 64, 2, 4, (224, 224)
_THREADS = 2
_IMAGES = _BATCH * _FRAMES * len(_CAMERAS)
_SOURCES = ('one', 'two')


def _encoded(rng) -> bytes:
  """Returns a JPEG of about 25 KB."""
  y, x = np.mgrid[:256, :256]
  waves = np.sin(x / rng.uniform(5, 30)) + np.cos(y / rng.uniform(5, 30))
  pixels = 120 + 50 * waves[..., np.newaxis] + rng.normal(size=3) * 20
  pixels = pixels + rng.normal(size=[256, 256, 3]) * 8
  encoded = io.BytesIO()
  image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
  image.save(encoded, 'jpeg', quality=90)
  return encoded.getvalue()


def _write(folder: str, seed: int) -> None:
  # pylint: disable=g-import-not-at-top
  import tensorflow_datasets as tfds

  from tests import tfds_files

  rng = np.random.default_rng(seed)
  # Encoding takes most of the time, so images come again.
  images = [_encoded(rng) for _ in range(100)]
  image = tfds.features.Image(shape=(256, 256, 3), encoding_format='jpeg')
  vector = tfds.features.Tensor(shape=(7,), dtype=np.float32)
  features = {
      'steps': tfds.features.Dataset(
          {
              'observation': {camera: image for camera in _CAMERAS},
              'action': vector,
              'reward': np.float32,
              'discount': np.float32,
              'is_first': np.bool_,
              'is_last': np.bool_,
              'is_terminal': np.bool_,
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

  tfds_files.write(
      folder,
      features,
      (
          {'steps': list(map(step, range(_STEPS.value)))}
          for _ in range(_EPISODES.value)
      ),
  )


def _directory(source: str) -> str:
  return os.path.join(_FOLDER.value, source, '1.0.0')


def _index():
  # pylint: disable=g-import-not-at-top
  from rlds2reverb import random_access

  num_bytes = 0
  for source in _SOURCES:
    for path in pathlib.Path(_directory(source)).glob('*tfrecord*'):
      num_bytes += len(path.read_bytes())  # It is in memory then.
  begin = time.perf_counter()
  for source in _SOURCES:
    random_access.build_index(
        _directory(source), os.path.join(_FOLDER.value, f'{source}_index')
    )
  return num_bytes / (time.perf_counter() - begin) / 1e6


def _random_access():
  # pylint: disable=g-import-not-at-top
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


def _shuffle_buffer():
  # pylint: disable=g-import-not-at-top
  import tensorflow as tf
  import tensorflow_datasets as tfds

  from rlds2reverb import datasets
  from rlds2reverb import windows

  def frames_of(source):
    skip = {camera: tfds.decode.SkipDecoding() for camera in _CAMERAS}
    episodes = datasets.load_episodes(
        _directory(source), decoders={'steps': {'observation': skip}}
    )
    return episodes.repeat().flat_map(
        lambda episode: tf.data.Dataset.from_tensor_slices(
            windows.stack_and_chunk(episode['steps'], _FRAMES, _ACTIONS)
        )
    )

  def decode(frame):
    def one(encoded):
      image = tf.io.decode_image(encoded, 3, expand_animations=False)
      image = tf.image.resize(image, _SIZE, 'lanczos3', antialias=True)
      return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)

    frame['observation'] = {
        camera: tf.map_fn(one, images, fn_output_signature=tf.uint8)
        for camera, images in frame['observation'].items()
    }
    return frame

  return iter(
      tf.data.Dataset.sample_from_datasets(
          [frames_of(source) for source in _SOURCES], seed=0
      )
      .shuffle(_BUFFER.value)
      .map(decode, num_parallel_calls=_THREADS)
      .batch(_BATCH)
      .prefetch(1)
      .as_numpy_iterator()
  )


def _decoding():
  # pylint: disable=g-import-not-at-top
  from rlds2reverb.random_access import images as images_lib

  rng = np.random.default_rng(0)
  images = [_encoded(rng) for _ in range(_IMAGES)]
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
  images = tf.constant([_encoded(rng) for _ in range(_IMAGES)])

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
    'shuffle buffer': _shuffle_buffer,
    'decoding': _decoding,
    'decoding, TensorFlow': _decoding_tensorflow,
}


def _memory(name: str) -> float:
  status = pathlib.Path('/proc/self/status').read_text()
  fields = dict(line.split(':', 1) for line in status.splitlines())
  return int(fields[name].split()[0]) / 1024


def _run_case() -> None:
  """Runs a case, and prints what it took as JSON."""
  if _CASE.value == 'write':
    for seed, source in enumerate(_SOURCES):
      _write(_directory(source), seed)
    print(json.dumps({}))
    return
  if _CASE.value == 'index':
    print(json.dumps({'MB/s': _index()}))
    return
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
  count = _IMAGES * _BATCHES.value
  found = {
      'images/s': count / seconds,
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
    for case in ('write', 'index', *_CASES):
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
