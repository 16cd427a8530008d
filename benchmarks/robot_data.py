"""Writes data sets of two cameras, for the benchmarks of robot data."""

import io

import numpy as np
from PIL import Image

CAMERAS = ('eye', 'wrist')


def encoded(rng, size: int = 256) -> bytes:
  """Returns a JPEG, of about 20 KB if the size is 256."""
  y, x = np.mgrid[:size, :size]
  waves = np.sin(x / rng.uniform(5, 30)) + np.cos(y / rng.uniform(5, 30))
  pixels = 120 + 50 * waves[..., np.newaxis] + rng.normal(size=3) * 20
  pixels = pixels + rng.normal(size=[size, size, 3]) * 8
  encoded = io.BytesIO()
  image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
  image.save(encoded, 'jpeg', quality=90)
  return encoded.getvalue()


def write(
    folder: str, num_episodes: int, num_steps: int, size: int, seed: int = 0
) -> None:
  """Writes a TFDS data set of two cameras, of square images."""
  # pylint: disable=g-import-not-at-top
  import tensorflow_datasets as tfds

  from tests import tfds_files

  rng = np.random.default_rng(seed)
  # Encoding takes most of the time, so images come again.
  images = [encoded(rng, size) for _ in range(100)]
  image = tfds.features.Image(shape=(size, size, 3), encoding_format='jpeg')
  vector = tfds.features.Tensor(shape=(7,), dtype=np.float32)
  features = {
      'steps': tfds.features.Dataset(
          {
              'observation': {camera: image for camera in CAMERAS},
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
            for camera in CAMERAS
        },
        'action': rng.normal(size=7).astype(np.float32),
        'reward': 0.0,
        'discount': 1.0,
        'is_first': place == 0,
        'is_last': place == num_steps - 1,
        'is_terminal': False,
    }

  tfds_files.write(
      folder,
      features,
      (
          {'steps': list(map(step, range(num_steps)))}
          for _ in range(num_episodes)
      ),
  )
