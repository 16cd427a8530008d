"""Tests of frames in memory and in files."""

import json
import mmap
import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.replay.local import store
from tests import golden
from tests.replay.local import cuts

_FORM = store.Form(2, 1, False)
_RUNS = store.Runs(
    np.array([0, 3]), np.array([3, 4]), np.array([2, 3]), np.array([1.5, -2.0])
)


def _frames(base=0):
  rng = np.random.default_rng(base)
  count = 7
  return trajectory.Trajectory(
      step_type=rng.integers(0, 3, count).astype(np.int32),
      observation={
          'image': rng.integers(0, 256, [count, 40, 30]).astype(np.uint8),
          'word': np.array([rng.bytes(i) for i in range(count)], object),
          'state': (rng.normal(size=[count, 2]), rng.normal(size=count) > 0),
      },
      action=rng.normal(size=[count, 1]).astype(np.float32),
      policy_info=(),
      next_step_type=rng.integers(0, 3, count).astype(np.int32),
      reward=rng.normal(size=count).astype(np.float32),
      discount=np.ones(count, np.float32),
  )


def _spec():
  return tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(
          leaf.shape[1:], tf.string if leaf.dtype == object else leaf.dtype
      ),
      _frames(),
  )


def _write(frames, folder=None, priorities=None):
  writer = store.StoreWriter(_spec(), folder)
  for begin, end in ((0, 2), (2, 7)):
    writer.append(
        tf.nest.map_structure(lambda leaf: leaf[begin:end], frames)  # pylint: disable=cell-var-from-loop
    )
  return writer.finish(_FORM, _RUNS, priorities, 'a fingerprint')


class StoreTest(parameterized.TestCase, tf.test.TestCase):

  def check_holds(self, found, frames, priorities=None):
    rows = np.array([[6, 0], [3, 3]])
    actual = tf.nest.map_structure(
        lambda leaf: leaf.numpy(), found.read(tf.constant(rows))
    )
    expected = tf.nest.map_structure(lambda leaf: leaf[rows], frames)
    golden.assert_frames_equal(self, [actual], [expected])
    self.assertEqual(found.form, _FORM)
    for values, expected in zip(found.runs, _RUNS):
      np.testing.assert_array_equal(values, expected, strict=True)
    self.assertEqual((found.num_frames, found.num_items), (7, 5))
    if priorities is None:
      self.assertIsNone(found.priorities)
    else:
      self.assertEqual(found.priorities.tolist(), priorities)

  def test_in_memory(self):
    # All are of one size, which TensorFlow must not take for the same.
    stores = [_write(_frames(base)) for base in range(3)]
    for base, found in enumerate(stores):
      self.check_holds(found, _frames(base))

  @parameterized.parameters(None, [[1.0, 0.0, 2.5, 1e-9, 4.0]])
  def test_in_a_folder(self, priorities):
    folder = self.create_tempdir().full_path
    array = None if priorities is None else np.array(priorities)
    written = _write(_frames(), folder, array)
    opened = store.open_store(folder)
    for found in written, opened, store.open_store(folder):
      self.check_holds(found, _frames(), priorities)
    self.assertEqual(opened.format.spec, _spec())
    self.assertEqual(store.read_marker(folder)['fingerprint'], 'a fingerprint')

  def test_a_folder_that_is_written_anew(self):
    folder = os.path.join(self.create_tempdir().full_path, 'frames')
    for base in range(2):
      os.mkdir(folder)
      _write(_frames(base), folder)
      self.check_holds(store.open_store(folder), _frames(base))
      for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
      os.rmdir(folder)

  def test_files_that_can_only_be_read(self):
    folder = self.create_tempdir().full_path
    _write(_frames(), folder)
    for name in os.listdir(folder):
      os.chmod(os.path.join(folder, name), 0o444)
    os.chmod(folder, 0o555)
    self.check_holds(store.open_store(folder), _frames())
    os.chmod(folder, 0o755)

  def test_a_file_that_is_cut_or_missing(self):
    folder = self.create_tempdir().full_path
    _write(_frames(), folder, np.ones(5))
    names = sorted(os.listdir(folder))
    self.assertLen(names, 6)
    for name in names:
      path = os.path.join(folder, name)
      with open(path, 'rb') as f:
        whole = f.read()
      for size in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 2}:
        with self.subTest(name=name, size=size):
          os.truncate(path, size)
          with self.assertRaisesRegex(OSError, f'{path} is damaged'):
            store.open_store(folder)
          with open(path, 'wb') as f:
            f.write(whole)
      with self.subTest(name=name, size=None):
        os.remove(path)
        with self.assertRaises(OSError):
          store.open_store(folder)
        with open(path, 'wb') as f:
          f.write(whole)
    self.check_holds(store.open_store(folder), _frames(), [1.0] * 5)

  def test_a_file_that_is_longer(self):
    folder = self.create_tempdir().full_path
    _write(_frames(), folder)
    with open(os.path.join(folder, 'strings.bin'), 'ab') as f:
      f.write(b'x')
    with self.assertRaisesRegex(OSError, '22 bytes instead of 21'):
      store.open_store(folder)

  def test_what_another_version_has_prepared(self):
    folder = self.create_tempdir().full_path
    _write(_frames(), folder)
    path = os.path.join(folder, store.MARKER)
    with open(path, encoding='utf-8') as f:
      marker = json.load(f)
    marker['version'] += 1
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(marker, f)
    self.assertIsNone(store.read_marker(folder))
    with self.assertRaisesRegex(FileNotFoundError, 'version'):
      store.open_store(folder)

  def test_a_folder_of_something_else(self):
    folder = self.create_tempdir().full_path
    self.assertIsNone(store.read_marker(folder))
    for path in folder, os.path.join(folder, 'none'):
      with self.assertRaisesRegex(FileNotFoundError, 'no prepared frames'):
        store.open_store(path)

  def test_no_strings(self):
    writer = store.StoreWriter(cuts.frame_spec(), None)
    writer.append(cuts.make_frames(5, 9))
    found = writer.finish(_FORM, _RUNS, None)
    self.assertEqual(
        found.read(tf.constant([3, 0], tf.int64)).observation.numpy().tolist(),
        [8, 5],
    )


class MapFileTest(tf.test.TestCase):

  def test_bytes_are_read_as_they_are_used(self):
    path = os.path.join(self.create_tempdir().full_path, 'file')
    size = 8 << 30  # With holes, so it takes no space on the disk.
    with open(path, 'wb') as f:
      f.truncate(size)
      f.seek(size - 2)
      f.write(b'\7\5')
    tensor = store.map_file(path, [size // 4096, 4096])
    self.assertEqual(tensor.shape, [size // 4096, 4096])
    last = tf.gather(tensor, [size // 4096 - 1])[0, -3:]
    self.assertEqual(last.numpy().tolist(), [0, 7, 5])

  def test_a_tensor_has_the_memory_of_an_array(self):
    for count in 1, 10000:  # Less than what TensorFlow copies, and more.
      array = np.frombuffer(mmap.mmap(-1, 4096 * count), np.int64)
      tensor = store.as_tensor(array)
      array[-1] = 7
      self.assertEqual(int(tensor[-1]), 7)
      array[-1] = 8
      self.assertEqual(int(tensor[-1]), 8)


if __name__ == '__main__':
  tf.test.main()
