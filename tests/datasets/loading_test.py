"""Tests of reading RLDS data sets from disk, stacked."""

import itertools
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb import trajectories
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import loading
from tests import ram_files  # noqa: F401
from tests import tfds_files

_RECORDED = os.path.join(
    os.path.dirname(os.path.dirname(__file__)),
    'data',
    'recorded',
    'cartpole_pixels',
)
_FEATURES = {
    'episode_id': np.int64,
    'steps': tfds.features.Dataset(
        {
            'action': tfds.features.Tensor(shape=(1,), dtype=np.int8),
            'image': tfds.features.Image(shape=(None, None, 3)),
            'tags': tfds.features.Sequence(np.int32),
        }
    ),
}
_SKIP = tfds.decode.SkipDecoding()


def _episode(index, length):
  """Returns an episode whose images are of one size, and tell its index."""
  image = np.full((4 + index, 5, 3), index, np.uint8)
  return {
      'episode_id': index,
      'steps': [
          {'action': [t], 'image': image + 9 * t, 'tags': list(range(t))}
          for t in range(length)
      ],
  }


class LoadEpisodesTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._directory = os.path.join(
        tf.compat.v1.test.get_temp_dir(), 'mixed_features'
    )
    # Some have no steps.
    cls._episodes = [_episode(index, index % 4) for index in range(7)]
    tfds_files.write(cls._directory, _FEATURES, cls._episodes)

  def test_features_that_are_not_batched(self):
    loaded = loading.load_episodes(self._directory)
    for episode, written in zip(loaded, self._episodes, strict=True):
      steps = episode['steps']
      self.assertEqual(episode['episode_id'], written['episode_id'])
      self.assertLen(steps['action'], len(written['steps']))
      for t, step in enumerate(written['steps']):
        for name, value in step.items():
          self.assertAllEqual(steps[name][t], value)
    spec = loaded.element_spec['steps']
    self.assertEqual(spec['action'], tf.TensorSpec([None, 1], tf.int8))
    image = tf.TensorSpec([None, None, None, 3], tf.uint8)
    self.assertEqual(spec['image'], image)

  @parameterized.parameters((None,), ({'steps': {'action': _SKIP}},))
  def test_images_of_varying_size(self, decoders):
    episode, other = _episode(3, 3), _episode(2, 2)
    image = other['steps'][0]['image']
    episode['steps'][2]['image'] = image
    directory = os.path.join(self.create_tempdir().full_path, 'varying')
    tfds_files.write(directory, _FEATURES, [other, episode])
    loaded = iter(loading.load_episodes(directory, decoders=decoders))
    self.assertAllEqual(next(loaded)['steps']['image'][0], image)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        r'images steps/image must all have one size.*'
        r'SkipDecoding.* \[2\] \[6 5 3\] \[7 5 3\]',
    ):
      next(loaded)
    skip = {'steps': {'image': _SKIP}}
    (last,) = loading.load_episodes(directory, decoders=skip).skip(1)
    actual = tf.io.decode_png(last['steps']['image'][2])
    self.assertAllEqual(actual, image)

  def test_splits_and_shards(self):
    halves = tfds.even_splits('train', 2)
    for split, kwargs, ids in (
        ('train[:1]+train[6:]', {}, [0, 6]),
        (halves[1], {}, [4, 5, 6]),
        (halves[0], {'num_shards': 2, 'shard_index': 1}, [2, 3]),
        ('train', {'num_shards': 3, 'shard_index': 1}, [3, 4]),
    ):
      loaded = loading.load_episodes(self._directory, split, **kwargs)
      self.assertEqual([int(e['episode_id']) for e in loaded], ids)

  @parameterized.named_parameters(
      ('mapped', lambda episodes: episodes.map(lambda episode: episode)),
      ('frames', trajectories.convert_rlds_to_trajectories),
  )
  @pytest.mark.few(1)
  def test_an_iterator_can_be_saved(self, make):
    dataset = make(loading.load_episodes(_RECORDED))
    iterator = iter(dataset)
    next(iterator)
    path = self.create_tempfile().full_path
    tf.train.Checkpoint(iterator=iterator).write(path)
    restored = iter(dataset)
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    left = dataset.skip(1).as_numpy_iterator()
    for actual_value, expected_value in itertools.zip_longest(restored, left):
      tree.map_structure(self.assertAllEqual, actual_value, expected_value)

  def test_by_name(self):
    data_dir = self.create_tempdir().full_path
    name = 'd4rl_mujoco_hopper'
    with self.assertRaisesRegex(FileNotFoundError, f'{name}.*Prepare it'):
      loading.load_episodes(name, data_dir=data_dir)
    directory = os.path.join(data_dir, 'written', '1.0.0')
    tfds_files.write(directory, _FEATURES, self._episodes)
    episodes = loading.load_episodes('written', data_dir=data_dir)
    self.assertEqual([int(e['episode_id']) for e in episodes], [*range(7)])

  def test_records_that_are_not_strings(self):
    directory = self.create_tempdir().full_path
    steps = {'pair': tfds.features.Sequence(np.int64, length=2)}
    tfds_files.write(
        directory,
        {'steps': tfds.features.Dataset(steps)},
        [{'steps': [{'pair': [1, 2]}]}],
    )
    adapters = tfds.core.file_adapters
    parquet = tfds.ReadConfig(file_format=adapters.FileFormat.PARQUET)
    numbers = mock.patch.object(
        adapters.ParquetFileAdapter,
        'make_tf_data',
        return_value=tf.data.Dataset.range(1),
    )
    with (
        numbers,
        self.assertRaisesRegex(ValueError, 'written/1.0.0 .*does not read'),
    ):
      loading.load_episodes(directory, read_config=parquet)

  @parameterized.parameters(
      ('no_such_data_set', 'no_such_data_set is neither'),
      ('/no/such/directory', 'no file or folder /no/such/directory'),
      ('ram://no/such/directory', 'ram://no/such/directory is neither'),
  )
  def test_no_such_data_set(self, name, message):
    with self.assertRaisesRegex(FileNotFoundError, message):
      loading.load_episodes(name)

  def test_invalid_data_and_arguments_raise(self):
    directory = self.create_tempdir().full_path
    tfds_files.write(directory, {'random': np.int64}, [{'random': 1}])
    with self.assertRaisesRegex(ValueError, r"\['random'\], without steps"):
      loading.load_episodes(directory)
    several = r"one split.*'train\+test'"
    for split, num_shards, shard_index, message in (
        ('test', 1, 0, f"{self._directory}.*splits .'train'.*Unknown split"),
        ('train[:x]', 1, 0, f'split .train.:x.. of {self._directory}'),
        (['train'], 1, 0, several),
        (('train', 'train'), 1, 0, several),
        (None, 1, 0, several),
        ('train', 2, 2, 'shard_index must be'),
        ('train', 3, -1, 'shard_index must be'),
        ('train', 0, 0, 'num_shards must be a positive integer, but is 0'),
        ('train', 0.5, 0, 'num_shards must be a positive integer, but is 0.5'),
        ('train', 2, 0.5, 'shard_index must be an integer from 0 up'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        loading.load_episodes(
            self._directory,
            split,
            num_shards=num_shards,
            shard_index=shard_index,
        )


class VersionsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._directory = self.create_tempdir().full_path

  def _add(self, name, info='{}'):
    folder = os.path.join(self._directory, name)
    os.makedirs(folder, exist_ok=True)
    if info:
      with open(os.path.join(folder, loading.INFO_FILE), 'w') as f:
        f.write(info)
    return folder

  def test_find_folder_returns_newest_version(self):
    one = self._add('9.0.0')
    with self.assertNoLogs(level='WARNING'):
      self.assertEqual(loading.find_folder(self._directory), one)
    newest = self._add('10.0.0')
    self._add('11.0.0', info='')  # not a data set
    self._add('later')  # not a version
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(loading.find_folder(self._directory), newest)
    self.assertIn('Reading version 10.0.0 of', logs.output[0])
    self.assertEqual(loading.find_folder(newest), newest)

  def test_folder_without_valid_version_raises(self):
    self._add('1.0.0', info='')
    with self.assertRaisesRegex(FileNotFoundError, "It has .'1.0.0'.\\.$"):
      loading.find_folder(self._directory)

  def test_fingerprint(self):
    one = loading.fingerprint_folder(self._add('1.0.0', '{"a": 1}'))
    other = loading.fingerprint_folder(self._add('2.0.0', '{"a": 2}'))
    self.assertEqual(one, fingerprints.fingerprint('{"a": 1}'))
    self.assertNotEqual(one, other)
    self.assertEqual(
        loading.fingerprint_folder(self._directory), fingerprints.fingerprint()
    )


if __name__ == '__main__':
  tf.test.main()
