"""Tests of reading TFDS files as batches, against what TFDS reads."""

import os
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import records
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import steps as steps_lib
from tests import golden
from tests import tfds_files

# Every feature whose steps TFDS decodes one by one.
_FEATURES = {
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


def _make_episode(rng, index, length):
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


_VECTORS = {
    'episode_id': np.int64,
    'steps': tfds.features.Dataset(
        {
            'observation': tfds.features.Tensor(shape=(3,), dtype=np.float32),
            'reward': np.float32,
        }
    ),
}
_SKIP = tfds.decode.SkipDecoding()


def _vectors(rng, index, length):
  return {
      'episode_id': index,
      'steps': {
          'observation': rng.normal(size=(length, 3)).astype(np.float32),
          'reward': rng.normal(size=length).astype(np.float32),
      },
  }


class BatchReadingTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    rng = np.random.default_rng(0)
    root = tf.compat.v1.test.get_temp_dir()
    cls._directory = os.path.join(root, 'all_features')
    tfds_files.write(
        cls._directory,
        _FEATURES,
        [_make_episode(rng, i, n) for i, n in enumerate([3, 1, 0, 7, 2, 1, 5])],
    )
    cls._vectors = os.path.join(root, 'vectors')
    cls._lengths = [*rng.integers(1, 30, 60), 2000, 1, *rng.integers(1, 9, 30)]
    tfds_files.write(
        cls._vectors,
        _VECTORS,
        [_vectors(rng, i, n) for i, n in enumerate(cls._lengths)],
        max_episodes_per_file=20,
    )

  def _assert_same(self, directory, split='train', **options):
    """Asserts that episodes are equal to those of TFDS; returns the batches."""
    episodes = loading.load_episodes(directory, split, **options)
    expected = steps_lib.stack_episodes(
        tfds.builder_from_directory(directory).as_dataset(
            split=split,
            **{'read_config': tfds.ReadConfig(try_autocache=False), **options},
        )
    )
    self.assertEqual(episodes.element_spec, expected.element_spec)
    self.assertEqual(episodes.cardinality(), expected.cardinality())
    actual = list(episodes.as_numpy_iterator())
    expected = list(expected.as_numpy_iterator())
    self.assertLen(actual, len(expected))
    for actual_value, expected_value in zip(actual, expected):
      tf.nest.map_structure(
          lambda a, b: np.testing.assert_array_equal(a, b, strict=True),
          actual_value,
          expected_value,
      )
    return list(episodes.batches.as_numpy_iterator())

  def test_decoders(self):
    decoders = {
        'note': _SKIP,
        'metadata': {'map': _SKIP},
        'steps': {
            'observation': {'image': _SKIP, 'depth': _SKIP},
            'label': _SKIP,
        },
    }
    self._assert_same(self._directory, decoders=decoders)

  @parameterized.parameters(
      dict(
          split=tfds.core.ReadInstruction('train', from_=10, to=20, unit='%'),
          add_tfds_id=True,
      ),
      dict(
          split='train[:1]+train[-3:]',
          interleave_cycle_length=2,
          interleave_block_length=3,
      ),
      dict(
          interleave_cycle_length=1,
          skip_prefetch=True,
          input_context=tf.distribute.InputContext(
              num_input_pipelines=2, input_pipeline_id=1
          ),
      ),
      dict(assert_cardinality=False),
  )
  @pytest.mark.few(2)
  def test_options(self, split='train', **options):
    config = tfds.ReadConfig(**options)
    self._assert_same(self._vectors, split, read_config=config)

  def test_shuffled_files(self):
    orders = []
    for seed in 1, 2:
      config = tfds.ReadConfig(shuffle_seed=seed, interleave_cycle_length=1)
      with mock.patch.object(records, '_MAX_BATCH', 7):
        batches = self._assert_same(
            self._vectors, shuffle_files=True, read_config=config
        )
      ids = np.concatenate([batch.fields['episode_id'] for batch in batches])
      lengths = np.concatenate([np.diff(batch.row_splits) for batch in batches])
      self.assertAllEqual(lengths, np.array(self._lengths)[ids])
      orders.append(ids)
    self.assertNotAllEqual(*orders)
    self.assertAllEqual(*map(np.sort, orders))

  def test_batches_are_cut_by_their_decoded_bytes(self):
    fifth = batch_lib.BATCH_BYTES // 5
    with (
        mock.patch.object(steps_lib, 'estimate_step_bytes', return_value=fifth),
        # This pipeline must not be cached.
        mock.patch.object(
            pipelines,
            '_cached_pipeline',
            pipelines._cached_pipeline.__wrapped__,
        ),
    ):
      batches = self._assert_same(self._directory)
    # A batch has the episodes that begin within the same 5 steps, or a longer
    # one.
    self.assertEqual(
        [list(np.diff(batch.row_splits)) for batch in batches],
        [[3, 1, 0], [7], [2, 1, 5]],
    )

  @parameterized.parameters(
      ('steps', tfds.features.Image(shape=(None, None, 3))),
      ('other', tfds.features.Sequence(np.int32)),
      (
          'steps',
          tfds.features.Tensor(shape=(None,), dtype=np.int32, encoding='zlib'),
      ),
      ('other', tfds.features.Tensor(shape=(0,), dtype=np.int32)),
      ('steps', tfds.features.Tensor(shape=(), dtype=np.int32, optional=True)),
      ('steps', tfds.features.Scalar(dtype=np.int32)),
      ('other', tfds.features.Scalar(dtype=np.int32)),
  )
  def test_features_that_are_not_batched(self, place, feature):
    features = {'steps': tfds.features.Dataset({'reward': np.float32})}
    decoder, decoders = tfds.decode.make_decoder()(lambda value, _: value), None
    if place == 'other':
      features['field'] = feature
    else:
      features['steps'] = tfds.features.Dataset({'field': feature})
    if isinstance(feature, tfds.features.Scalar):
      decoders = {'field': decoder()}
      decoders = decoders if place == 'other' else {'steps': decoders}
    directory = os.path.join(self.create_tempdir().full_path, place)
    tfds_files.write_records(directory, features, [[b'']])
    episodes = loading.load_episodes(directory, decoders=decoders)
    self.assertFalse(golden.has_batches(episodes))


if __name__ == '__main__':
  tf.test.main()
