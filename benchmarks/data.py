"""RLDS data for the benchmarks: on disk, in the TFDS format, or generated."""

import contextlib
import math
import os
import tempfile
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from absl import flags
import numpy as np
import rlds
import tensorflow as tf
import tensorflow_datasets as tfds

OBSERVATION_SIZE = flags.DEFINE_integer(
    'observation_size', 17, 'Floats in an observation.', lower_bound=1
)
ACTION_SIZE = flags.DEFINE_integer(
    'action_size', 6, 'Floats in an action.', lower_bound=1
)
UNUSED_SIZE = flags.DEFINE_integer(
    'unused_size',
    0,
    'Floats in a field of the steps that no trajectory has; 0 for no field.',
    lower_bound=0,
)
EPISODE_LENGTH = flags.DEFINE_integer(
    'episode_length', 1000, 'Steps in an episode on disk.', lower_bound=2
)

# What observations are.
VECTORS = 'vectors'  # float32
NESTED = 'nested'  # dicts of float64, as of dm_control
IMAGES = 'images'  # PNG
KINDS = (VECTORS, NESTED, IMAGES)
IMAGE_SIZE = (84, 84)
_NESTED_SIZES = {
    'arm': {'position': 3, 'velocity': 3},
    'height': 1,
    'orientations': 14,
    'velocity': 9,
}

_NAME = 'synthetic'
_UNUSED = 'unused'
_NUM_DISTINCT_EPISODES = {VECTORS: 20, NESTED: 20, IMAGES: 2}
# The same for every size of data, since each file has buffers of its own.
_NUM_FILES = 4


def count_episodes(num_steps: int, length: Optional[int] = None) -> int:
  """Returns the number of whole episodes that have at least `num_steps`.

  Args:
    num_steps: how many steps.
    length: how many steps an episode has; by default `EPISODE_LENGTH`.
  """
  return math.ceil(num_steps / (length or EPISODE_LENGTH.value))


def whole_steps(num_steps: int) -> int:
  """Returns `num_steps`, rounded up to whole episodes."""
  return count_episodes(num_steps) * EPISODE_LENGTH.value


@contextlib.contextmanager
def temporary_episodes(num_steps: int, kind: str = VECTORS) -> Iterator[str]:
  """Writes episodes to a directory that exists only within the context.

  Args:
    num_steps: how many steps; rounded up to whole episodes.
    kind: what the observations are, one of `KINDS`.

  Yields:
    The directory.
  """
  with tempfile.TemporaryDirectory() as directory:
    write_episodes(directory, num_steps, kind)
    yield directory


def write_episodes(
    directory: str,
    num_steps: int,
    kind: str = VECTORS,
    length: Optional[int] = None,
) -> None:
  """Writes an RLDS data set that `tfds.builder_from_directory` reads.

  A few episodes are encoded, and their bytes written again and again.

  Args:
    directory: where to write; it must exist.
    num_steps: how many steps; rounded up to whole episodes.
    kind: what the observations are, one of `KINDS`.
    length: how many steps an episode has; by default `EPISODE_LENGTH`.
  """
  features = _features(kind)
  rng = np.random.default_rng(0)
  records = [
      features.serialize_example({rlds.STEPS: random_steps(rng, kind, length)})
      for _ in range(_NUM_DISTINCT_EPISODES[kind])
  ]
  num_episodes = count_episodes(num_steps, length)
  num_files = min(_NUM_FILES, num_episodes)
  _write_files(
      directory,
      features,
      [
          [
              records[episode % len(records)]
              for episode in range(index, num_episodes, num_files)
          ]
          for index in range(num_files)
      ],
  )


def write_mixed_episodes(
    directory: str, runs: Sequence[Tuple[int, int]]
) -> int:
  """Writes an RLDS data set of one file, with runs of equal episodes.

  Args:
    directory: where to write; it must exist.
    runs: how many episodes, and of how many steps, one after the other.

  Returns:
    The number of steps.
  """
  features = _features(VECTORS)
  rng = np.random.default_rng(0)
  records = []
  for count, length in runs:
    steps = random_steps(rng, VECTORS, length)
    records += [features.serialize_example({rlds.STEPS: steps})] * count
  _write_files(directory, features, [records])
  return sum(count * length for count, length in runs)


def _write_files(
    directory: str,
    features: tfds.features.FeaturesDict,
    files: Sequence[Sequence[bytes]],
) -> None:
  """Writes the records of each file, and the metadata."""
  template = tfds.core.ShardedFileTemplate(
      data_dir=directory,
      dataset_name=_NAME,
      split='train',
      filetype_suffix='tfrecord',
  )
  for index, records in enumerate(files):
    path = template.sharded_filepath(shard_index=index, num_shards=len(files))
    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
      for record in records:
        writer.write(record)
  tfds.folder_dataset.write_metadata(
      data_dir=directory,
      features=features,
      split_infos=[
          tfds.core.SplitInfo(
              name='train',
              shard_lengths=list(map(len, files)),
              num_bytes=0,
              filename_template=template,
          )
      ],
      filename_template=template,
      check_data=False,
  )


def read_stacked(directory: str, split: str = 'train') -> tf.data.Dataset:
  """Reads episodes whose steps are stacked `[T, ...]`."""
  return _read(
      directory, split, decoders={rlds.STEPS: tfds.decode.SkipDecoding()}
  )


