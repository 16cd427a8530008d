"""Tests of columns, in memory and in an HDF5 file."""

import os

from absl.testing import parameterized
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import columns


class ColumnsTest(tf.test.TestCase, parameterized.TestCase):

  def test_leaves(self):
    array = np.arange(3)
    found = columns.leaves(
        {'a': array, 'b/c': [1, 2], 'd': (array, {'e': array}), 'f': {}}
    )
    self.assertEqual(list(found), ['a', 'b/c', 'd/_index_0', 'd/_index_1/e'])
    self.assertIs(found['a'], array)
    self.assertAllEqual(found['b/c'], [1, 2])

  def test_renamed(self):
    one, two, three = np.zeros(1), np.ones(1), np.full(1, 2)
    found = columns.renamed(
        {'obs/a': one, 'obs/b/c': two, 'observations': three, 'x/y': three},
        {'observations': 'obs', 'rewards': 'x/y'},
    )
    self.assertEqual(
        sorted(found), ['observations/a', 'observations/b/c', 'rewards']
    )
    self.assertIs(found['observations/b/c'], two)
    self.assertIs(found['rewards'], three)
    left = columns.renamed({'a': one, 'ab': two}, {'a': None})
    self.assertEqual(list(left), ['ab'])
    with self.assertRaisesRegex(
        ValueError, 'no column dones, .* for terminals. Did you mean done.'
    ):
      columns.renamed({'done': one}, {'terminals': 'dones'})

  def test_below(self):
    names = ['a', 'b/c', 'b/d/e', 't/_index_1', 't/_index_0', 'bb']
    self.assertEqual(columns.below('a', names), 'a')
    self.assertEqual(
        columns.below('b', names), {'c': 'b/c', 'd': {'e': 'b/d/e'}}
    )
    self.assertEqual(columns.below('t', names), ('t/_index_0', 't/_index_1'))
    self.assertEqual(columns.below('z', names), {})

  @parameterized.parameters(
      (np.zeros(2, '>f8'), True),
      (np.array(['a']), True),
      (np.array([b'a'], object), True),
      (np.zeros(()), False),
      (np.zeros(2, 'datetime64[s]'), False),
      (np.zeros(2, np.longdouble), False),
  )
  def test_is_readable(self, column, expected):
    self.assertEqual(columns.is_readable(column), expected)

  def test_check_objects(self):
    columns.check_objects('a', np.array([b'a', 'b'], object))
    with self.assertRaisesRegex(ValueError, 'a is an .* has 3, a int, in r'):
      columns.check_objects('a', np.array([['a', 'b'], ['c', 3]], object))

  def test_numbers(self):
    column = np.arange(6, dtype='>i4').reshape(3, 2)
    spec = columns.row_spec(column)
    self.assertEqual(spec, tf.TensorSpec([2], tf.int32))
    found = columns.read(column, slice(1, 3), spec)
    self.assertAllEqual(found, [[2, 3], [4, 5]])
    self.assertEqual(found.dtype, np.int32)
    zeros = columns.zeros(2, spec)
    self.assertAllEqual(zeros, [[0, 0], [0, 0]])
    self.assertEqual(zeros.dtype, np.int32)

  def test_strings(self):
    column = np.array(['a', b'b\x00', ''], object)
    spec = columns.row_spec(column)
    self.assertEqual(spec, tf.TensorSpec([], tf.string))
    found = columns.read(column, np.array([0, 1]), spec)
    self.assertEqual(found.tolist(), [b'a', b'b\x00'])
    self.assertEqual(columns.zeros(2, spec).tolist(), [b'', b''])

  def test_bytes_of_varying_length_in_a_file(self):
    path = os.path.join(self.create_tempdir().full_path, 'a.hdf5')
    with h5py.File(path, 'w') as file:
      column = file.create_dataset('x', [2], h5py.vlen_dtype(np.uint8))
      column[0] = np.array([7, 0], np.uint8)
      spec = columns.row_spec(column)
      self.assertEqual(spec, tf.TensorSpec([], tf.string))
      self.assertEqual(
          columns.read(column, slice(None), spec).tolist(), [b'\x07\x00', b'']
      )
      self.assertEqual(list(columns.leaves(file)), ['x'])


if __name__ == '__main__':
  tf.test.main()
