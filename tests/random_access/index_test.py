"""An index and its items, where they are read: in processes, and damaged."""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb import random_access
from tests.random_access import data

# It fails where TensorFlow is imported.
_READ = """
import pickle, sys
sys.modules['tensorflow'] = sys.modules['tf_agents'] = None
sys.modules['reverb'] = None
with open(sys.argv[1], 'rb') as f:
  items = pickle.load(f)
print(len(items), items[3]['observation']['image'].sum())
print(int(items.batch(range(len(items)))['reward'].sum() * 1000))
"""


class IndexTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(cls.enter_context(tempfile.TemporaryDirectory()))
    cls.written = str(cls.folder / 'data' / '1.0.0')
    data.write(cls.written, [4, 1, 7, 2, 3])
    random_access.build_index(cls.written, str(cls.folder / 'index'))

  def setUp(self):
    super().setUp()
    # Tests damage copies.
    self.copy = pathlib.Path(self.create_tempdir().full_path)
    self.data_dir = str(self.copy / 'data')
    self.index_dir = str(self.copy / 'index')
    shutil.copytree(self.written, self.data_dir)
    shutil.copytree(self.folder / 'index', self.index_dir)
    self.files = sorted(pathlib.Path(self.data_dir).glob('*tfrecord*'))

  def open(self):
    return random_access.Items(
        random_access.Index(self.index_dir, self.data_dir),
        random_access.ActionChunks(2, 2),
        images={'observation/image': (8, 8)},
    )

  def test_a_process_without_tensorflow_reads(self):
    items = self.open()
    path = self.copy / 'items.pickle'
    path.write_bytes(pickle.dumps(items))
    self.assertLess(path.stat().st_size, 2000)
    done = subprocess.run(
        [sys.executable, '-c', _READ, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    count, image, reward = done.stdout.split()
    self.assertEqual(int(count), 17)
    self.assertEqual(int(image), items[3]['observation']['image'].sum())
    batch = items.batch(range(17))
    self.assertEqual(int(reward), int(batch['reward'].sum() * 1000))

  @parameterized.parameters('fork', 'threads')
  def test_many_read_at_once(self, way):
    items = self.open()
    rng = np.random.default_rng(0)
    numbers = [rng.integers(0, 17, 8) for _ in range(12)]
    executor = concurrent.futures.ThreadPoolExecutor(8)
    if way == 'fork':
      executor = concurrent.futures.ProcessPoolExecutor(
          2, multiprocessing.get_context(way)
      )
    with executor:
      actual = executor.map(items.batch, numbers)
      for batch, each in zip(actual, numbers, strict=True):
        data.assert_equal(self, items.batch(each), batch)

  def test_files_other_than_the_indexed_ones_raise(self):
    one, other = self.files[:2]
    items = self.open()
    items.batch(range(17))
    content = [path.read_bytes() for path in self.files]
    for path in self.files:  # While they are open.
      os.truncate(path, 10)
    with self.assertRaisesRegex(OSError, 'has other bytes'):
      items.batch(range(17))
    for path, each in zip(self.files, content):
      path.write_bytes(each)
    one.write_bytes(content[1][: len(content[0])].ljust(len(content[0]), b'0'))
    items = self.open()
    with self.assertRaisesRegex(OSError, f'{one.name} is another file'):
      items.batch(range(17))
    os.truncate(other, 10)
    with self.assertRaisesRegex(
        OSError, f'{other.name} has .* builds it again'
    ):
      self.open()
    other.unlink()
    with self.assertRaisesRegex(
        FileNotFoundError, f'{other.name} is missing.* builds it again'
    ):
      self.open()
    shutil.rmtree(self.data_dir)
    with self.assertRaisesRegex(FileNotFoundError, 'open the index with data_'):
      self.open()

  def test_a_data_set_that_grew(self):
    self.open()
    name = self.files[0].name[:-1] + '9'
    shutil.copy(self.files[0], self.files[0].parent / name)
    with self.assertRaisesRegex(
        OSError, 'had 3 files .* now has 4 .*builds it again'
    ):
      self.open()
    os.remove(self.files[0].parent / name)
    # Other splits and additional files next to the data have no effect.
    for added in 'a-test.tfrecord-00000-of-00001', 'statistics-1.json', '.lock':
      (self.copy / 'data' / added).write_text('x')
    self.open()
    info = self.copy / 'data' / 'dataset_info.json'
    content = json.loads(info.read_text())
    content['splits'].append({'name': 'test', 'shardLengths': ['1']})
    info.write_text(json.dumps(content))
    self.open()
    content['splits'][0]['shardLengths'][0] = '7'
    info.write_text(json.dumps(content))
    with self.assertRaisesRegex(OSError, 'has changed since the index'):
      self.open()

  def test_data_that_moved_with_its_index(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    shutil.copytree(self.written, folder / 'old' / 'data')
    random_access.build_index(folder / 'old' / 'data', folder / 'old' / 'index')
    (folder / 'old').rename(folder / 'new')
    index = random_access.Index(folder / 'new' / 'index')
    self.assertLen(random_access.Items(index, random_access.ActionChunks()), 17)
    index = pickle.loads(pickle.dumps(index))
    self.assertEqual(index.files.folder, str(folder / 'new' / 'data'))
    (folder / 'new' / 'data').rename(folder / 'data')
    with self.assertRaisesRegex(FileNotFoundError, 'data_dir= its new folder'):
      random_access.Index(folder / 'new' / 'index')
    random_access.Index(folder / 'new' / 'index', folder / 'data')

  def test_a_changed_image_is_an_error_and_never_another_image(self):
    items = self.open()
    expected = items.batch(range(17))
    path = self.files[1]
    changed = bytearray(path.read_bytes())
    first = changed.index(b'\xff\xd8\xff')
    changed[changed.index(b'\xff\xd8\xff', first + 1) + 200] ^= 1
    # Even while it is open.
    path.write_bytes(changed)
    failed = 0
    for number in range(17):
      try:
        item = items[number]
      except OSError as e:
        self.assertRegex(str(e), f'{path.name} has other bytes')
        failed += 1
        continue
      np.testing.assert_array_equal(
          item['observation']['image'], expected['observation']['image'][number]
      )
    # One step has it, and the next one has it as its last observation.
    self.assertEqual(failed, 2)

  def test_worked_example_of_items_of_one_frame(self):
    index = self.open().index  # Episodes of 4, 1, 7, 2 and 3 steps.
    chunks = random_access.ActionChunks(num_actions=3)
    items = random_access.Items(
        index, chunks, images={'observation/image': (8, 8)}
    )
    arm, state = items.column('action/arm'), items.column('observation/state')
    actual = items.batch([1, 2, 3, 4])
    self.assertEqual(actual['observation']['image'].shape, (4, 8, 8, 3))
    np.testing.assert_array_equal(actual['observation']['state'], state[1:5])
    # The last step of an episode has no action.
    taken = [[1, 2, 2], [2, 2, 2], [2, 2, 2], [4, 4, 4]]
    np.testing.assert_array_equal(actual['action']['arm'], arm[taken])
    np.testing.assert_array_equal(
        actual['action_mask'],
        [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]],
    )
    self.assertNotIn('observation_mask', actual)
    self.assertEqual(items[2]['action']['arm'].shape, (3, 2))
    # A chunk of one action keeps its axis.
    items = random_access.Items(index, random_access.ActionChunks())
    self.assertEqual(items.batch([5, 6])['action']['arm'].shape, (2, 1, 2))

  def test_items_are_named_alike_in_every_process(self):
    items = self.open()
    # Grain compares this when it restores an iterator.
    self.assertEqual(repr(items), repr(pickle.loads(pickle.dumps(items))))
    other = random_access.Items(items.index, random_access.ActionChunks())
    self.assertNotEqual(repr(items), repr(other))
    batches = random_access.Batches(items, 4)
    self.assertNotIn(' object at ', repr(batches.items))

  @parameterized.parameters((3, -1), (3, 0), (1, -1))
  def test_frames_are_concatenated(self, num_frames, axis):
    index = random_access.Index(self.index_dir, self.data_dir)
    images = {'observation/image': (8, 6), 'observation/depth': (4, 6)}

    def make(images=images, **kwargs):
      chunks = random_access.ActionChunks(**kwargs)
      return random_access.Items(index, chunks, images=images)

    single = make().batch(range(17))
    items = make(num_frames=num_frames, frame_axis=axis)
    actual = items.batch(range(17))
    episodes, starts = items.episode_and_start(range(17))
    for name, frames in single['observation'].items():
      for item, (episode, step) in enumerate(zip(episodes, starts)):
        first = np.flatnonzero(episodes == episode)[0]
        past = range(step - num_frames + 1, step + 1)
        np.testing.assert_array_equal(
            actual['observation'][name][item],
            np.concatenate([frames[first + max(s, 0)] for s in past], axis),
        )
      self.assertEqual(
          items.spec['observation'][name].shape,
          actual['observation'][name].shape[1:],
      )
    axes = [17, num_frames, 1] if num_frames > 1 else [17, 1]
    self.assertEqual(list(actual['action_mask'].shape), axes)
    with self.assertRaisesRegex(ValueError, 'depth has 0 axes.*decode'):
      make({}, num_frames=3, frame_axis=-1)
    with self.assertRaisesRegex(ValueError, 'is 1, but observation/.* 1 axes'):
      make(num_frames=3, frame_axis=1)
    with self.assertRaisesRegex(TypeError, 'frame_axis'):
      make(frame_axis=1.5)

  def test_invalid_items_and_fields_raise(self):
    items = self.open()
    for invalid in (17, -18):
      with self.assertRaisesRegex(
          IndexError, f'Item {invalid} is out of range: there are 17 items'
      ):
        items[invalid]
    make = lambda images=None, **kwargs: random_access.Items(
        items.index, random_access.ActionChunks(**kwargs), images=images
    )
    with self.assertRaisesRegex(
        ValueError,
        'words: An image cannot be decoded.*byte .* of .*strings.bin',
    ):
      make({'words': (2, 2)}).batch(range(17))
    with self.assertRaisesRegex(ValueError, 'Did you mean observation/image'):
      make({'observation/imag': (1, 1)})
    with self.assertRaisesRegex(
        ValueError, 'need a field goal, but steps have'
    ):
      make(goal_step='goal')


if __name__ == '__main__':
  absltest.main()
