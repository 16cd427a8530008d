"""Tests of frames in memory and in folders of prepared frames."""

import json
import os
import shutil
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.replay import opening
from rlds2reverb.replay.local import prepared
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.replay.local import store
from rlds2reverb.store import files
from tests import golden
from tests.replay.local import cuts

_WINDOWS = store.ItemWindows(2, 1, False)
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
  found, checksums = writer.finish(_WINDOWS, _RUNS, priorities)
  if folder is not None:
    prepared.write_metadata(folder, found, checksums, 'the data')
  return found


class StoreTest(parameterized.TestCase, tf.test.TestCase):

  def check_holds(self, found, frames, priorities=None):
    starts = np.array([5, 0, 3])
    rows = starts[:, np.newaxis] + np.arange(2)
    actual = tf.nest.pack_sequence_as(frames, found.read(starts, 2))
    expected = tf.nest.map_structure(lambda leaf: leaf[rows], frames)
    golden.assert_frames_equal(self, [actual], [expected])
    self.assertEqual(found.windows, _WINDOWS)
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
    self.assertLen({found.fingerprint for found in stores}, 3)

  @parameterized.parameters(None, [[1.0, 0.0, 2.5, 1e-9, 4.0]])
  def test_in_a_folder(self, priorities):
    folder = self.create_tempdir().full_path
    array = None if priorities is None else np.array(priorities)
    written = _write(_frames(), folder, array)
    opened = prepared.open_store(folder)
    for found in written, opened, prepared.open_store(folder):
      self.check_holds(found, _frames(), priorities)
    self.assertEqual(opened.spec, _spec())
    self.assertEqual(opened.fingerprint, written.fingerprint)
    self.assertEqual(prepared.read_marker(folder)['made_from'], 'the data')

  def test_a_folder_that_is_written_anew(self):
    folder = os.path.join(self.create_tempdir().full_path, 'frames')
    for base in range(2):
      os.mkdir(folder)
      _write(_frames(base), folder)
      self.check_holds(prepared.open_store(folder), _frames(base))
      for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
      os.rmdir(folder)

  def test_files_that_can_only_be_read(self):
    folder = self.create_tempdir().full_path
    _write(_frames(), folder)
    for name in os.listdir(folder):
      os.chmod(os.path.join(folder, name), 0o444)
    os.chmod(folder, 0o555)
    self.check_holds(prepared.open_store(folder), _frames())
    os.chmod(folder, 0o755)

  def test_what_another_version_has_prepared(self):
    folder = self.create_tempdir().full_path
    _write(_frames(), folder)
    path = os.path.join(folder, prepared.MARKER)
    with open(path, encoding='utf-8') as f:
      marker = json.load(f)
    marker['version'] += 1
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(marker, f)
    for call in prepared.read_marker, prepared.open_store:
      with self.assertRaisesRegex(
          OSError, 'of version 4, and this is version 3'
      ):
        call(folder)

  def test_a_folder_of_something_else(self):
    folder = self.create_tempdir().full_path
    self.assertIsNone(prepared.read_marker(folder))
    for path in folder, os.path.join(folder, 'none'):
      with self.assertRaisesRegex(FileNotFoundError, 'no prepared frames'):
        prepared.open_store(path)

  def test_no_strings(self):
    writer = store.StoreWriter(cuts.frame_spec())
    writer.append(cuts.make_frames(5, 9))
    found, _ = writer.finish(_WINDOWS, _RUNS, None)
    leaves = found.read(np.array([3, 0]), 1)
    found = tf.nest.pack_sequence_as(cuts.frame_spec(), leaves)
    self.assertEqual(found.observation.tolist(), [[8], [5]])

  def test_what_goes_wrong_elsewhere_is_no_damage(self):
    folder = self.create_tempdir().full_path
    _write(_frames(), folder)
    with mock.patch.object(np, 'load', side_effect=MemoryError):
      with self.assertRaises(MemoryError):
        prepared.open_store(folder)

  @mock.patch.object(files, 'BLOCK_BYTES', 4096)
  def test_a_file_of_many_blocks(self):
    folder = self.create_tempdir().full_path
    spec = cuts.frame_spec()._replace(action=tf.TensorSpec([4096], tf.uint8))
    writer = store.StoreWriter(spec, folder)
    for k in range(70):
      writer.append(
          cuts.make_frames(k, k + 1)._replace(
              action=np.full([1, 4096], k, np.uint8)
          )
      )
    runs = store.Runs(*(np.array([each]) for each in (0, 70, 69, 0.0)))
    prepared.write_metadata(folder, *writer.finish(_WINDOWS, runs, None), None)
    path = os.path.join(folder, 'rows-1.bin')
    prepared.check_prepared_frames(folder)
    damaged = []
    for block in range(70):
      self.flip(path, block * 4096 + 471)
      with self.assertRaisesRegex(OSError, f'{path}.*MB {block} is wrong'):
        prepared.check_prepared_frames(folder)
      try:
        prepared.open_store(folder)
      except OSError:
        damaged.append(block)
      self.flip(path, block * 4096 + 471)
    # The first, the last, and as many others as the docstring says.
    self.assertLen(damaged, 32)
    self.assertEqual((damaged[0], damaged[-1]), (0, 69))

  def flip(self, path, at, bit=0):
    with open(path, 'r+b') as f:
      f.seek(at)
      [byte] = f.read(1)
      f.seek(at)
      f.write(bytes([byte ^ 1 << bit]))


