"""Tests of data sets that TFDS has written as ArrayRecord."""

import os
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb import random_access
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import record_files
from rlds2reverb.datasets import recording
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import windows
from rlds2reverb.store import array_records
from tests import tfds_files

_F = tfds.features
_FEATURES = {
    'id': np.int64,
    'steps': _F.Dataset(
        {
            'observation': {
                'eye': _F.Image(shape=(8, 6, 3)),
                'x': _F.Tensor(shape=(2,), dtype=np.float32),
            },
            'action': np.int64,
            **dict.fromkeys(('reward', 'discount'), np.float32),
            **dict.fromkeys(('is_first', 'is_last', 'is_terminal'), np.bool_),
        }
    ),
}
_NUM_EPISODES = 11
_FORMATS = ('tfrecord', 'array_record')


def _episode(number):
  rng = np.random.default_rng(number)
  length = 2 + number % 4
  return {
      'id': number,
      'steps': [
          {
              'observation': {
                  'eye': rng.integers(0, 256, (8, 6, 3)).astype(np.uint8),
                  'x': rng.random(2).astype(np.float32),
              },
              'action': 100 * number + step,
              'reward': 0.0 if step == length - 1 else 1.0,
              'discount': 1.0,
              'is_first': step == 0,
              'is_last': step == length - 1,
              'is_terminal': False,
          }
          for step in range(length)
      ],
  }


def _damage_second_record(path, content):
  """Changes a byte so that only the second record cannot be read."""
  for place in range(0, len(content), 150):
    changed = bytearray(content)
    changed[place] ^= 0xFF
    with open(path, 'wb') as f:
      f.write(changed)
    try:
      file = array_records.ArrayRecordFile(path)
      file.read(0, 1)
      file.read(2, 4)
    except OSError:
      continue
    try:
      file.read(1, 2)
    except OSError:
      return True
  return False


def _ids(episodes):
  return [int(episode['id']) for episode in episodes]


class ArrayRecordTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
    for form in _FORMATS:
      tfds_files.write(
          os.path.join(cls.folder, form),
          _FEATURES,
          map(_episode, range(_NUM_EPISODES)),
          max_episodes_per_file=4,
          file_format=form,
      )
    cls.directory = os.path.join(cls.folder, 'array_record')

  def _copy(self):
    """Returns a copy of the data set, and the path of its second file."""
    directory = os.path.join(self.create_tempdir().full_path, 'copy')
    shutil.copytree(self.directory, directory)
    files = [name for name in os.listdir(directory) if 'train' in name]
    return directory, os.path.join(directory, sorted(files)[1])

  def test_values_and_order_equal_tfds(self):
    source = tfds.builder_from_directory(self.directory).as_data_source('train')
    actual = list(loading.load_episodes(self.directory).as_numpy_iterator())
    self.assertLen(actual, len(source))
    for episode, wanted in zip(actual, source):
      self.assertEqual(episode['id'], wanted['id'])
      steps = tf.nest.map_structure(
          lambda *rows: np.stack(rows), *wanted['steps']
      )
      tf.nest.map_structure(
          np.testing.assert_array_equal, episode['steps'], steps
      )

  @pytest.mark.long
  @parameterized.parameters(
      ('train', {}),
      ('train[3:9]', {}),
      ('train[50%:]+train[:2]', {}),
      ('train', dict(interleave_cycle_length=2, interleave_block_length=3)),
      ('train', dict(add_tfds_id=True)),
      ('train', dict(shuffle_seed=5)),
      ('train', dict(assert_cardinality=False)),
  )
  def test_read_config_acts_as_on_tfrecord(self, split, options):
    options = {'interleave_cycle_length': 1, **options}
    config = tfds.ReadConfig(**options)
    records, other = (
        list(
            loading.load_episodes(
                os.path.join(self.folder, form),
                split,
                shuffle_files='shuffle_seed' in options,
                read_config=config,
            ).as_numpy_iterator()
        )
        for form in _FORMATS
    )
    self.assertNotEmpty(records)
    self.assertEqual(_ids(other), _ids(records))
    if 'add_tfds_id' in options:
      self.assertEqual(
          [
              each['tfds_id'].replace(b'array_record', b'tfrecord')
              for each in other
          ],
          [each['tfds_id'] for each in records],
      )

  def test_shards_and_decoders(self):
    actual = [
        _ids(loading.load_episodes(self.directory, num_shards=2, shard_index=i))
        for i in range(2)
    ]
    self.assertEqual(actual[0] + actual[1], list(range(_NUM_EPISODES)))
    skip = {'steps': {'observation': {'eye': tfds.decode.SkipDecoding()}}}
    [first] = loading.load_episodes(self.directory, 'train[:1]', decoders=skip)
    images = first['steps']['observation']['eye']
    self.assertEqual(images.dtype, tf.string)

  def test_a_pipeline_has_the_same_fingerprint_again(self):
    one, other = (
        fingerprints.fingerprint_pipeline(loading.load_episodes(self.directory))
        for _ in range(2)
    )
    self.assertEqual(one[1], '')
    self.assertEqual(one, other)
    directory, _ = self._copy()
    self.assertNotEqual(
        fingerprints.fingerprint_pipeline(loading.load_episodes(directory)), one
    )

  def test_few_records_are_in_memory(self):
    path = os.path.join(self.create_tempdir().full_path, 'large')
    from array_record.python import array_record_module

    sizes = [10] * 5000 + [1 << 20] * 40 + [10] * 10
    writer = array_record_module.ArrayRecordWriter(path, 'group_size:1')
    for size in sizes:
      writer.write(os.urandom(size))
    writer.close()
    begin, read = 0, []
    while begin < len(sizes):
      read.append(
          record_files._read_array_records(path.encode(), begin, len(sizes))
      )
      begin += len(read[-1])
    self.assertEqual([len(one) for part in read for one in part], sizes)
    self.assertLess(len(read), 40)
    # 2 MiB, and 16 of the largest records.
    self.assertLess(max(sum(map(len, part)) for part in read), 18 << 20)

  @pytest.mark.long
  @parameterized.parameters('truncated', 'record', 'missing', 'pointer', 'few')
  def test_damaged_files_are_named(self, damage):
    directory, second = self._copy()
    error, kind = {
        'truncated': ('is damaged or truncated.*Copy', tf.errors.DataLossError),
        'record': (
            'damaged: record 1 cannot be read.*Copy',
            tf.errors.DataLossError,
        ),
        'missing': ('is missing', tf.errors.NotFoundError),
        'pointer': ('git lfs pull', tf.errors.DataLossError),
        'few': (
            'has 3 (records|episodes), but dataset_info.json says .*4. Copy',
            tf.errors.DataLossError,
        ),
    }[damage]
    with open(second, 'rb') as f:
      content = bytearray(f.read())
    if damage == 'truncated':
      os.truncate(second, len(content) // 2)
    elif damage == 'missing':
      os.remove(second)
    elif damage == 'few':
      shutil.copy(second.replace('00001', '00002'), second)
    elif damage == 'pointer':
      with open(second, 'w', encoding='utf-8') as f:
        f.write('version https://git-lfs.github.com/spec/v1\noid sha256:1\n')
    else:
      self.assertTrue(_damage_second_record(second, content))
    actual = []
    with self.assertRaisesRegex(kind, f'{second}.*{error}'):
      for episode in loading.load_episodes(directory):
        actual.append(int(episode['id']))
    before = {'record': 5, 'few': 7}.get(damage, 4)
    self.assertEqual(
        actual,
        (list(range(4)) + [8, 9, 10])[:7]
        if damage == 'few'
        else list(range(before)),
    )
    with self.assertRaisesRegex(OSError, f'{second}.*{error}'):
      random_access.build_index(
          directory, os.path.join(self.create_tempdir().full_path, 'index')
      )

  @pytest.mark.long
  def test_random_access_in_place(self):
    batches = []
    for form in _FORMATS:
      folder = os.path.join(self.create_tempdir().full_path, form)
      opened = random_access.open_batches(
          {'x': os.path.join(self.folder, form)},
          folder,
          4,
          windows.Windows(2),
          images={'observation/eye': (8, 6)},
      )
      # The images are not copied into the index.
      self.assertEqual(os.path.getsize(f'{folder}/x/strings.bin'), 0)
      batches.append([opened[number] for number in range(6)])
    # Files of TFRecord are read in turns, so items have other numbers.
    images = [
        {
            int(action): eye
            for batch in of_format
            for action, eye in zip(
                batch['action'].ravel(),
                batch['observation']['eye'].reshape(-1, 8, 6, 3),
            )
        }
        for of_format in batches
    ]
    self.assertNotEmpty(images[1])
    for action, eye in images[1].items():
      wanted = _episode(action // 100)['steps'][action % 100]['observation']
      self.assertAllEqual(eye, wanted['eye'])

  def test_an_index_notices_other_files(self):
    directory, second = self._copy()
    folder = os.path.join(self.create_tempdir().full_path, 'index')
    index = random_access.build_index(directory, folder)
    self.assertLen(index.lengths, _NUM_EPISODES)
    os.remove(second)
    with self.assertRaisesRegex(FileNotFoundError, second):
      random_access.Index(folder)

  @pytest.mark.long
  @parameterized.parameters(*_FORMATS)
  def test_saved_and_recorded(self, form):
    folder = self.create_tempdir().full_path
    saved = saving.save_episodes(
        loading.load_episodes(self.directory), f'{folder}/s', file_format=form
    )
    again = saving.save_episodes(
        loading.load_episodes(self.directory), f'{folder}/s', file_format=form
    )
    self.assertEqual(saved, again)
    other = _FORMATS[form == _FORMATS[0]]
    with self.assertRaisesRegex(FileExistsError, 'file format'):
      saving.save_episodes(
          loading.load_episodes(self.directory), saved, file_format=other
      )
    recorded = recording.record_episodes(
        'CartPole-v1', f'{folder}/r', 2, max_steps=3, file_format=form
    )
    for directory, count in ((saved, _NUM_EPISODES), (recorded, 2)):
      builder = tfds.builder_from_directory(directory)
      self.assertEqual(builder.info.file_format.value, form)
      self.assertLen(list(loading.load_episodes(directory)), count)
    self.assertEqual(
        _ids(loading.load_episodes(saved)), [*range(_NUM_EPISODES)]
    )
    if form == 'array_record':
      self.assertEqual(
          _ids(tfds.builder_from_directory(saved).as_data_source('train')),
          [*range(_NUM_EPISODES)],
      )

  def test_a_format_that_cannot_be_written(self):
    with self.assertRaisesRegex(ValueError, "file_format.*'riegeli'"):
      saving.save_episodes(
          loading.load_episodes(self.directory),
          self.create_tempdir().full_path + '/x',
          file_format='riegeli',
      )

  @pytest.mark.long
  def test_resumed_job_writes_each_episode_once(self):
    directory, second = self._copy()
    with open(second, 'rb') as f:
      content = f.read()
    os.truncate(second, 1000)
    out = os.path.join(self.create_tempdir().full_path, 'out')
    command = [
        *(sys.executable, '-m', 'scripts.convert', f'--dataset={directory}'),
        *(f'--rlds_dir={out}', '--rlds_file_format=array_record'),
        *('--task_mb=0.02', '--num_workers=1'),
    ]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    self.assertEqual(first.returncode, 1, first.stderr)
    self.assertIn(second, first.stderr + first.stdout)
    with open(second, 'wb') as f:
      f.write(content)
    then = subprocess.run(command, capture_output=True, text=True, check=False)
    self.assertEqual(then.returncode, 0, then.stderr)
    source = tfds.builder_from_directory(out).as_data_source('train')
    self.assertEqual(_ids(source), list(range(_NUM_EPISODES)))


if __name__ == '__main__':
  tf.test.main()
