"""Tests of looking into HDF5 files."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import h5py
import numpy as np

from rlds2reverb.formats import hdf5


class NamesInTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._path = os.path.join(self.create_tempdir().full_path, 'a.hdf5')

  def test_names(self):
    with h5py.File(self._path, 'w') as file:
      file['a/b'] = 1
      file['c'] = 2
    self.assertEqual(hdf5.names_in(self._path), ['a', 'c'])

  def test_links_within_the_file_are_followed(self):
    with h5py.File(self._path, 'w') as file:
      file['a/b'] = [1, 2]
      file['soft'] = h5py.SoftLink('/a/b')
      file['hard'] = file['a/b']
    self.assertEqual(hdf5.names_in(self._path), ['a', 'hard', 'soft'])


class ElsewhereTest(parameterized.TestCase):
  """A file that would have another file read."""

  def setUp(self):
    super().setUp()
    folder = self.create_tempdir().full_path
    self._path = os.path.join(folder, 'a.hdf5')
    # What must not be read.
    self._secret = os.path.join(folder, 'secret')
    self._other = os.path.join(folder, 'other.hdf5')
    with open(self._secret, 'wb') as f:
      f.write(b'A password.')
    with h5py.File(self._other, 'w') as file:
      file['rewards'] = np.arange(11)

  def _write(self, kind, where):
    with h5py.File(self._path, 'w') as file:
      file['rewards'] = np.arange(11)
      if kind == 'external link':
        file[where] = h5py.ExternalLink(self._other, '/rewards')
      elif kind == 'way through an external link':
        file['way'] = h5py.ExternalLink(self._other, '/')
        file[where] = h5py.SoftLink('/way/rewards')
      elif kind == 'external storage':
        file.create_dataset(
            where, (11,), np.uint8, external=[(self._secret, 0, 11)]
        )
      else:
        layout = h5py.VirtualLayout((11,), np.int64)
        layout[:] = h5py.VirtualSource(self._other, 'rewards', (11,))
        file.create_virtual_dataset(where, layout)

  @parameterized.product(
      case=[
          ('external link', 'a link into another file, '),
          ('way through an external link', 'a link into another file, way'),
          ('external storage', 'values in another file, those of '),
          ('virtual data set', 'a virtual data set, '),
      ],
      where=['observations', 'infos/deep/observations'],
  )
  def test_it_is_refused(self, case, where):
    kind, message = case
    self._write(kind, where)
    # HDF5 itself does read the other file.
    with h5py.File(self._path) as file:
      values = file[where][:]
    if kind == 'external storage':
      self.assertEqual(values.tobytes(), b'A password.')
    else:
      np.testing.assert_array_equal(values, np.arange(11))
    with self.assertRaisesRegex(
        ValueError, f'a.hdf5 has {message}.*it is refused'
    ):
      hdf5.names_in(self._path)

  def test_a_link_that_leads_nowhere_is_refused(self):
    with h5py.File(self._path, 'w') as file:
      file['observations'] = h5py.ExternalLink('/not/there', '/')
    with self.assertRaisesRegex(ValueError, 'a link into another file, obs'):
      hdf5.names_in(self._path)

  @parameterized.parameters(
      'external link', 'external storage', 'virtual data set'
  )
  def test_what_the_message_advises_helps(self, kind):
    self._write(kind, 'observations')
    whole = f'{self._path}.whole'
    with h5py.File(self._path) as file, h5py.File(whole, 'w') as copy:
      for name in file:
        copy.create_dataset(name, data=file[name])
    self.assertEqual(hdf5.names_in(whole), ['observations', 'rewards'])


if __name__ == '__main__':
  absltest.main()
