"""Tests of looking into HDF5 files."""

import os

from absl.testing import absltest
import h5py

from rlds2reverb.datasets import hdf5


class NamesInTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._path = os.path.join(self.create_tempdir().full_path, 'a.hdf5')

  def test_names(self):
    with h5py.File(self._path, 'w') as file:
      file['a/b'] = 1
      file['c'] = 2
    self.assertEqual(hdf5.names_in(self._path), ['a', 'c'])

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, 'There is no HDF5 file .*a.hdf5'):
      hdf5.names_in(self._path)
    with h5py.File(self._path, 'w'):
      pass
    with self.assertRaisesRegex(ValueError, 'with nothing in it'):
      hdf5.names_in(self._path)
    os.truncate(self._path, 100)
    with self.assertRaisesRegex(ValueError, 'not a whole HDF5 file'):
      hdf5.names_in(self._path)


if __name__ == '__main__':
  absltest.main()
