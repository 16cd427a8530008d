"""Tests of row stores in folders: damage is an error or has no effect."""

import json
import os
import shutil
from unittest import mock
import zlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.replay import opening
from rlds2reverb.replay.local import loading
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.store import folders
from rlds2reverb.store import rows
from tests.replay.local import replay_testing


def _flip(path, at, bit=0):
  with open(path, 'r+b') as f:
    f.seek(at)
    [byte] = f.read(1)
    f.seek(at)
    f.write(bytes([byte ^ 1 << bit]))


class FoldersTest(parameterized.TestCase):

  def write(self, folder, base=0):
    columns = [
        rows.Column(('n',), 'int64', ()),
        rows.Column(('s',), 'string', ()),
    ]
    writer = rows.StoreWriter(rows.RowLayout(columns), folder)
    for begin, end in ((0, 2), (2, 7)):
      numbers = np.arange(begin, end) + base
      writer.append([numbers, np.array([b'%d' % n for n in numbers], object)])
    return writer.finish({'a': [1, None]}, {'x': np.arange(3)}, rows.INDEX)

  def shown(self, store):
    leaves = store.with_strings(store.gather(np.array([5, 0]), 2))
    self.assertEqual(store.meta, {'a': [1, None]})
    self.assertEqual(store.arrays['x'].tolist(), [0, 1, 2])
    return [leaf.tolist() for leaf in leaves]

  def test_written_rows_are_read_back(self):
    folder = self.create_tempdir().full_path
    in_memory, written = self.write(None), self.write(folder)
    for name in os.listdir(folder):
      os.chmod(os.path.join(folder, name), 0o444)
    for store in in_memory, written, rows.open_rows(folder, rows.INDEX):
      expected = [[[5, 6], [0, 1]], [[b'5', b'6'], [b'0', b'1']]]
      self.assertEqual(self.shown(store), expected)
      self.assertEqual(store.fingerprint, written.fingerprint)
    # Of one size, but not the same.
    self.assertNotEqual(self.write(None, 1).fingerprint, written.fingerprint)

  def test_folders_that_are_refused(self):
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(FileNotFoundError, 'index.*has no store.json'):
      rows.open_rows(os.path.join(folder, 'none'), rows.INDEX)
    self.write(folder)
    with self.assertRaisesRegex(FileNotFoundError, 'prepared.*has index for'):
      loading.open_frames(folder)
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
    deep = '[' * 5000 + ']' * 5000
    for text in deep, json.dumps(
        {
            **marker,
            'content': deep,
            'checksum': zlib.crc32(deep.encode()),
        }
    ):
      with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
      with self.assertRaisesRegex(OSError, f'{path} is damaged: .*nested too'):
        folders.read_marker(folder)
    for name in 'prepared_frames.json', 'random_access.json':
      old = self.create_tempdir()
      old.create_file(name)
      with self.assertRaisesRegex(OSError, f'{name} is of .* an older one'):
        rows.open_rows(old.full_path)

  @mock.patch.object(folders, 'BLOCK_BYTES', 4096)
  def test_a_file_of_many_blocks(self):
    folder = self.create_tempdir().full_path
    column = rows.Column(('x',), 'uint8', [4096])
    writer = rows.StoreWriter(rows.RowLayout([column]), folder)
    blocks = np.repeat(np.arange(70, dtype=np.uint8), 4096)
    writer.append([blocks.reshape([70, 4096])])
    writer.finish({}, {})
    path = os.path.join(folder, 'rows-1.bin')
    rows.open_rows(folder)
    damaged = []
    for block in range(70):
      _flip(path, block * 4096 + 471)
      with self.assertRaisesRegex(OSError, f'{path}.*MB {block} is wrong'):
        rows.open_rows(folder)
      try:
        rows.open_rows(folder, blocks=32)
      except OSError:
        damaged.append(block)
      _flip(path, block * 4096 + 471)
    self.assertLen(damaged, 32)
    self.assertEqual((damaged[0], damaged[-1]), (0, 69))

  def damage(self, folder, rng):
    """Damages a file of a folder at random; returns a description."""
    name = rng.choice(sorted(os.listdir(folder)))
    path = os.path.join(folder, name)
    with open(path, 'rb') as f:
      data = bytearray(f.read())
    kind = rng.choice(['flip', 'byte', 'cut', 'longer', 'zeros', 'gone'])
    position = int(rng.integers(len(data)))
    if kind == 'flip':
      data[position] ^= 1 << rng.integers(8)
    elif kind == 'byte':
      data[position] = rng.integers(256)
    elif kind == 'zeros':
      data[position : position + 20] = bytes(
          len(data[position : position + 20])
      )
    elif kind == 'cut':
      del data[position:]
    elif kind == 'longer':
      data += rng.bytes(int(rng.integers(1, 9)))
    os.remove(path)
    if kind != 'gone':
      with open(path, 'wb') as f:
        f.write(data)
    return kind, name, position

  @parameterized.parameters(8, 200)
  @pytest.mark.few(1)
  def test_damages_are_errors_or_have_the_content(self, count):
    whole = os.path.join(self.create_tempdir().full_path, 'frames')
    [episode] = replay_testing.episodes_of([9])
    words = np.array([b'word %d' % k for k in range(9)], object)
    episode['observation'] = {'x': episode['observation'], 'word': words}
    data = tf.data.Dataset.from_tensors({'steps': episode}).repeat(3)
    make = replay_buffer.EpisodesReplayBuffer
    expected = make(data, directory=whole)
    ways = (
        lambda folder: opening.open_replay_buffer(folder).store,
        lambda folder: make(data, directory=folder).store,
    )
    read = lambda store: store.rows.with_strings(
        store.rows.gather(np.arange(26), 2)
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
            actual = read(way(folder))
          except OSError as e:
            self.assertRegex(
                str(e), f'{folder}.* (damaged|prepared|not empty|version)'
            )
            errors += 1
            continue
          for actual_value, expected_value in zip(actual, expected):
            np.testing.assert_array_equal(actual_value, expected_value)
      shutil.rmtree(folder)
    self.assertGreater(errors, 1.5 * count)


if __name__ == '__main__':
  absltest.main()
