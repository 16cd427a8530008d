"""Tests of reading the records of TFDS files in batches."""

import os
import shutil
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import records
from rlds2reverb.episodes import packs as packs_lib
from tests import tfds_files

_FEATURES = {
    'episode_id': np.int64,
    'steps': tfds.features.Dataset({'reward': np.float32}),
}
_NUM_EPISODES = 50


def _read_until_an_error(dataset):
  """Returns the ids of the episodes before an error, and the error."""
  ids = []
  try:
    for episode in dataset:
      ids.append(int(episode['episode_id']))
  except tf.errors.OpError as e:
    return ids, e
  return ids, None


def _batches(directory, max_bytes, **kwargs):
  return records.record_batches(
      tfds.builder_from_directory(directory),
      'train',
      shuffle_files=False,
      read_config=tfds.ReadConfig(**kwargs),
      max_bytes=max_bytes,
  ).map(records.cut_out)


class RecordsTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._directory = os.path.join(
        tf.compat.v1.test.get_temp_dir(), 'records'
    )
    tfds_files.write(
        cls._directory,
        _FEATURES,
        [
            {'episode_id': i, 'steps': {'reward': np.arange(3.0)}}
            for i in range(_NUM_EPISODES)
        ],
        max_episodes_per_file=20,
    )

  def _files(self, directory):
    return sorted(
        os.path.join(directory, name)
        for name in os.listdir(directory)
        if 'tfrecord' in name
    )

  def test_batches_are_bounded_by_their_bytes(self):
    directory = os.path.join(self.create_tempdir().full_path, 'bytes')
    sizes = [10, 20, 30, 900, 10, 10, 400, 10, 5000, 950, 10]
    tfds_files.write_records(
        directory, _FEATURES, [[b'x' * size for size in sizes]]
    )
    with mock.patch.object(records, '_batch_size', return_value=512):
      batches = list(_batches(directory, 1000, add_tfds_id=True))
    found = [
        [len(record) for record in batch['record'].numpy()]
        for batch in batches
    ]
    # Those that begin within the same 1000 bytes.
    self.assertEqual(
        found, [[10, 20, 30, 900, 10, 10, 400], [10], [5000], [950], [10]]
    )
    self.assertEqual(
        [batch['tfds_id'].shape for batch in batches], [[7], [1], [1], [1], [1]]
    )

  def test_the_size_of_a_batch(self):
    sizes = lambda max_bytes: [
        len(batch['record']) for batch in _batches(self._directory, max_bytes)
    ]
    self.assertEqual(sizes(1 << 20), [_NUM_EPISODES])
    self.assertEqual(sizes(1), [1] * _NUM_EPISODES)
    # The size of the records is known, and all are of nearly one size.
    few = sizes(500)
    self.assertLess(max(few), 10)
    self.assertGreater(min(few[:-1]), 1)

  @parameterized.product(
      damage=['cut_off', 'overwritten', 'missing', 'shorter', 'longer'],
      sizes=[(1, 1), (7, 7), (512, 512), (512, 3)],
  )
  def test_a_damaged_file(self, damage, sizes):
    size, small = sizes
    directory = os.path.join(self.create_tempdir().full_path, 'damaged')
    shutil.copytree(self._directory, directory)
    first, second, _ = self._files(directory)
    with open(second, 'rb') as f:
      content = f.read()
    record = len(content) // 17
    if damage == 'missing':
      os.remove(second)
    elif damage == 'longer':
      with open(first, 'rb') as f:
        content += f.read()
    elif damage == 'shorter':
      content = b''
    elif damage == 'cut_off':
      content = content[: -record // 2]
    else:
      middle = 10 * record + record // 2
      content = content[:middle] + b'\xff' * 4 + content[middle + 4 :]
    if damage != 'missing':
      with open(second, 'wb') as f:
        f.write(content)
    config = tfds.ReadConfig(interleave_cycle_length=1)
    episodes = loading.load_episodes(directory, read_config=config)
    expected, error = _read_until_an_error(episodes)
    self.assertIsNotNone(error)
    with mock.patch.object(
        records, '_MAX_BATCH', size
    ), mock.patch.object(records, '_small_batch_size', return_value=small):
      packs = packs_lib.packs_of(
          loading.load_episodes(directory, read_config=config)
      )
      found, other = _read_until_an_error(packs_lib.unpack(packs))
    self.assertEqual(found, expected)
    self.assertIs(type(other), type(error))
    self.assertEqual(
        other.message.partition('}}')[2], error.message.partition('}}')[2]
    )

  def test_a_damaged_file_read_without_a_known_number(self):
    directory = os.path.join(self.create_tempdir().full_path, 'damaged')
    shutil.copytree(self._directory, directory)
    second = self._files(directory)[1]
    with open(second, 'r+b') as f:
      f.truncate(os.path.getsize(second) - 5)
    for options in dict(assert_cardinality=False), dict(shuffle_seed=1):
      packs = packs_lib.packs_of(
          loading.load_episodes(
              directory,
              shuffle_files='shuffle_seed' in options,
              read_config=tfds.ReadConfig(**options),
          )
      )
      with self.assertRaises(tf.errors.DataLossError):
        list(packs)

  def test_a_first_file_that_is_missing_and_a_size_that_is_not_known(self):
    directory = os.path.join(self.create_tempdir().full_path, 'missing')
    tfds_files.write_records(directory, _FEATURES, [[b'']])
    os.remove(self._files(directory)[0])
    packs = packs_lib.packs_of(loading.load_episodes(directory))
    with self.assertRaises(tf.errors.NotFoundError):
      list(packs)

  def test_small_batches_are_joined(self):
    # An unknown number of records is read in another way.
    for config in dict(), dict(assert_cardinality=False):
      with mock.patch.object(records, '_small_batch_size', return_value=4):
        batches = list(_batches(self._directory, 1 << 20, **config))
      self.assertEqual([len(b['record']) for b in batches], [_NUM_EPISODES])

  def test_where_few_records_are_read_at_a_time(self):
    size = 100_000
    large = [[b'x'] * 200 + [b'x' * size] * 40, [b'x'] * 240, [b'x'] * 240]
    equal = [[b'x' * 1000] * 240] * 3
    for files, expected in (large, 4), (equal, 512), (large[:1], 4):
      directory = self.create_tempdir().full_path
      tfds_files.write_records(directory, _FEATURES, files)
      builder = tfds.builder_from_directory(directory)
      info = builder.info.splits['train']
      found = lambda size, max_bytes: records._small_batch_size(
          builder.info, info, size, max_bytes
      )
      self.assertEqual(found(512 - (len(files) == 1), 10_000), expected)
      # The whole split has no more bytes than may be in memory.
      self.assertEqual(found(512, 1 << 20), 512)
      self.assertEqual(found(3, 10_000), 3)
      self.assertEqual(found(30, 10_000), 4)

  def test_orders_that_are_not_known(self):
    config = tfds.ReadConfig(
        experimental_interleave_sort_fn=lambda files: files
    )
    self.assertIsNone(
        packs_lib.packs_of(
            loading.load_episodes(self._directory, read_config=config)
        )
    )


if __name__ == '__main__':
  tf.test.main()
