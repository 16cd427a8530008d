"""Tests of step features that TFDS writes but cannot read."""

import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb import jobs
from rlds2reverb import random_access
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import windows
from tests import tfds_files

_F = tfds.features
_FLAGS = {
    **dict.fromkeys(('action', 'reward', 'discount'), np.float32),
    **dict.fromkeys(('is_first', 'is_last', 'is_terminal'), np.bool_),
}
_LENGTH = 3


def _image(step):
  return np.full((4, 5, 3), step, np.uint8)


# A feature, a function that returns its value for a step, and a function that
# returns the value after reading, if it differs.
_FIELDS = {
    'numbers': (_F.Sequence(np.float32, length=2), lambda t: [t, t + 1]),
    'bools': (_F.Sequence(np.bool_, length=2), lambda t: [t > 1, True]),
    'rows': (
        _F.Sequence(_F.Tensor(shape=(2,), dtype=np.int64), length=3),
        lambda t: [[t, 1], [t, 2], [t, 3]],
    ),
    'nested': (
        _F.Sequence(_F.Sequence(np.int64, length=2), length=3),
        lambda t: [[t, 1], [t, 2], [t, 3]],
    ),
    'compressed': (
        _F.Sequence(
            _F.Tensor(shape=(2,), dtype=np.float64, encoding='zlib'), length=2
        ),
        lambda t: np.array([[t, 1], [t, 2]], np.float64),
    ),
    'video': (_F.Video(shape=(2, 4, 5, 3)), lambda t: [_image(t)] * 2),
    'images': (
        _F.Sequence(_F.Image(shape=(4, 5, 3)), length=2),
        lambda t: [_image(t)] * 2,
    ),
    'texts': (_F.Sequence(_F.Text(), length=2), lambda t: [b'a', b'%d' % t]),
    'labels': (
        _F.Sequence(_F.ClassLabel(names=['a', 'b', 'c']), length=2),
        lambda t: [t, 0],
    ),
}


def _write(directory, feature, value, file_format='tfrecord'):
  tfds_files.write(
      directory,
      {
          'steps': _F.Dataset(
              {'observation': {'f': feature, 'x': np.float32}, **_FLAGS}
          )
      },
      [
          {
              'steps': [
                  {
                      'observation': {'f': value(t), 'x': t},
                      **dict.fromkeys(('action', 'reward', 'discount'), 1),
                      'is_first': t == 0,
                      'is_last': t == _LENGTH - 1,
                      'is_terminal': False,
                  }
                  for t in range(_LENGTH)
              ]
          }
      ]
      * 2,
      file_format=file_format,
  )


@pytest.mark.long
class ReadableFeaturesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*_FIELDS)
  def test_sequences_of_fixed_length(self, name):
    feature, value = _FIELDS[name]
    directory = self.create_tempdir().full_path
    _write(directory, feature, value)
    episodes = loading.load_episodes(directory)
    wanted = np.stack([np.asarray(value(t)) for t in range(_LENGTH)])
    spec = episodes.element_spec['steps']['observation']['f']
    self.assertEqual(spec.shape.as_list(), [None, *wanted.shape[1:]])
    actual = [each['steps']['observation']['f'] for each in episodes]
    self.assertLen(actual, 2)
    self.assertAllEqual(actual[1], wanted)

  def test_dicts_in_a_sequence_of_fixed_length(self):
    directory = self.create_tempdir().full_path
    _write(
        directory,
        _F.Sequence({'a': np.float32, 'b': _F.Sequence(np.int64)}, length=2),
        lambda t: [{'a': t, 'b': [1]}, {'a': 9, 'b': [1] * t}],
    )
    [actual, _] = loading.load_episodes(directory)
    actual = actual['steps']['observation']['f']
    self.assertAllEqual(actual['a'], [[0, 9], [1, 9], [2, 9]])
    self.assertEqual(
        actual['b'].to_list(), [[[1], []], [[1], [1]], [[1], [1, 1]]]
    )

  def test_features_in_batches_and_in_saved_copies(self):
    feature, value = _FIELDS['numbers']
    directory = self.create_tempdir().full_path
    _write(directory, feature, value)
    folder = self.create_tempdir().full_path
    batch = random_access.open_batches(
        {'x': directory}, folder, 4, windows.Windows(1)
    )[0]
    actual = batch['observation']
    self.assertAllEqual(
        actual['f'], np.stack([actual['x'], actual['x'] + 1], -1)
    )
    copied = saving.save_episodes(
        loading.load_episodes(directory), os.path.join(folder, 'copy')
    )
    self.assertAllEqual(
        next(iter(loading.load_episodes(copied)))['steps']['observation']['f'],
        [[0, 1], [1, 2], [2, 3]],
    )


@pytest.mark.long
class SavedSpecsTest(parameterized.TestCase, tf.test.TestCase):
  """What `save_episodes` takes, all readers must read."""

  @parameterized.parameters('complex', 'empty', 'only_empty', 'no_values')
  def test_saved_and_read(self, case):
    state = np.arange(12, dtype=np.float32).reshape(4, 3)
    observation = {
        'complex': {
            'c64': state.astype(np.complex64) * 1j,
            'scalar': state[:, 0].astype(np.complex128) * (1 - 2j),
            'large': np.full((4, 200), 3j, np.complex128),
        },
        'empty': {'a': state, 'extra': {}, 'deep': {'b': {}, 'c': state}},
        'only_empty': {'a': {}, 'b': {'c': {}}},
        'no_values': {'a': state, 'z': np.zeros((4, 0), np.float32)},
    }[case]
    index = np.arange(4)
    ones = np.ones(4, np.float32)
    episode = {
        'steps': {
            'observation': observation,
            'action': index,
            'reward': ones,
            'discount': ones,
            'is_first': index == 0,
            'is_last': index == 3,
            'is_terminal': index > 9,
        },
        'info': {'k': np.int64(3), 'none': {}},
        'nothing': {},
    }
    folder = self.create_tempdir().full_path
    data = tf.data.Dataset.from_tensors(episode)
    saved = saving.save_episodes(data, os.path.join(folder, 'data'))
    [actual] = loading.load_episodes(saved).as_numpy_iterator()
    tf.nest.assert_same_structure(actual, episode)
    for actual_leaf, expected_leaf in zip(
        tf.nest.flatten(actual), tf.nest.flatten(episode)
    ):
      self.assertEqual(actual_leaf.dtype, expected_leaf.dtype)
      np.testing.assert_array_equal(actual_leaf, expected_leaf)
    jobs.describe(loading.load_episodes(saved))
    batch = random_access.open_batches(
        {'x': saved}, os.path.join(folder, 'index'), 4, windows.Windows(1)
    )[0]
    # An index has no empty dicts.
    leaves = tf.nest.flatten(batch.get('observation', {}))
    self.assertLen(leaves, len(tf.nest.flatten(observation)))
    rows = batch['action'][:, 0]
    for actual_leaf, expected_leaf in zip(leaves, tf.nest.flatten(observation)):
      self.assertAllEqual(actual_leaf[:, 0], expected_leaf[rows])


if __name__ == '__main__':
  tf.test.main()
