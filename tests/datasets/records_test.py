"""Tests of reading the records of TFDS files in batches."""

import os
import shutil
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import rows as rows_lib
from tests import golden
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
  batches = records_lib.record_batches(
      tfds.builder_from_directory(directory),
      'train',
      shuffle_files=False,
      read_config=tfds.ReadConfig(**kwargs),
      max_bytes=max_bytes,
  )
  return records_lib.complete_batches(batches, max_bytes).map(
      lambda bounds, batch: rows_lib.slice_rows(batch, bounds[0], bounds[1])
  )


class RecordsTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._directory = os.path.join(tf.compat.v1.test.get_temp_dir(), 'records')
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

  def _copy(self):
    directory = os.path.join(self.create_tempdir().full_path, 'damaged')
    return shutil.copytree(self._directory, directory)

  def test_batches_are_bounded_by_their_bytes(self):
    directory = self.create_tempdir().full_path
    sizes = [10, 20, 30, 900, 10, 10, 400, 10, 5000, 950, 10]
    tfds_files.write_records(
        directory, _FEATURES, [[b'x' * size for size in sizes]]
    )
    with mock.patch.object(
        records_lib, '_batch_sizes', return_value=np.array([512])
    ):
      batches = list(_batches(directory, 1000, add_tfds_id=True))
    actual = [
        [len(record) for record in batch['record'].numpy()] for batch in batches
    ]
    # Those that begin within the same 1000 bytes.
    self.assertEqual(
        actual, [[10, 20, 30, 900, 10, 10, 400], [10], [5000], [950], [10]]
    )
    self.assertEqual(
        [batch['tfds_id'].shape for batch in batches], [[7], [1], [1], [1], [1]]
    )

  @parameterized.product(
      damage=['cut_off', 'overwritten', 'missing', 'shorter', 'longer'],
      sizes=[[512], [3, 20, 1, 7] * 20],
  )
  @pytest.mark.few(1)
  def test_a_damaged_file(self, damage, sizes):
    directory = self._copy()
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
        records_lib, '_batch_sizes', return_value=np.array(sizes)
    ):
      batches = episode_dataset.batches_of(
          loading.load_episodes(directory, read_config=config)
      )
      actual, other = _read_until_an_error(episode_dataset.unbatch(batches))
    self.assertEqual(actual, expected)
    self.assertIs(type(other), type(error))
    # The error of the episodes names the file first, and then the cause.
    self.assertEqual(
        errors.message_of(other), errors.message_of(error.__cause__)
    )
    self.assertIn(second, error.message)

  @parameterized.product(
      damage=['cut_off', 'length', 'missing', 'shorter', 'longer'],
      in_batches=[True, False],
  )
  def test_ignored_errors_end(self, damage, in_batches):
    directory = self._copy()
    first, second, _ = self._files(directory)
    size = os.path.getsize(second)
    if damage == 'missing':
      os.remove(second)
    elif damage == 'longer':
      with open(first, 'rb') as source, open(second, 'ab') as target:
        target.write(source.read())
    elif damage == 'length':
      with open(second, 'r+b') as f:
        f.write((1 << 60).to_bytes(8, 'little'))
    else:
      os.truncate(second, size - 5 if damage == 'cut_off' else 0)
    config = tfds.ReadConfig(interleave_cycle_length=1)
    if not in_batches:
      config.experimental_interleave_sort_fn = lambda files: files
    episodes = loading.load_episodes(directory, read_config=config)
    self.assertLen(episodes, _NUM_EPISODES)
    self.assertEqual(
        isinstance(episodes, episode_dataset.EpisodeDataset), in_batches
    )
    before, error = _read_until_an_error(episodes)
    self.assertIsNotNone(error)
    self.assertIn(second, error.message)
    # The first file has 20 episodes, and they come first.
    self.assertEqual(before[:20], [*range(20)])
    ids = [int(e['episode_id']) for e in episodes.ignore_errors()]
    self.assertEqual(ids[: len(before)], before)
    self.assertLessEqual(len(ids), _NUM_EPISODES)

  @parameterized.parameters(
      dict(assert_cardinality=False), dict(shuffle_seed=1)
  )
  def test_damaged_file_with_unknown_cardinality_raises(self, **options):
    directory = self._copy()
    second = self._files(directory)[1]
    os.truncate(second, os.path.getsize(second) - 5)
    episodes = loading.load_episodes(
        directory,
        shuffle_files='shuffle_seed' in options,
        read_config=tfds.ReadConfig(**options),
    )
    with self.assertRaises(tf.errors.DataLossError):
      list(episode_dataset.batches_of(episodes))

  @parameterized.parameters('many_files', 'sub_split')
  def test_bytes_per_read_are_bounded(self, case):
    max_bytes = 10_000
    file = [b'x' * 20] * 300 + [b'x' * 6_000] * 20 + [b'x' * 20] * 300
    files = [file] * (4 if case == 'many_files' else 1)
    directory = self.create_tempdir().full_path
    tfds_files.write_records(directory, _FEATURES, files)
    sums = []
    cut = records_lib._divide

    def spy(batch, max_bytes):
      lengths = tf.strings.length(batch['record'])
      tf.numpy_function(lambda x: sums.append(x.sum()), [lengths], [])
      return cut(batch, max_bytes)

    with mock.patch.object(records_lib, '_divide', spy):
      batches = records_lib.record_batches(
          tfds.builder_from_directory(directory),
          'train[100:500]' if case == 'sub_split' else 'train',
          shuffle_files=False,
          read_config=tfds.ReadConfig(),
          max_bytes=max_bytes,
      )
      list(records_lib.complete_batches(batches, max_bytes))
    total = sum(len(record) for file in files for record in file)
    if case == 'sub_split':
      total -= 20 * 220
    self.assertEqual(sum(sums), total)
    self.assertLessEqual(max(sums), 5 * max_bytes)

  def test_batch_sizes_of_equal_and_large_records(self):
    equal = [[b'x' * 1000] * 240] * 3
    large = [[b'x'] * 2000 + [b'x' * 100_000] * 10]
    for files, in_order, expected, few in (
        (equal, True, [9], 1),  # No batch has more bytes than usual.
        (large, True, [2001] + 9 * [1], 2),
        (large, False, [2], 2),
    ):
      directory = self.create_tempdir().full_path
      tfds_files.write_records(directory, _FEATURES, files)
      builder = tfds.builder_from_directory(directory)
      find = lambda: records_lib._batch_sizes(
          builder,
          'train',
          records_lib.order_of(builder, 'train', tfds.ReadConfig()),
          tfds.ReadConfig(),
          10_000,
          in_order,
      ).tolist()
      self.assertEqual(find(), expected)
      # Without a look at the files.
      with mock.patch.object(records_lib, '_MAX_SEARCHED_BYTES', 0):
        self.assertEqual(find(), [few])

  def test_unknown_orders_are_read_without_batches(self):
    config = tfds.ReadConfig(
        experimental_interleave_sort_fn=lambda files: files
    )
    self.assertFalse(
        golden.has_batches(
            loading.load_episodes(self._directory, read_config=config)
        )
    )


if __name__ == '__main__':
  tf.test.main()
