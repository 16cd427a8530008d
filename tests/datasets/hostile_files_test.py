"""Tests of data sets whose files were written to harm their reader."""

import glob
import io
import json
import os
import struct
from unittest import mock

from absl.testing import parameterized
import numpy as np
from PIL import Image
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import record_files
from rlds2reverb.episodes import limits
from tests import tfds_files

_STEPS = {
    'is_first': tf.bool,
    'is_last': tf.bool,
    'observation': tfds.features.Tensor(shape=(2,), dtype=tf.float32),
}


def _crc32c(content):
  """Returns the masked checksum of a TFRecord, bit by bit."""
  crc = 0xFFFFFFFF
  for byte in content:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
  crc ^= 0xFFFFFFFF
  return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def _header(length):
  packed = struct.pack('<Q', length)
  return packed + struct.pack('<I', _crc32c(packed))


class HostileFilesTest(parameterized.TestCase, tf.test.TestCase):

  def write(self, ragged=False):
    folder = os.path.join(self.create_tempdir().full_path, 'data')
    steps = dict(_STEPS)
    if ragged:  # Such features are not read in batches.
      steps['words'] = tfds.features.Sequence(tf.int32)
    one = {'is_first': False, 'is_last': False, 'observation': np.ones(2, 'f4')}
    if ragged:
      one['words'] = [1, 2]
    tfds_files.write(
        folder,
        {'steps': tfds.features.Dataset(steps)},
        [{'steps': [one] * count} for count in (3, 4, 5)],
        max_episodes_per_file=3,
    )
    return folder

  def change_info(self, folder, change):
    path = os.path.join(folder, 'dataset_info.json')
    with open(path, encoding='utf-8') as f:
      info = json.load(f)
    change(info['splits'][0])
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(info, f)

  @parameterized.product(
      ragged=(False, True), length=(40 << 30, 1 << 62, 2**64 - 20)
  )
  def test_a_record_of_gigabytes(self, ragged, length):
    folder = self.write(ragged)
    [path] = glob.glob(f'{folder}/*.tfrecord*')
    lengths = record_files.read_lengths(path, 3)
    begin = int(lengths[0]) + record_files.FRAME_BYTES
    self.assertEqual(
        _header(int(lengths[1]))[:8], struct.pack('<Q', lengths[1])
    )
    with open(path, 'r+b') as f:
      f.seek(begin)
      self.assertEqual(f.read(12), _header(int(lengths[1])))
      f.seek(begin)
      f.write(_header(length))
    actual = []
    with self.assertRaisesRegex(
        tf.errors.OpError, f'{path} is damaged: the length of record 1 is'
    ):
      for episode in loading.load_episodes(folder):
        actual.append(len(episode['steps']['is_first']))
    self.assertEqual(actual, [3])

  def test_whole_files_are_read(self):
    for ragged in False, True:
      lengths = [
          len(episode['steps']['is_first'])
          for episode in loading.load_episodes(self.write(ragged))
      ]
      self.assertEqual(lengths, [3, 4, 5])

  @parameterized.parameters(
      '../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
      'below/../../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
      '/etc/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
  )
  def test_a_template_that_leads_outside(self, template):
    folder = self.write()
    self.change_info(
        folder, lambda split: split.update(filepathTemplate=template)
    )
    with self.assertRaisesRegex(ValueError, 'outside of |emplate'):
      loading.load_episodes(folder)

  def test_a_place_that_the_user_allows(self):
    folder = self.write()
    outside = os.path.join(os.path.dirname(folder), 'elsewhere')
    os.makedirs(outside)
    for path in glob.glob(f'{folder}/*.tfrecord*'):
      os.rename(path, os.path.join(outside, os.path.basename(path)))
    template = '../elsewhere/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}'
    self.change_info(
        folder, lambda split: split.update(filepathTemplate=template)
    )
    allow = f'{limits.PLACES_VARIABLE}={outside}'
    with self.assertRaisesRegex(ValueError, f'train in .* names .*{allow}'):
      loading.load_episodes(folder)
    with mock.patch.dict(os.environ, {limits.PLACES_VARIABLE: outside}):
      self.assertLen(list(loading.load_episodes(folder)), 3)

  @parameterized.parameters('10000000000', '-5')
  def test_numbers_of_episodes_that_cannot_be(self, count):
    folder = self.write()
    self.change_info(folder, lambda split: split.update(shardLengths=[count]))
    with self.assertRaisesRegex(ValueError, f'has {count} episodes, but the'):
      loading.load_episodes(folder)

  @parameterized.parameters(
      ('dataset_info.json', '"fileFormat"', '"fileForm"', 'ParseError'),
      ('dataset_info.json', '"name": "', '"name": true, "x": "', 'ParseError'),
      ('dataset_info.json', '"version": "1.0.0"', '"version": ""', 'version'),
      ('dataset_info.json', '"version": "1.0.0"', '"version": 7', 'damaged'),
      ('dataset_info.json', '"splits": [', '"splits": [null, ', 'ParseError'),
      ('dataset_info.json', '{DATASET}', '{DATASET{}', 'Template .*damaged'),
      ('features.json', '"steps": {', '"steps": 7, "x": {', 'damaged'),
      ('features.json', '_dict.FeaturesDict', 'x', 'damaged|imported'),
      ('features.json', 'tensorflow_datasets.', 'no_such_', 'no_such_'),
      ('features.json', '{', '[', 'damaged'),
      ('features.json', '"float32"', '"float33"', 'damaged'),
  )
  def test_damaged_metadata_names_the_folder(self, name, old, new, error):
    folder = self.write()
    path = os.path.join(folder, name)
    with open(path, encoding='utf-8') as f:
      text = json.dumps(json.load(f))
    self.assertIn(old, text)
    with open(path, 'w', encoding='utf-8') as f:
      f.write(text.replace(old, new, 1))
    with self.assertRaisesRegex((ImportError, ValueError), error) as raised:
      loading.load_episodes(folder)
    self.assertIn(folder, str(raised.exception))

  def test_a_data_set_without_splits(self):
    folder = self.write()
    path = os.path.join(folder, 'dataset_info.json')
    with open(path, encoding='utf-8') as f:
      info = json.load(f)
    del info['splits']
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(info, f)
    with self.assertRaisesRegex(ValueError, f'{folder} has no splits'):
      loading.load_episodes(folder)

  def write_images(self, shape, encoded):
    folder = os.path.join(self.create_tempdir().full_path, 'data')
    one = {'is_first': False, 'is_last': False, 'observation': encoded}
    image = tfds.features.Image(shape=shape, dtype=np.uint8)
    steps = tfds.features.Dataset({**_STEPS, 'observation': image})
    tfds_files.write(folder, {'steps': steps}, [{'steps': [one] * 3}] * 2)
    return folder

  def limit(self, size):
    self.addCleanup(os.environ.pop, limits.VARIABLE, None)
    os.environ[limits.VARIABLE] = str(size)

  @parameterized.parameters('PNG', 'JPEG', 'BMP', 'GIF')
  def test_an_image_that_is_larger_than_its_feature(self, image_format):
    file = io.BytesIO()
    Image.new('L', (2000, 3000)).save(file, image_format)
    folder = self.write_images((8, 8, 1), file.getvalue())
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'observation of 3000 by 2000 pixels',
    ):
      list(loading.load_episodes(folder))

  def test_images_that_expand(self):
    file = io.BytesIO()
    Image.new('RGB', (40, 30)).save(file, 'PNG')
    folder = self.write_images((None, None, 3), file.getvalue())
    self.limit(3 * 40 * 30 - 1)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'at most 1199 pixels.*{limits.VARIABLE}.*up to 30 by 40 pixels',
    ):
      list(loading.load_episodes(folder))
    self.limit(3 * 40 * 30)
    for episode in loading.load_episodes(folder):
      self.assertEqual(episode['steps']['observation'].shape, (3, 30, 40, 3))

  def test_sizes_in_the_headers_of_images(self):
    rng = np.random.default_rng(0)
    encoded = [b'', b'abc', b'\x89PNG']
    sizes = [[0, 0], [0, 0], [0, 0]]
    for kind in 'PNG', 'JPEG', 'BMP', 'GIF':
      for height, width in ((1, 1), (7, 300), (70000, 2), (257, 256)):
        if height < 1 << 16 or kind in ('PNG', 'BMP'):
          file = io.BytesIO()
          pixels = rng.integers(0, 255, (height, width)).astype(np.uint8)
          Image.fromarray(pixels).save(file, kind)
          encoded.append(file.getvalue())
          sizes.append([height, width])
    actual = features_lib._find_sizes(tf.constant(encoded))
    self.assertAllEqual(actual, sizes)


if __name__ == '__main__':
  tf.test.main()
