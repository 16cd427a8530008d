import gzip
import os
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tree

import rlds2reverb
from rlds2reverb import random_access
from rlds2reverb import transforms
from rlds2reverb import windows
from rlds2reverb.datasets import record_files
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import sources
from rlds2reverb.random_access import building
from tests import golden
from tests.random_access import data
from tests.replay.local import replay_testing

_LENGTHS = [4, 1, 7, 2, 3, 9, 1]


class BuildIndexTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls.directory = os.path.join(folder, '1.0.0')
    data.write(cls.directory, _LENGTHS)
    cls.folder = os.path.join(folder, 'index')
    random_access.build_index(cls.directory, cls.folder)

  def new_folder(self):
    return os.path.join(self.create_tempdir().full_path, 'index')

  def load(self, split='train'):
    return rlds2reverb.load_episodes(
        self.directory, split, decoders=data.encoded()
    )

  @parameterized.parameters(*range(7))
  @pytest.mark.few(1)
  def test_items_equal_tf_data(self, seed):
    rng = np.random.default_rng(seed)
    directory = os.path.join(self.create_tempdir().full_path, '1.0.0')
    data.write(directory, rng.integers(1, 9, 6), seed, int(rng.integers(1, 4)))
    split = ('train', 'train[3:]+train[:3]', 'train[1:5]')[seed % 3 - 2]
    episodes = rlds2reverb.load_episodes(
        directory, split, decoders=data.encoded()
    )
    index = random_access.build_index(directory, self.new_folder(), split)
    # The first seed, which is always tested, has one frame.
    args = (
        int(rng.integers(2, 4)) if seed % 3 else 1,
        int(rng.integers(1, 4)),
        'repeat' if seed % 4 else 'zeros',
    )
    items = random_access.Items(index, random_access.ActionChunks(*args))
    expected = data.as_list(
        episodes.flat_map(
            lambda episode: tf.data.Dataset.from_tensor_slices(
                windows.stack_and_chunk(
                    episode['steps'],
                    args[0] if args[0] > 1 else None,
                    *args[1:],
                )
            )
        )
    )
    self.assertLen(items, len(expected))
    for number, item in enumerate(expected):
      data.assert_equal(self, item, items[number])
    some = [3, 0, 3, len(items) - 1, -2]
    for number, item in zip(some, items.__getitems__(some)):
      data.assert_equal(self, expected[number], item)
    # Windows of steps, found by the oracle of replay buffers.
    steps = [episode['steps'] for episode in data.as_list(episodes)]
    columns = tree.map_structure(lambda *x: np.concatenate(x), *steps)
    window = windows_lib.Windows(
        *map(int, rng.integers(1, 5, 2)), list(windows_lib.EndOfEpisode)[seed]
    )
    items = random_access.Items(index, window, with_mask=True)
    lengths = [len(each['reward']) for each in steps]
    rows = replay_testing.cut_rows(
        lengths, window.length, window.stride, window.end.value
    )
    self.assertLen(items, len(rows))
    if not rows:
      return
    rows = np.array(rows)
    actual = items.batch(np.arange(len(items)))
    is_real = actual.pop('mask')
    if window.end != 'repeat_last':
      self.assertAllEqual(is_real, rows >= 0)
    for leaf, column in zip(tree.flatten(actual), tree.flatten(columns)):
      np.testing.assert_array_equal(leaf[rows >= 0], column[rows[rows >= 0]])
      filled = leaf[rows < 0]
      self.assertTrue(
          (filled == np.zeros((), leaf.dtype)).all()
          if leaf.dtype != object
          else not any(filled)
      )

  def test_prepared_episodes_are_indexed(self):
    mapping = rlds2reverb.fields.StepMapping(
        observation={
            'image': 'observation/image',
            'cover': '../cover',
            'words': '../instruction',
        },
        action='action/arm',
        discount=None,
        last_action=True,
    )

    def prepare(episodes):
      return transforms.transform_episodes(
          rlds2reverb.map_fields(episodes, mapping),
          [
              transforms.KeepEpisodes(min_length=2),
              # It draws by the place of an episode in the data set.
              transforms.RelabelGoals(field='observation/image', seed=3),
          ],
      )

    episodes = prepare(self.load())
    expected = [episode['steps'] for episode in data.as_list(episodes)]
    expected = tree.map_structure(lambda *x: np.concatenate(x), *expected)
    index = random_access.build_index(
        self.directory, self.new_folder(), prepare=prepare, num_processes=2
    )
    items = random_access.Items(index, windows_lib.Windows(1))
    actual = items.batch(np.arange(len(items)))
    actual = tree.map_structure(lambda leaf: leaf[:, 0], actual)
    data.assert_equal(self, expected, actual)
    # The index does not duplicate the content of the files.
    size = os.path.getsize(os.path.join(index.folder, 'strings.bin'))
    self.assertLess(size, 100)
    # The last action is valid, because the data set has has_action.
    expected = data.as_list(
        episodes.flat_map(
            lambda episode: tf.data.Dataset.from_tensor_slices(
                windows.stack_and_chunk(episode['steps'], 2, 2)
            )
        )
    )
    for last_steps in False, True:
      chunks = random_access.ActionChunks(2, 2, last_steps=last_steps)
      items = random_access.Items(index, chunks)
      self.assertLen(items, len(expected))
      for number, item in enumerate(expected):
        data.assert_equal(self, item, items[number])

  @parameterized.parameters('bool', 'float32', 'int64', 'uint16')
  def test_has_action_of_any_dtype(self, dtype):
    # The lowest byte of 1.0 and of 256 is 0; and 2 is not two actions.
    true = {'int64': 2, 'uint16': 256}.get(dtype, 1)
    has_action = np.multiply([1, 1, 1, 0, 1, 1], true).astype(dtype)
    for shape in ([-1], [-1, 1]):
      episodes = []
      for rows in slice(4), slice(4, 6):
        number = np.arange(6, dtype=np.float32)[rows]
        episodes.append(
            {
                'observation': number,
                'action': number[:, np.newaxis],
                'is_first': number == number[0],
                'has_action': has_action.reshape(shape)[rows],
            }
        )
      index = random_access.build_index(
          golden.stacked(episodes), self.new_folder()
      )
      chunks = random_access.ActionChunks(2, 2)
      found = random_access.Items(index, chunks).batch(np.arange(6))
      expected = [windows.stack_and_chunk(each, 2, 2) for each in episodes]
      tree.map_structure(
          lambda leaf, *parts: self.assertAllEqual(leaf, np.concatenate(parts)),
          found,
          *expected,
      )
      own_frames = found['action_mask'][:, 1].tolist()
      t, f = True, False
      self.assertEqual(
          own_frames, [[t, t], [t, t], [t, f], [f, f], [t, t], [t, f]]
      )

  def test_has_action_must_be_one_number(self):
    steps = {
        name: np.ones([3, 2], np.float32)
        for name in ('observation', 'action', 'has_action')
    }
    steps['is_first'] = np.arange(3) == 0
    index = random_access.build_index(
        golden.stacked([steps]), self.new_folder()
    )
    message = 'has_action must be one number or bool per step'
    with self.assertRaisesRegex(ValueError, message):
      random_access.Items(index, random_access.ActionChunks())
    with self.assertRaisesRegex(ValueError, message):
      windows.stack_and_chunk(steps, 2, 2)

  def test_files_that_tfds_reads_itself_are_copied(self):
    index = random_access.Index(self.folder)
    with mock.patch.object(
        building.files_lib, 'is_url', lambda path: path == self.directory
    ), self.assertLogs(level='WARNING') as logs:
      copy = random_access.build_index(self.directory, self.new_folder())
    self.assertIn('copied into the index: it is not on the local', str(logs))
    self.assertIsNone(copy.files)
    items, copies = (
        random_access.Items(each, windows_lib.Windows(2))
        for each in (index, copy)
    )
    everything = np.arange(len(items))
    data.assert_equal(self, items.batch(everything), copies.batch(everything))

  def test_data_of_other_formats_is_copied(self):
    path = os.path.join(self.create_tempdir().full_path, 'data.npz')
    columns = {
        'observations': np.arange(12.0).reshape([6, 2]),
        'actions': np.arange(6.0),
        'rewards': np.arange(6.0),
        'terminals': np.arange(6) % 3 == 2,
    }
    np.savez(path, **columns)
    index = random_access.build_index(path, self.new_folder())
    items = random_access.Items(index, random_access.ActionChunks())
    expected = np.concatenate(
        [
            episode['steps']['action']
            for episode in data.as_list(rlds2reverb.formats.load(path))
        ]
    )
    self.assertAllEqual(items.column('action'), expected)

  def test_files_that_cannot_be_read(self):
    directory = os.path.join(self.create_tempdir().full_path, '1.0.0')
    shutil.copytree(self.directory, directory)
    one, other, *_ = sorted(pathlib.Path(directory).glob('*tfrecord*'))
    content = bytearray(other.read_bytes())
    begin = 16 + record_files.read_lengths(os.fspath(other), 1)[0]
    content[begin + 500] ^= 1
    other.write_bytes(content)
    with self.assertRaisesRegex(
        OSError, f'{other} is damaged: the record at byte {begin} cannot'
    ):
      random_access.build_index(directory, self.new_folder())
    one.write_bytes(gzip.compress(one.read_bytes()))
    with self.assertRaisesRegex(OSError, 'compressed.*unpack it'):
      random_access.build_index(directory, self.new_folder())

  @parameterized.parameters('tfrecord', 'array_record')
  def test_shards_that_are_pointers_or_missing(self, file_format):
    directory = os.path.join(self.create_tempdir().full_path, 'a')
    rlds2reverb.datasets.save_episodes(
        self.load(), directory, file_format=file_format
    )
    [shard] = pathlib.Path(directory).glob('*record-*')
    content = shard.read_bytes()
    opened = self.new_folder()

    def open_batches(folder):
      return random_access.open_batches(
          {'a': directory}, folder, 2, random_access.ActionChunks()
      )

    open_batches(opened)
    pointer = f'{shard} is a Git LFS pointer, .* Run `git lfs pull`'
    shard.write_bytes(b'version https://git-lfs.github.com/spec/v1\nsize 1\n')
    # Before and after the index is made.
    for folder in self.new_folder(), opened:
      with self.assertRaisesRegex(OSError, pointer):
        open_batches(folder)
    shard.unlink()
    for folder in self.new_folder(), opened:
      with self.assertRaisesRegex(FileNotFoundError, f'^{shard} is missing'):
        open_batches(folder)
    source = sources.open_source(sources.make_source(directory))
    with self.assertRaisesRegex(
        FileNotFoundError, f'^{shard} is missing. Copy'
    ):
      source.compute_state(source.ranges)
    shard.write_bytes(content)
    open_batches(opened)

  def test_images_that_are_changed_are_copied(self):
    def prepare(episodes):
      return episodes.map(
          lambda episode: {
              'steps': transforms.decode_images(
                  episode['steps'], ['observation/image'], size=(4, 4)
              )
          }
      )

    with self.assertLogs(level='WARNING') as logs:
      index = random_access.build_index(
          self.directory, self.new_folder(), prepare=prepare
      )
    self.assertIn('is copied into the index: prepare looks', str(logs))
    items = random_access.Items(index, windows_lib.Windows(1))
    actual = items.batch(np.arange(len(items)))['observation']
    expected = [e['steps'] for e in data.as_list(prepare(self.load()))]
    for name in 'image', 'depth':
      self.assertAllEqual(
          actual[name][:, 0],
          np.concatenate([steps['observation'][name] for steps in expected]),
      )

  def test_unknown_shapes_and_existing_folders_raise(self):
    spec = {'observation': tf.TensorSpec([None, None], tf.float64)}
    dataset = golden.stacked([{'observation': np.zeros([2, 3])}], spec)
    with self.assertRaisesRegex(ValueError, 'Field observation has the shape'):
      random_access.build_index(dataset, self.new_folder())
    with self.assertRaises(FileExistsError):
      random_access.build_index(self.directory, self.folder)


if __name__ == '__main__':
  tf.test.main()
