"""RLDS data for the benchmarks: generated, and on disk in the TFDS format."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import io
import math
import os
import tempfile
from typing import Any

from absl import flags
import numpy as np
from PIL import Image
import rlds
import tensorflow as tf
import tensorflow_datasets as tfds

EPISODE_LENGTH = flags.DEFINE_integer(
    'episode_length', 1000, 'Steps in an episode on disk.', lower_bound=2
)
OBSERVATION_SIZE, ACTION_SIZE = 17, 6  # float32
IMAGE_SIZE = (84, 84, 3)

_NAME = 'synthetic'
_NUM_FILES = 4


def count_episodes(num_steps: int) -> int:
  """Returns the number of complete episodes with at least `num_steps`."""
  return math.ceil(num_steps / EPISODE_LENGTH.value)


@contextlib.contextmanager
def temporary_episodes(
    num_steps: int, images: bool = False, length: int = 0
) -> Iterator[str]:
  """Writes a temporary RLDS data set.

  A few episodes are encoded, and their records are written repeatedly.

  Args:
    num_steps: the number of steps, rounded up to complete episodes.
    images: whether observations are PNG images instead of vectors.
    length: the number of steps of an episode, by default `--episode_length`.

  Yields:
    The folder of the data set.
  """
  length = length or EPISODE_LENGTH.value
  features = _features(images)
  rng = np.random.default_rng(0)
  records = [
      features.serialize_example(
          {rlds.STEPS: random_steps(rng, length, images)}
      )
      for _ in range(2 if images else 20)
  ]
  count = math.ceil(num_steps / length)
  files = [
      [records[i % len(records)] for i in range(first, count, _NUM_FILES)]
      for first in range(min(_NUM_FILES, count))
  ]
  with tempfile.TemporaryDirectory() as folder:
    _write_files(folder, features, files)
    yield folder


def _write_files(
    folder: str,
    features: tfds.features.FeaturesDict,
    files: Sequence[Sequence[bytes]],
) -> None:
  """Writes the records of each file, and the metadata."""
  template = tfds.core.ShardedFileTemplate(
      data_dir=folder,
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
      data_dir=folder,
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


def read_stacked(folder: str, split: str = 'train') -> tf.data.Dataset:
  """Reads episodes whose steps are stacked `[T, ...]`, by TFDS."""
  return _read(folder, split, {rlds.STEPS: tfds.decode.SkipDecoding()})


def read_nested(folder: str, split: str = 'train') -> tf.data.Dataset:
  """Reads episodes whose steps are a nested data set, by TFDS."""
  return _read(folder, split, None)


def _read(folder, split, decoders):
  return tfds.builder_from_directory(folder).as_dataset(
      split=split,
      decoders=decoders,
      shuffle_files=False,
      read_config=tfds.ReadConfig(try_autocache=False),
  )


def steps_of(episodes: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the steps, to measure reading; nested steps in batches."""
  if isinstance(episodes.element_spec[rlds.STEPS], tf.data.DatasetSpec):
    return episodes.flat_map(lambda episode: episode[rlds.STEPS].batch(1000))
  return episodes.map(lambda episode: episode[rlds.STEPS])


def reading(dataset: tf.data.Dataset, rows: int) -> Callable[[], None]:
  """Returns a function that iterates once over `dataset`, in a graph.

  Args:
    dataset: the data set.
    rows: the expected number of rows of all elements. The function raises a
      RuntimeError for another number.
  """

  @tf.function
  def count_rows():
    return dataset.reduce(
        np.int64(0),
        lambda rows, element: rows
        + tf.shape(tf.nest.flatten(element)[0], tf.int64)[0],
    )

  def read():
    num_rows = int(count_rows())
    if num_rows != rows:
      raise RuntimeError(f'Expected {rows} rows, but got {num_rows}.')

  return read


def _features(images: bool) -> tfds.features.FeaturesDict:
  vector = lambda size: tfds.features.Tensor(shape=(size,), dtype=np.float32)
  flags_of = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
  return tfds.features.FeaturesDict(
      {
          rlds.STEPS: tfds.features.Dataset(
              {
                  rlds.OBSERVATION: tfds.features.Image(
                      shape=IMAGE_SIZE, encoding_format='png'
                  )
                  if images
                  else vector(OBSERVATION_SIZE),
                  rlds.ACTION: vector(ACTION_SIZE),
                  rlds.REWARD: np.float32,
                  rlds.DISCOUNT: np.float32,
                  **dict.fromkeys(flags_of, np.bool_),
              }
          )
      }
  )


def random_steps(
    rng: np.random.Generator, length: int, images: bool = False
) -> dict[str, Any]:
  """Returns the steps, `[T, ...]`, of one terminal episode."""
  is_last = np.arange(length) == length - 1
  normal = lambda *shape: rng.normal(size=(length, *shape)).astype(np.float32)
  observation = normal(OBSERVATION_SIZE)
  if images:
    # Squares of one color, which PNG compresses.
    squares = rng.integers(0, 255, (length, 7, 7, 3)).astype(np.uint8)
    observation = squares.repeat(12, axis=1).repeat(12, axis=2)
  return {
      rlds.OBSERVATION: observation,
      rlds.ACTION: normal(ACTION_SIZE),
      rlds.REWARD: normal(),
      rlds.DISCOUNT: np.ones(length, np.float32),
      rlds.IS_FIRST: np.arange(length) == 0,
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: is_last,
  }


def jpeg(rng: np.random.Generator, size: tuple[int, int]) -> bytes:
  """Returns an encoded image with noise, about 20 KB for 256x256 pixels."""
  y, x = np.mgrid[: size[0], : size[1]]
  waves = np.sin(x / rng.uniform(5, 30)) + np.cos(y / rng.uniform(5, 30))
  pixels = 120 + 50 * waves[..., np.newaxis] + rng.normal(size=3) * 20
  pixels = pixels + rng.normal(size=[*size, 3]) * 8
  encoded = io.BytesIO()
  image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
  image.save(encoded, 'jpeg', quality=90)
  return encoded.getvalue()
