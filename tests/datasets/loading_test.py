"""Tests of reading RLDS data sets from disk, stacked."""

import os

from absl import logging
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import loading
from tests import ram_files  # noqa: F401
from tests import tfds_files


class NamedRlds(tfds.core.GeneratorBasedBuilder):
  """A data set that TFDS knows by its name."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(
            {'steps': tfds.features.Dataset({'reward': np.float32})}
        ),
    )

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples()}

  def _generate_examples(self):
    for index in range(2):
      rewards = [10 * index + t for t in range(3)]
      yield index, {'steps': [{'reward': reward} for reward in rewards]}


_FEATURES = {
    'episode_id': np.int64,
    'steps': tfds.features.Dataset(
        {
            'observation': {
                'image': tfds.features.Image(shape=(None, None, 3)),
                'state': tfds.features.Tensor(shape=(2,), dtype=np.float64),
                'depth': tfds.features.Tensor(
                    shape=(3, 2), dtype=np.uint16, encoding='zlib'
                ),
                'words': tfds.features.Text(),
            },
            'action': np.int32,
            'is_first': np.bool_,
            'label': tfds.features.ClassLabel(names=['a', 'b']),
            'tags': tfds.features.Sequence(np.int32),
        }
    ),
}


def _episode(rng, index):
  length = index % 4 + 1
  return {
      'episode_id': index,
      'steps': [
          {
              'observation': {
                  'image': rng.integers(
                      0, 256, (4 + index, 5, 3), dtype=np.uint8
                  ),
                  # The format keeps the precision of float32.
                  'state': np.float64(np.float32(rng.normal(size=2))),
                  'depth': rng.integers(0, 9999, (3, 2), dtype=np.uint16),
                  'words': f'step {t} of {index}',
              },
              'action': t,
              'is_first': t == 0,
              'label': 'ab'[t % 2],
              'tags': list(range(t)),
          }
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
    rng = np.random.default_rng(0)
    cls._episodes = [_episode(rng, index) for index in range(7)]
    tfds_files.write(cls._directory, _FEATURES, cls._episodes)

  def test_every_feature_is_decoded(self):
    loaded = list(loading.load_episodes(self._directory))
    self.assertLen(loaded, len(self._episodes))
    for episode, written in zip(loaded, self._episodes):
      self.assertEqual(episode['episode_id'], written['episode_id'])
      steps, expected = episode['steps'], written['steps']
      self.assertEqual(steps['action'].shape[0], len(expected))
      for t, step in enumerate(expected):
        for field in ('image', 'state', 'depth'):
          value = steps['observation'][field][t].numpy()
          self.assertEqual(value.dtype, step['observation'][field].dtype)
          self.assertAllEqual(value, step['observation'][field])
        self.assertEqual(
            steps['observation']['words'][t].numpy().decode(),
            step['observation']['words'],
        )
        self.assertEqual(steps['action'][t], step['action'])
        self.assertEqual(steps['is_first'][t], step['is_first'])
        self.assertEqual(steps['label'][t], 'ab'.index(step['label']))
        self.assertAllEqual(steps['tags'][t], step['tags'])

  def test_static_shapes(self):
    spec = loading.load_episodes(self._directory).element_spec['steps']
    self.assertEqual(spec['action'], tf.TensorSpec([None], tf.int32))
    self.assertEqual(spec['is_first'], tf.TensorSpec([None], tf.bool))
    self.assertEqual(
        spec['observation'],
        {
            'image': tf.TensorSpec([None, None, None, 3], tf.uint8),
            'state': tf.TensorSpec([None, 2], tf.float64),
            'depth': tf.TensorSpec([None, 3, 2], tf.uint16),
            'words': tf.TensorSpec([None], tf.string),
        },
    )

  def test_decoders_leave_images_encoded(self):
    loaded = loading.load_episodes(
        self._directory,
        decoders={
            'steps': {'observation': {'image': tfds.decode.SkipDecoding()}}
        },
    )
    for episode, written in zip(loaded, self._episodes):
      encoded = episode['steps']['observation']['image']
      self.assertEqual(encoded.dtype, tf.string)
      for t, step in enumerate(written['steps']):
        self.assertAllEqual(
            tf.io.decode_png(encoded[t]), step['observation']['image']
        )

  @parameterized.parameters(
      (None,), ({'steps': {'action': tfds.decode.SkipDecoding()}},)
  )
  def test_images_of_varying_size(self, decoders):
    episode = _episode(np.random.default_rng(0), 3)
    other = _episode(np.random.default_rng(1), 2)
    image = other['steps'][0]['observation']['image']
    episode['steps'][2]['observation']['image'] = image
    directory = os.path.join(self.create_tempdir().full_path, 'varying')
    tfds_files.write(directory, _FEATURES, [other, episode])
    loaded = iter(loading.load_episodes(directory, decoders=decoders))
    self.assertAllEqual(next(loaded)['steps']['observation']['image'][0], image)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        r'images steps/observation/image must all have one size.*'
        r'SkipDecoding.* \[2\] \[6 5 3\] \[7 5 3\]',
    ):
      next(loaded)

  def test_shards_are_disjoint_and_whole(self):
    shards = [
        [
            int(episode['episode_id'])
            for episode in loading.load_episodes(
                self._directory, num_shards=3, shard_index=index
            )
        ]
        for index in range(3)
    ]
    self.assertEqual(sum(shards, []), list(range(7)))
    self.assertLessEqual(max(map(len, shards)) - min(map(len, shards)), 1)

  def test_split(self):
    loaded = loading.load_episodes(self._directory, 'train[2:5]')
    self.assertEqual([int(e['episode_id']) for e in loaded], [2, 3, 4])

  def test_by_name(self):
    data_dir = self.create_tempdir().full_path
    with self.assertRaisesRegex(FileNotFoundError, 'named_rlds.*Prepare it'):
      loading.load_episodes('named_rlds', data_dir=data_dir)
    tfds.builder('named_rlds', data_dir=data_dir).download_and_prepare()
    episodes = list(loading.load_episodes('named_rlds', data_dir=data_dir))
    self.assertAllEqual(
        [episode['steps']['reward'] for episode in episodes],
        [[0, 1, 2], [10, 11, 12]],
    )

  def test_the_newest_version_of_a_data_set(self):
    directory = self.create_tempdir().full_path
    for version in '2.9.0', '2.10.0', '1.11.1':
      tfds_files.write(
          os.path.join(directory, version),
          {'version': np.str_, 'steps': tfds.features.Dataset({'a': np.int32})},
          [{'version': version, 'steps': [{'a': 1}]}],
          version,
      )
    os.mkdir(os.path.join(directory, '3.0.0'))  # Without data.
    os.mkdir(os.path.join(directory, 'other'))
    with self.assertLogs(logging.get_absl_logger(), 'INFO') as logs:
      (episode,) = loading.load_episodes(directory)
    self.assertEqual(episode['version'], '2.10.0')
    self.assertIn(f'Reading version 2.10.0 of {directory}', logs.output[0])
    (episode,) = loading.load_episodes(os.path.join(directory, '1.11.1'))
    self.assertEqual(episode['version'], '1.11.1')

  def test_a_folder_that_is_no_data_set(self):
    directory = self.create_tempdir().full_path
    os.mkdir(os.path.join(directory, '1.0.0'))
    with self.assertRaisesRegex(
        FileNotFoundError,
        r"not the folder of a data set: it has no dataset_info.json.*'1.0.0'",
    ):
      loading.load_episodes(directory)

  @parameterized.parameters((['train'],), (('train', 'train'),), (None,))
  def test_several_splits(self, split):
    with self.assertRaisesRegex(ValueError, r"one split.*'train\+test'"):
      loading.load_episodes(self._directory, split)

  def test_a_split_of_several(self):
    loaded = loading.load_episodes(self._directory, 'train[:1]+train[6:]')
    self.assertEqual([int(e['episode_id']) for e in loaded], [0, 6])
    first, second = tfds.even_splits('train', 2)
    loaded = loading.load_episodes(self._directory, second)
    self.assertEqual([int(e['episode_id']) for e in loaded], [4, 5, 6])
    loaded = loading.load_episodes(
        self._directory, first, num_shards=2, shard_index=1
    )
    self.assertEqual([int(e['episode_id']) for e in loaded], [2, 3])

  @parameterized.parameters(
      'no_such_data_set', '/no/such/directory', 'ram://no/such/directory'
  )
  def test_no_such_data_set(self, name):
    with self.assertRaisesRegex(FileNotFoundError, f'{name} is neither'):
      loading.load_episodes(name)

  def test_no_steps(self):
    directory = self.create_tempdir().full_path
    tfds_files.write(directory, {'random': np.int64}, [{'random': 1}])
    with self.assertRaisesRegex(ValueError, r"\['random'\], without steps"):
      loading.load_episodes(directory)

  def test_no_such_split(self):
    with self.assertRaisesRegex(ValueError, 'Unknown split'):
      loading.load_episodes(self._directory, 'test')

  @parameterized.parameters((2, 2), (3, -1), (0, 0))
  def test_no_such_shard(self, num_shards, shard_index):
    with self.assertRaisesRegex(ValueError, 'shard_index must be'):
      loading.load_episodes(
          self._directory, num_shards=num_shards, shard_index=shard_index
      )


if __name__ == '__main__':
  tf.test.main()
