"""Tests of merging sorted keys, against numpy."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.replay.checkpoint import part_keys


class PartKeysTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(part_keys, '_KEYS_IN_MEMORY', 8))
    self.enter_context(mock.patch.object(part_keys, '_MIN_KEYS_PER_READ', 3))

  def _write(self, *parts):
    folder = self.create_tempdir().full_path
    paths = [os.path.join(folder, str(index)) for index in range(len(parts))]
    for path, keys in zip(paths, parts):
      part_keys.write(path, 'items', np.array(keys, np.uint64))
    return paths, os.path.join(folder, 'merged')

  @parameterized.parameters(0, 1, 2, 7)
  def test_keys_of_all_files_in_their_order(self, num_files):
    rng = np.random.default_rng(num_files)
    keys = np.unique(rng.integers(0, 2**64, 200, np.uint64))
    rng.shuffle(keys)
    cuts = np.sort(rng.integers(0, len(keys), max(num_files - 1, 0)))
    parts = np.split(keys, cuts)[:num_files]
    paths, target = self._write(*parts)
    part_keys.merge(paths, 'items', target)
    np.testing.assert_array_equal(
        np.fromfile(target, '<u8'),
        np.sort(keys) if num_files else [],
    )

  def test_files_without_keys(self):
    paths, target = self._write([], [5, 1], [])
    part_keys.merge(paths, 'items', target)
    np.testing.assert_array_equal(np.fromfile(target, '<u8'), [1, 5])

  @parameterized.parameters(
      ([[1, 2, 2**64 - 1], [3, 2**64 - 1]],),
      ([list(range(20)), list(range(30, 50)), [19]],),
  )
  def test_a_key_that_two_files_have(self, parts):
    paths, _ = self._write(*parts)
    with self.assertRaisesRegex(ValueError, 'Two items have the same key'):
      part_keys.merge(paths, 'items')

  def test_a_key_that_one_file_has_twice(self):
    with self.assertRaisesRegex(ValueError, 'Two items have the same key'):
      self._write([4, 3, 4])


if __name__ == '__main__':
  absltest.main()
