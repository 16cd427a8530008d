"""Folders of rows: what is damaged is an error, or has the right content."""

import json
import os
import shutil
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.replay import opening
from rlds2reverb.replay.local import loading
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.store import folders
from rlds2reverb.store import layout
from rlds2reverb.store import rows
from tests.replay.local import cuts


def _flip(path, at, bit=0):
  with open(path, 'r+b') as f:
    f.seek(at)
    [byte] = f.read(1)
    f.seek(at)
    f.write(bytes([byte ^ 1 << bit]))


class FoldersTest(absltest.TestCase):

  def write(self, folder, base=0):
    columns = [
        layout.Column(('n',), 'int64', ()),
        layout.Column(('s',), 'string', ()),
    ]
    writer = rows.StoreWriter(layout.RowLayout(columns), folder)
    for begin, end in ((0, 2), (2, 7)):
      numbers = np.arange(begin, end) + base
      writer.append([numbers, np.array([b'%d' % n for n in numbers], object)])
    return writer.finish(
        {'a': [1, None]}, {'lengths': np.array([3, 4])}, rows.INDEX
    )

  def shown(self, store):
    leaves = store.with_strings(store.read(np.array([5, 0]), 2))
    self.assertEqual(store.meta, {'a': [1, None]})
    self.assertEqual(store.arrays['lengths'].tolist(), [3, 4])
    return [leaf.tolist() for leaf in leaves]

  def test_what_is_written_is_read(self):
    folder = self.create_tempdir().full_path
    expected = [[[5, 6], [0, 1]], [[b'5', b'6'], [b'0', b'1']]]
    in_memory, written = self.write(None), self.write(folder)
    for name in os.listdir(folder):
      os.chmod(os.path.join(folder, name), 0o444)
    for store in in_memory, written, rows.open_rows(folder, rows.INDEX):
      self.assertEqual(self.shown(store), expected)
      self.assertEqual(store.fingerprint, written.fingerprint)
    # Of one size, but not the same.
    self.assertNotEqual(self.write(None, 1).fingerprint, written.fingerprint)
    # A folder that is written anew, at the same path.
    shutil.rmtree(folder)
    os.mkdir(folder)
    self.write(folder, 1)
    self.assertEqual(
        self.shown(rows.open_rows(folder, rows.INDEX))[0][1], [1, 2]
    )

  def test_folders_that_are_refused(self):
    folder = self.create_tempdir().full_path
    for path in folder, os.path.join(folder, 'none'):
      self.assertIsNone(folders.read_marker(path))
      with self.assertRaisesRegex(FileNotFoundError, 'holds no'):
        rows.open_rows(path)
    self.write(folder)
    with self.assertRaisesRegex(FileNotFoundError, 'holds no'):
      loading.open_frames(folder)  # It is an index, or something else.
    path = os.path.join(folder, folders.MARKER)
    with open(path, encoding='utf-8') as f:
      marker = json.load(f)
    for change, message in (
        (dict(version=9), 'of version 9, and this is version 5'),
        (dict(checksum=0), 'damaged: its checksum is wrong'),
    ):
      with open(path, 'w', encoding='utf-8') as f:
        json.dump({**marker, **change}, f)
      with self.assertRaisesRegex(OSError, message):
        folders.read_marker(folder)
    for name in 'prepared_frames.json', 'random_access.json':
      old = self.create_tempdir()
      old.create_file(name)
      with self.assertRaisesRegex(OSError, f'{name} is of .* an older one'):
        rows.open_rows(old.full_path)
    folder = self.create_tempdir().full_path
    self.write(folder)
    path = os.path.join(folder, 'rows-0.bin')
    _flip(path, 3)
    for change, message in (
        (lambda: None, 'the checksum of MB 0 is wrong'),
        (lambda: os.truncate(path, 9), 'it has 9 bytes instead of'),
        (lambda: os.remove(path), 'it is missing'),
    ):
      change()
      with self.assertRaisesRegex(OSError, f'rows-0.bin is damaged: {message}'):
        rows.open_rows(folder, rows.INDEX)

  def test_what_goes_wrong_elsewhere_is_no_damage(self):
    folder = self.create_tempdir().full_path
    self.write(folder)
    with mock.patch.object(np, 'load', side_effect=MemoryError):
      with self.assertRaises(MemoryError):
        rows.open_rows(folder, rows.INDEX)

  @mock.patch.object(folders, 'BLOCK_BYTES', 4096)
  def test_a_file_of_many_blocks(self):
    folder = self.create_tempdir().full_path
    column = layout.Column(('x',), 'uint8', [4096])
    writer = rows.StoreWriter(layout.RowLayout([column]), folder)
    for k in range(70):
      writer.append([np.full([1, 4096], k, np.uint8)])
    writer.finish({}, {}, rows.INDEX)
    path = os.path.join(folder, 'rows-1.bin')
    rows.open_rows(folder, rows.INDEX)
    damaged = []
    for block in range(70):
      _flip(path, block * 4096 + 471)
      with self.assertRaisesRegex(OSError, f'{path}.*MB {block} is wrong'):
        rows.open_rows(folder, rows.INDEX)
      try:
        rows.open_rows(folder, rows.INDEX, blocks=32)
      except OSError:
        damaged.append(block)
      _flip(path, block * 4096 + 471)
    self.assertLen(damaged, 32)
    self.assertEqual((damaged[0], damaged[-1]), (0, 69))

  def test_bytes_are_read_as_they_are_used(self):
    path = os.path.join(self.create_tempdir().full_path, 'file')
    size = 8 << 30  # With holes, so it takes no space on the disk.
    with open(path, 'wb') as f:
      f.truncate(size)
      f.seek(size - 2)
      f.write(b'\7\5')
    array = folders.map_file(path, 4096)
    self.assertEqual(array[-1, -3:].tolist(), [0, 7, 5])


class DamageTest(absltest.TestCase):

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
    make = replay_buffer.EpisodesReplayBuffer
    expected = make(data, directory=whole)
    ways = (
        lambda folder: make(folder).store,
        lambda folder: opening.open_replay_buffer(folder).store,
        lambda folder: make(data, directory=folder).store,
    )
    read = lambda store: store.rows.with_strings(
        store.rows.read(np.arange(26), 2)
    )
    expected = read(expected.store)
    rng = np.random.default_rng(0)
    errors = 0
    for number in range(count):
      folder = f'{whole}-{number}'
      shutil.copytree(whole, folder)
      what = self.damage(folder, rng)
      for way in ways:
        with self.subTest(what):
          try:
            found = read(way(folder))
          except OSError as e:
            self.assertRegex(
                str(e), f'{folder}.* (damaged|prepared|not empty|version)'
            )
            errors += 1
            continue
          for one, other in zip(found, expected):
            np.testing.assert_array_equal(one, other)
      shutil.rmtree(folder)
    self.assertGreater(errors, 2 * count)


if __name__ == '__main__':
  absltest.main()
