"""Tests of saving transformed episodes, and of reading them back."""

import os

from absl.testing import absltest
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import saving
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import normalization
from tests import call_modes
from tests import golden

_NUMBERS = tuple(np.dtype(code).type for code in '?bBhHiIlLefd')


def _episode(rng, length):
  """Returns an episode with every kind of field that can be saved."""
  step = np.arange(length)

  def numbers(dtype, *shape):
    if np.issubdtype(dtype, np.floating):
      values = rng.normal(size=(length, *shape)) / 3
    else:
      values = rng.integers(0, 100, (length, *shape)) % 2 ** (
          1 if dtype == np.bool_ else 7
      )
    return values.astype(dtype)

  return {
      'observation': {
          **{np.dtype(d).name: numbers(d, 2) for d in _NUMBERS},
          'scalar': {np.dtype(d).name: numbers(d) for d in _NUMBERS},
          'large': numbers(np.float32, 40, 10),
          'image': numbers(np.uint8, 6, 5, 3),
          'depth': numbers(np.uint16, 6, 5, 1),
          'mask': numbers(np.uint8, 40, 40, 2),
          'nothing': numbers(np.float32, 0),
          'no_image': numbers(np.uint8, 6, 0, 3),
          'encoded': np.array([rng.bytes(9) for _ in step], object),
          'a/b': {'c:d': numbers(np.float32)},
      },
      'action': numbers(np.float32, 3),
      'reward': numbers(np.float64),
      'discount': numbers(np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': step < 0,
  }


def _scaled(scale):
  return tf.data.Dataset.from_tensors({'steps': call_modes.FIVE}).map(
      normalization.ScaleReward(scale)
  )


class SaveEpisodesTest(tf.test.TestCase):

  def _directory(self):
    return os.path.join(self.create_tempdir().full_path, 'some', 'saved-set')

  def _load(self, directory):
    return [
        episode['steps']
        for episode in loading.load_episodes(directory).as_numpy_iterator()
    ]

  def test_saved_values_are_read_back(self):
    rng = np.random.default_rng(0)
    episodes = [_episode(rng, length) for length in (3, 1, 4)]
    rlds_data = (
        golden.nested(episodes)
        .enumerate()
        .map(
            lambda index, episode: {
                **episode,
                'id': tf.strings.as_string(index),
                'info': {'score': tf.cast(index, tf.float64) / 3},
            }
        )
    )
    directory = self._directory()
    self.assertEqual(saving.save_episodes(rlds_data, directory), directory)
    self.assertLen(os.listdir(os.path.dirname(directory)), 1)
    loaded = loading.load_episodes(directory)
    spec = golden.stacked_spec(episodes[0])
    for path, leaf in tree.flatten_with_path(loaded.element_spec['steps']):
      expected = spec
      for key in path:
        expected = expected[key]
      self.assertEqual(leaf.dtype, expected.dtype, path)
      self.assertEqual(leaf.shape.as_list(), expected.shape.as_list(), path)
    rows = list(loaded.as_numpy_iterator())
    self.assertEqual([row['id'] for row in rows], [b'0', b'1', b'2'])
    self.assertEqual([row['info']['score'] for row in rows], [0, 1 / 3, 2 / 3])
    golden.assert_frames_equal(self, [row['steps'] for row in rows], episodes)

  def test_open_shapes_and_parts_in_files(self):
    points = np.arange(36, dtype=np.float32).reshape(6, 3, 2)
    episode = {'steps': dict(call_modes.FIVE, points=points)}
    spec = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), episode
    )
    spec['steps']['points'] = tf.TensorSpec([6, None, 2], tf.float32)
    rlds_data = tf.data.Dataset.from_generator(
        lambda: [episode] * 1001, output_signature=spec
    )
    directory = saving.save_episodes(rlds_data, self._directory(), split='test')
    loaded = loading.load_episodes(directory, 'test')
    self.assertEqual(loaded.cardinality(), 1001)
    shape = loaded.element_spec['steps']['points'].shape.as_list()
    self.assertEqual(shape, [None, None, 2])
    (last,) = loaded.skip(1000)
    self.assertAllEqual(last['steps']['points'], points)

  def test_same_pipeline_is_reused_and_others_need_overwrite(self):
    directory = self._directory()
    rewards = lambda: self._load(directory)[0]['reward']
    for _ in range(2):
      saving.save_episodes(_scaled(2.0), directory, [call_modes.FIVE['action']])
    for scale, identity in (3.0, call_modes.FIVE['action']), (2.0, 'b'):
      with self.assertRaisesRegex(FileExistsError, 'of another pipeline or'):
        saving.save_episodes(_scaled(scale), directory, [identity])
    self.assertAllEqual(rewards(), 2 * call_modes.FIVE['reward'])
    # The content of a generator is unknown.
    changed = golden.stacked([{**call_modes.FIVE, 'reward': np.ones(6)}])
    with self.assertRaisesRegex(
        FileExistsError, 'cannot be compared.*PyFunc.*overwrite=True'
    ):
      saving.save_episodes(changed, directory)
    saving.save_episodes(changed, directory, overwrite=True)
    self.assertAllEqual(rewards(), np.ones(6))
    self.assertLen(os.listdir(os.path.dirname(directory)), 1)

  def test_unrelated_folder_is_never_overwritten(self):
    directory = self.create_tempdir().full_path
    with open(os.path.join(directory, 'precious'), 'w') as f:
      f.write('data')
    for overwrite in (False, True):
      with self.assertRaisesRegex(FileExistsError, 'did not write'):
        saving.save_episodes(
            golden.stacked([call_modes.FIVE]), directory, overwrite=overwrite
        )
    self.assertEqual(os.listdir(directory), ['precious'])

  def test_saving_into_source_folder_raises(self):
    directory = saving.save_episodes(
        golden.stacked([call_modes.FIVE]), self._directory()
    )
    link = os.path.join(self.create_tempdir().full_path, 'link')
    os.symlink(directory, link)
    for source, target in (os.path.relpath(directory), link), (link, directory):
      transformed = applying.transform_episodes(
          loading.load_episodes(source), [normalization.ScaleReward(2.0)]
      ).shuffle(3)
      with self.assertRaisesRegex(ValueError, 'are read from'):
        saving.save_episodes(transformed, target, overwrite=True)
    # Another directory works.
    other = saving.save_episodes(transformed, self._directory())
    self.assertAllEqual(
        self._load(other)[0]['reward'], 2 * call_modes.FIVE['reward']
    )

  def test_no_episodes(self):
    directory = self._directory()
    with self.assertRaisesRegex(ValueError, 'no episodes to write'):
      saving.save_episodes(golden.stacked([call_modes.FIVE]).take(0), directory)
    self.assertFalse(os.path.exists(directory))

  def test_unsupported_specs_raise(self):
    steps = golden.stacked_spec(call_modes.FIVE)
    for field in (
        (tf.TensorSpec([None]),),
        tf.RaggedTensorSpec([None, None]),
        tf.TensorSpec([None], tf.bfloat16),
        tf.TensorSpec([None, None], tf.string),
        tf.TensorSpec([None, 0], tf.string),
    ):
      with self.assertRaisesRegex(ValueError, 'steps/x cannot be written'):
        features_lib.features_from_spec({'steps': {**steps, 'x': field}})