class DamageTest(tf.test.TestCase):

  def damage(self, folder, rng):
    """Damages a file of a folder at random, and says how."""
    name = rng.choice(sorted(os.listdir(folder)))
    path = os.path.join(folder, name)
    with open(path, 'rb') as f:
      data = bytearray(f.read())
    kind = rng.choice(['flip', 'byte', 'cut', 'longer', 'zeros', 'gone'])
    at = int(rng.integers(len(data))) if data else 0
    if kind == 'gone':
      os.remove(path)
      return kind, name
    if kind == 'flip' and data:
      data[at] ^= 1 << rng.integers(8)
    elif kind == 'byte' and data:
      data[at] = rng.integers(256)
    elif kind == 'zeros':
      data[at : at + 20] = bytes(len(data[at : at + 20]))
    elif kind == 'cut':
      del data[at:]
    else:
      data += rng.bytes(int(rng.integers(1, 9)))
    with open(path, 'wb') as f:
      f.write(data)
    return kind, name, at

  def test_a_few_damages(self):
    self.check(8)

  @pytest.mark.long
  def test_the_content_is_equal_or_there_is_an_error(self):
    self.check(200)

  def check(self, count):
    whole = os.path.join(self.create_tempdir().full_path, 'frames')
    [episode] = cuts.episodes_of([9])
    words = np.array([b'word %d' % k for k in range(9)], object)
    episode['observation'] = {'x': episode['observation'], 'word': words}
    data = tf.data.Dataset.from_tensors({'steps': episode}).repeat(3)
    replay_buffer.EpisodesReplayBuffer(data, directory=whole)
    content = replay_buffer.EpisodesReplayBuffer(whole)
    ways = (
        prepared.open_store,
        lambda folder: replay_buffer.EpisodesReplayBuffer(folder).store,
        lambda folder: opening.open_replay_buffer(folder).store,
        lambda folder: replay_buffer.EpisodesReplayBuffer(
            data, directory=folder
        ).store,
        lambda folder: prepared.check_prepared_frames(folder)
        or prepared.open_store(folder),
    )
    expected = content.store.read(np.arange(26), 2)
    rng = np.random.default_rng(0)
    counts = [0, 0]
    for number in range(count):
      folder = f'{whole}-{number}'
      shutil.copytree(whole, folder)
      what = self.damage(folder, rng)
      for way in ways:
        with self.subTest(what):
          try:
            found = way(folder).read(np.arange(26), 2)
          except OSError as e:
            self.assertRegex(
                str(e), f'{folder}.* (damaged|prepared|not empty|version)'
            )
            counts[1] += 1
            continue
          for one, other in zip(found, expected):
            np.testing.assert_array_equal(one, other)
          counts[0] += 1
      shutil.rmtree(folder)
    self.assertGreater(counts[1], 3 * count)


class MapFileTest(tf.test.TestCase):

  def test_bytes_are_read_as_they_are_used(self):
    path = os.path.join(self.create_tempdir().full_path, 'file')
    size = 8 << 30  # With holes, so it takes no space on the disk.
    with open(path, 'wb') as f:
      f.truncate(size)
      f.seek(size - 2)
      f.write(b'\7\5')
    array = files.map_file(path, [size // 4096, 4096])
    self.assertEqual(array[-1, -3:].tolist(), [0, 7, 5])


if __name__ == '__main__':
  tf.test.main()
