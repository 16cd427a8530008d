"""Tests for npz."""

import contextlib
import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import formats
from rlds2reverb.formats import npz


class NpzTest(tf.test.TestCase, parameterized.TestCase):

  def _save(self, save, **arrays):
    path = os.path.join(self.create_tempdir().full_path, 'a.npz')
    save(path, **arrays)
    return path

  @parameterized.parameters(np.savez, np.savez_compressed)
  def test_rows_in_any_order(self, save):
    arrays = {
        'a': np.random.default_rng(0).normal(size=(50_000, 7)),
        'b/c': np.arange(6, dtype='>i4').reshape(3, 2),
        'text': np.array(['a', 'bcd']),
        'scalar': np.array(3),
        'empty': np.zeros((4, 0)),
    }
    with npz.open_columns(self._save(save, **arrays)) as columns:
      self.assertEqual(sorted(columns), ['a', 'b/c', 'empty', 'text'])
      for name, column in columns.items():
        self.assertEqual(column.dtype, arrays[name].dtype)
        self.assertEqual(column.shape, arrays[name].shape)
        self.assertLen(column, len(arrays[name]))
        self.assertAllEqual(column[:], arrays[name])
      for rows in (
          slice(10, 20),
          slice(20, 30_000),
          slice(40_000, None),
          slice(5, 6),
          slice(9, 9),
          slice(0, 50, 7),
          np.array([3, 8, 9, 41_234]),
          np.array([], int),
      ):
        self.assertAllEqual(columns['a'][rows], arrays['a'][rows])

  def test_a_zip_file_of_a_later_version(self):
    path = self._save(np.savez, observations=np.zeros([3, 2]))
    with open(path, 'r+b') as f:
      content = f.read()
      f.seek(content.index(b'PK\1\2') + 6)  # The version that is needed.
      f.write(b'\xff')
    for read in npz.open_columns, formats.load:
      with self.assertRaisesRegex(ValueError, f'{path} is not a complete npz'):
        with contextlib.ExitStack() as stack:
          stack.enter_context(read(path))


if __name__ == '__main__':
  tf.test.main()
