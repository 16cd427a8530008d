"""Episodes with every feature whose steps TFDS decodes one by one."""

import numpy as np
import tensorflow_datasets as tfds

FEATURES = {
    'episode_id': np.int64,
    'note': tfds.features.Text(),
    'metadata': {
        'weights': tfds.features.Tensor(shape=(2, 2), dtype=np.float64),
        'solved': np.bool_,
        'map': tfds.features.Image(shape=(2, 3, 1)),
    },
    'steps': tfds.features.Dataset(
        {
            'observation': {
                'image': tfds.features.Image(shape=(4, 5, 3)),
                'state': tfds.features.Tensor(shape=(3, 2), dtype=np.float64),
                'depth': tfds.features.Tensor(
                    shape=(3, 2), dtype=np.uint16, encoding='zlib'
                ),
                'mask': tfds.features.Tensor(
                    shape=(4,), dtype=np.bool_, encoding='bytes'
                ),
                'words': tfds.features.Text(),
            },
            'action': tfds.features.Tensor(shape=(1,), dtype=np.int8),
            'reward': np.float32,
            'count': np.uint64,
            'is_first': np.bool_,
            'box': tfds.features.BBoxFeature(),
            'label': tfds.features.ClassLabel(names=['a', 'b']),
        }
    ),
}


def make_episode(rng, index, length):
  """Returns an episode of random values."""
  image = lambda *shape: rng.integers(0, 256, shape, dtype=np.uint8)
  return {
      'episode_id': index,
      'note': f'episode {index}',
      'metadata': {
          'weights': rng.normal(size=(2, 2)),
          'solved': index % 2 == 0,
          'map': image(2, 3, 1),
      },
      'steps': [
          {
              'observation': {
                  'image': image(4, 5, 3),
                  'state': rng.normal(size=(3, 2)),
                  'depth': rng.integers(0, 9999, (3, 2), dtype=np.uint16),
                  'mask': rng.integers(0, 2, 4) == 1,
                  'words': f'step {t} of {index}',
              },
              'action': rng.integers(-128, 128, 1, dtype=np.int8),
              'reward': rng.normal(),
              'count': t,
              'is_first': t == 0,
              'box': tfds.features.BBox(0.0, 0.25, 0.5, 1.0),
              'label': 'ab'[t % 2],
          }
          for t in range(length)
      ],
  }
