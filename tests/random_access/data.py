"""Writes random RLDS data sets with all kinds of features."""

from collections.abc import Sequence
import io
from typing import Any

import numpy as np
from PIL import Image
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from tests import tfds_files

JPEG_SHAPE = (12, 16, 3)

FEATURES = {
    'instruction': tfds.features.Text(),
    'cover': tfds.features.Image(shape=(None, None, 3), encoding_format='png'),
    'steps': tfds.features.Dataset(
        {
            'observation': tfds.features.FeaturesDict(
                {
                    'image': tfds.features.Image(
                        shape=JPEG_SHAPE, encoding_format='jpeg'
                    ),
                    'depth': tfds.features.Image(
                        shape=(6, 5, 1), dtype=np.uint16, encoding_format='png'
                    ),
                    'state': tfds.features.Tensor(shape=(3,), dtype=np.float32),
                    'pose': tfds.features.Tensor(
                        shape=(2, 2), dtype=np.float64
                    ),
                    'map': tfds.features.Tensor(
                        shape=(20, 20), dtype=np.float32
                    ),
                    'touch': tfds.features.Tensor(shape=(4,), dtype=np.uint8),
                    'zipped': tfds.features.Tensor(
                        shape=(3,),
                        dtype=np.int32,
                        encoding=tfds.features.Encoding.ZLIB,
                    ),
                }
            ),
            'action': tfds.features.FeaturesDict(
                {
                    'arm': tfds.features.Tensor(shape=(2,), dtype=np.float32),
                    'mode': tfds.features.ClassLabel(num_classes=3),
                }
            ),
            'words': tfds.features.Text(),
            'reward': np.float32,
            'discount': np.float32,
            'is_first': np.bool_,
            'is_last': np.bool_,
            'is_terminal': np.bool_,
        }
    ),
}


def image(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
  """Returns a random uint8 image that is not only noise."""
  y, x = np.mgrid[:height, :width]
  waves = np.sin(x / rng.uniform(3, 9)) + np.cos(y / rng.uniform(3, 9))
  pixels = 120 + 50 * waves[..., np.newaxis] + rng.normal(size=3) * 20
  pixels = pixels + rng.normal(size=(height, width, 3)) * 4
  return np.clip(pixels, 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray) -> bytes:
  """Returns an image encoded as JPEG."""
  encoded = io.BytesIO()
  Image.fromarray(pixels).save(encoded, 'jpeg', quality=90)
  return encoded.getvalue()


def episode(
    rng: np.random.Generator, number: int, length: int
) -> dict[str, Any]:
  """Returns an episode of random steps."""
  is_terminal = bool(rng.integers(2))

  def step(place):
    return {
        'observation': {
            'image': image(rng, *JPEG_SHAPE[:2]),
            'depth': rng.integers(0, 1 << 16, (6, 5, 1)).astype(np.uint16),
            'state': rng.normal(size=3).astype(np.float32),
            'pose': rng.normal(size=(2, 2)),
            'map': rng.normal(size=(20, 20)).astype(np.float32),
            'touch': rng.integers(0, 256, 4).astype(np.uint8),
            'zipped': rng.integers(-9, 9, 3).astype(np.int32),
        },
        'action': {
            'arm': rng.normal(size=2).astype(np.float32),
            'mode': int(rng.integers(3)),
        },
        'words': f'{number} {place}' * int(rng.integers(3)),
        'reward': np.float32(rng.normal()),
        'discount': np.float32(rng.uniform()),
        'is_first': place == 0,
        'is_last': place == length - 1,
        'is_terminal': place == length - 1 and is_terminal,
    }

  return {
      'instruction': f'task {number}',
      'cover': image(rng, 5, 4 + number % 3),
      'steps': [step(place) for place in range(length)],
  }


def write(
    directory: str, lengths: Sequence[int], seed: int = 0, per_file: int = 2
) -> None:
  """Writes a data set of episodes of these lengths."""
  rng = np.random.default_rng(seed)
  tfds_files.write(
      directory,
      FEATURES,
      [episode(rng, *pair) for pair in enumerate(lengths)],
      max_episodes_per_file=per_file,
  )


def encoded() -> dict[str, Any]:
  """Returns TFDS decoders that do not decode images."""
  skip = tfds.decode.SkipDecoding()
  return {
      'cover': skip,
      'steps': {'observation': {'image': skip, 'depth': skip}},
  }


def as_list(dataset: tf.data.Dataset) -> list[Any]:
  """Returns the elements of a data set as nests of arrays."""
  return list(dataset.as_numpy_iterator())


def leaves(nest: Any) -> dict[str, Any]:
  """Returns the leaves of a nest by their paths."""
  return {
      '/'.join(map(str, keys)): leaf
      for keys, leaf in tree.flatten_with_path(nest)
  }


def assert_equal(test: Any, expected: Any, actual: Any) -> None:
  """Asserts that nests are equal in structure, dtypes, shapes and values."""
  tree.assert_same_structure(expected, actual)
  for (path, one), other in zip(
      tree.flatten_with_path(expected), tree.flatten(actual)
  ):
    one, other = np.asarray(one), np.asarray(other)
    test.assertEqual((one.dtype, one.shape), (other.dtype, other.shape), path)
    np.testing.assert_array_equal(one, other, str(path))
