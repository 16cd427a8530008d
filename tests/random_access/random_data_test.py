"""Items of random data sets, compared with what `tf.data` makes of them."""

import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

import rlds2reverb
from rlds2reverb import random_access
from rlds2reverb import windows
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import windows as windows_lib
from tests import tfds_files
from tests.random_access import data
from tests.replay.local import cuts

_DTYPES = ('bool', 'uint8', 'int8', 'int32', 'int64', 'float32', 'float64')


def _numbers(rng, shape, dtype):
  return (rng.normal(size=shape) * 50).astype(dtype)


def _feature(rng):
  """Returns a random feature, and a function that draws its values."""
  kind = rng.integers(8)
  dtype = np.dtype(str(rng.choice(_DTYPES)))
  shape = tuple(map(int, rng.integers(1, 5, rng.integers(0, 3))))
  if kind == 0:
    return tfds.features.Text(), lambda: 'word ' * int(rng.integers(4))
  if kind == 1:
    feature = tfds.features.ClassLabel(num_classes=5)
    return feature, lambda: int(rng.integers(5))
  if kind in (2, 3):
    size = *map(int, rng.integers(3, 20, 2)), 3
    encoding = ('jpeg', 'png')[kind - 2]
    feature = tfds.features.Image(shape=size, encoding_format=encoding)
    return feature, lambda: data.image(rng, *size[:2])
  if kind == 4:
    feature = tfds.features.Image(
        shape=(4, 3, 1), dtype=np.uint16, encoding_format='png'
    )
    return feature, lambda: rng.integers(0, 1 << 16, (4, 3, 1)).astype(
        np.uint16
    )
  if kind == 5:
    # Large columns have files of their own.
    feature = tfds.features.Tensor(shape=(300,), dtype=np.float32)
    return feature, lambda: _numbers(rng, [300], np.float32)
  if kind == 6 and shape:
    feature = tfds.features.Tensor(
        shape=shape, dtype=dtype, encoding=tfds.features.Encoding.ZLIB
    )
    return feature, lambda: _numbers(rng, shape, dtype)
  feature = tfds.features.Tensor(shape=shape, dtype=dtype)
  return feature, lambda: _numbers(rng, shape, dtype)


def _write(rng, directory):
  """Writes a random data set; returns its decoders and its number of steps."""
  groups = {
      'observation': int(rng.integers(1, 5)),
      'action': int(rng.integers(1, 3)),
      'others': int(rng.integers(1, 3)),
  }
  features, draws, decoders = ({name: {} for name in groups} for _ in range(3))
  for name, number in groups.items():
    for key in map(str, range(number)):
      features[name][key], draws[name][key] = _feature(rng)
      if isinstance(features[name][key], tfds.features.Image):
        decoders[name][key] = tfds.decode.SkipDecoding()
  lengths = rng.integers(1, 9, rng.integers(2, 8)).tolist()

  def step(place, length):
    return {
        **tree.map_structure(lambda draw: draw(), draws),
        'reward': float(rng.normal()),
        'discount': 1.0,
        'is_first': place == 0,
        'is_last': place == length - 1,
        'is_terminal': False,
    }

  tfds_files.write(
      directory,
      {
          'steps': tfds.features.Dataset(
              {
                  **features,
                  'reward': np.float32,
                  'discount': np.float32,
                  'is_first': np.bool_,
                  'is_last': np.bool_,
                  'is_terminal': np.bool_,
              }
          )
      },
      [
          {'steps': [step(place, length) for place in range(length)]}
          for length in lengths
      ],
      max_episodes_per_file=int(rng.integers(1, 4)),
  )
  return {'steps': decoders}, len(lengths)


def expected_episodes(episodes):
  return stacked_steps.stack_episodes(episodes).as_numpy_iterator()


@pytest.mark.long
class RandomDataTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*range(12))
  def test_items_are_those_of_tf_data(self, seed):
    rng = np.random.default_rng(seed)
    folder = self.create_tempdir().full_path
    directory = os.path.join(folder, '1.0.0')
    decoders, count = _write(rng, directory)
    middle = int(rng.integers(1, count))
    split = str(rng.choice(['train', f'train[{middle}:]+train[:{middle}]']))
    episodes = rlds2reverb.load_episodes(directory, split, decoders=decoders)
    frames, actions = map(int, rng.integers(1, 4, 2))
    fill = str(rng.choice(['repeat', 'zeros']))
    chunks = episodes.flat_map(
        lambda episode: tf.data.Dataset.from_tensor_slices(
            windows.stack_and_chunk(episode['steps'], frames, actions, fill)
        )
    )
    index = random_access.build_index(
        directory, os.path.join(folder, 'index'), split
    )
    chosen = random_access.ActionChunks(frames, actions, fill)
    items = random_access.Items(index, chosen)
    expected = list(chunks.as_numpy_iterator())
    self.assertLen(items, len(expected))
    for number in rng.permutation(len(items)).tolist():
      data.assert_equal(self, expected[number], items[number])
    # Windows of steps, found by the oracle of replay buffers.
    steps = [
        tree.flatten(episode['steps'])
        for episode in expected_episodes(episodes)
    ]
    lengths = [len(leaves[0]) for leaves in steps]
    columns = [np.concatenate(leaves) for leaves in zip(*steps)]
    ends = list(windows_lib.EndOfEpisode)
    length, stride = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    window = windows_lib.Windows(length, stride, ends[seed % len(ends)])
    items = random_access.Items(index, window, with_mask=True)
    expected = cuts.cut_rows(lengths, length, stride, window.end.value)
    self.assertLen(items, len(expected))
    for number, rows in enumerate(expected):
      item = items[number]
      is_real = item.pop('mask')
      rows = np.array(rows)
      if window.end != 'repeat_last':
        self.assertAllEqual(is_real, rows >= 0)
      for leaf, column in zip(tree.flatten(item), columns):
        self.assertAllEqual(leaf[rows >= 0], column[rows[rows >= 0]])
        for filled in leaf[rows < 0]:
          self.assertIn(np.ravel(filled).tolist()[:1], [[0], [b''], []])


if __name__ == '__main__':
  tf.test.main()