_WRITTEN = {'steps': tfds.features.Dataset({'x': np.int64})}


def _make_episode(*values):
  return {'steps': [{'x': value} for value in values]}


class WriteEpisodesTest(absltest.TestCase):

  def _write(self, folder, episodes, split='test'):
    saving.write_episodes(
        episodes,
        folder,
        name='My-Env/v0',
        description='Two episodes.',
        features=_WRITTEN,
        split=split,
    )

  def test_a_split_that_could_not_be_read(self):
    folder = self.create_tempdir().full_path
    for split in 'a b', 'train.2', 'a/b', '', 'train[1]':
      with self.subTest(split):
        with self.assertRaisesRegex(ValueError, 'name of a split must be'):
          self._write(folder, [_make_episode(1)], split)
    self.assertEmpty(os.listdir(folder))

  def test_name_and_version_of_paths(self):
    for path, name in (
        ('/data/My Data', 'my_data/1.0.0'),
        ('/data/walker/2.1.0', 'walker/2.1.0'),
        ('/data/walker/2.1.0/', 'walker/2.1.0'),
        ('/data/2024-07', 'data_2024_07/1.0.0'),
        ('/data/größe', 'gr_e/1.0.0'),
        ('gs://b/CamelCase', 'camel_case/1.0.0'),
        ('/1.0.0', 'data_1_0_0/1.0.0'),
        ('/data/-', 'data/1.0.0'),
    ):
      with self.subTest(path):
        self.assertEqual('/'.join(saving.name_and_version(path)), name)


if __name__ == '__main__':
  tf.test.main()