def read_nested(directory: str, split: str = 'train') -> tf.data.Dataset:
  """Reads episodes whose steps are a nested data set."""
  return _read(directory, split)


def one_nested_episode(num_steps: int) -> tf.data.Dataset:
  """Returns one episode whose steps are generated in the graph."""

  def step(index):
    number = tf.cast(index, tf.float32)
    is_last = index == num_steps - 1
    unused = {_UNUSED: tf.fill([UNUSED_SIZE.value], number)}
    return {
        **(unused if UNUSED_SIZE.value else {}),
        rlds.OBSERVATION: tf.fill([OBSERVATION_SIZE.value], number),
        rlds.ACTION: tf.fill([ACTION_SIZE.value], number),
        rlds.REWARD: number,
        rlds.DISCOUNT: tf.constant(1.0),
        rlds.IS_FIRST: index == 0,
        rlds.IS_LAST: is_last,
        rlds.IS_TERMINAL: is_last,
    }

  return tf.data.Dataset.from_tensors(0).map(
      lambda _: {rlds.STEPS: tf.data.Dataset.range(num_steps).map(step)}
  )


def reading(dataset: tf.data.Dataset, rows: int) -> Callable[[], None]:
  """Returns a function that iterates `dataset` in the graph, once a call.

  The graph is traced in the first call.

  Args:
    dataset: the data set.
    rows: how many rows its elements have; others are a RuntimeError.
  """

  @tf.function
  def count_rows():
    return dataset.reduce(
        np.int64(0),
        lambda rows, element: rows
        + tf.shape(tf.nest.flatten(element)[0], tf.int64)[0],
    )

  def read():
    found = int(count_rows())
    if found != rows:
      raise RuntimeError(f'Expected {rows} rows, but got {found}.')

  return read


def reading_eagerly(
    dataset: tf.data.Dataset, elements: int
) -> Callable[[], None]:
  """Returns a function that iterates `dataset` in Python, as most users do.

  Args:
    dataset: the data set.
    elements: how many elements it has; others are a RuntimeError.
  """

  def read():
    found = sum(1 for _ in dataset)
    if found != elements:
      raise RuntimeError(f'Expected {elements} elements, but got {found}.')

  return read


def _read(directory, split='train', decoders=None):
  return tfds.builder_from_directory(directory).as_dataset(
      split=split,
      decoders=decoders,
      shuffle_files=False,
      read_config=tfds.ReadConfig(try_autocache=False),
  )


def _features(kind: str) -> tfds.features.FeaturesDict:
  observation = {
      VECTORS: tfds.features.Tensor(
          shape=(OBSERVATION_SIZE.value,), dtype=np.float32
      ),
      NESTED: tf.nest.map_structure(
          lambda size: tfds.features.Tensor(shape=(size,), dtype=np.float64),
          _NESTED_SIZES,
      ),
      IMAGES: tfds.features.Image(
          shape=(*IMAGE_SIZE, 3), encoding_format='png'
      ),
  }
  unused = {
      _UNUSED: tfds.features.Tensor(
          shape=(UNUSED_SIZE.value,), dtype=np.float32
      )
  }
  return tfds.features.FeaturesDict(
      {
          rlds.STEPS: tfds.features.Dataset(
              {
                  **(unused if UNUSED_SIZE.value else {}),
                  rlds.OBSERVATION: observation[kind],
                  rlds.ACTION: tfds.features.Tensor(
                      shape=(ACTION_SIZE.value,), dtype=np.float32
                  ),
                  rlds.REWARD: np.float32,
                  rlds.DISCOUNT: np.float32,
                  rlds.IS_FIRST: np.bool_,
                  rlds.IS_LAST: np.bool_,
                  rlds.IS_TERMINAL: np.bool_,
              }
          )
      }
  )


def random_steps(
    rng: np.random.Generator,
    kind: str = VECTORS,
    length: Optional[int] = None,
) -> Dict[str, Any]:
  """Returns the steps, `[T, ...]`, of one terminal episode."""
  length = length or EPISODE_LENGTH.value
  is_first = np.arange(length) == 0
  is_last = np.arange(length) == length - 1

  def normal(*shape):
    return rng.normal(size=(length, *shape)).astype(np.float32)

  def observation():
    if kind == NESTED:
      return tf.nest.map_structure(
          lambda size: normal(size).astype(np.float64), _NESTED_SIZES
      )
    if kind == IMAGES:
      # Of squares, that PNG has something to compress.
      squares = rng.integers(0, 255, (length, 7, 7, 3)).astype(np.uint8)
      height, width = (size // 7 for size in IMAGE_SIZE)
      return squares.repeat(height, axis=1).repeat(width, axis=2)
    return normal(OBSERVATION_SIZE.value)

  unused = {_UNUSED: normal(UNUSED_SIZE.value)}
  return {
      **(unused if UNUSED_SIZE.value else {}),
      rlds.OBSERVATION: observation(),
      rlds.ACTION: normal(ACTION_SIZE.value),
      rlds.REWARD: normal(),
      rlds.DISCOUNT: np.ones(length, np.float32),
      rlds.IS_FIRST: is_first,
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: is_last,
  }
