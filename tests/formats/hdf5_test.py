"""Tests of looking into HDF5 files, which may lead to other files."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import h5py
import numpy as np

from rlds2reverb.formats import hdf5

_WHERE = 'infos/deep/observations'


class NamesInTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = self.create_tempdir().full_path
    self._path = os.path.join(self._folder, 'a.hdf5')

  def test_links_within_the_file_are_followed(self):
    with h5py.File(self._path, 'w') as file:
      file['a/b'] = [1, 2]
      file['soft'] = h5py.SoftLink('/a/b')
      file['hard'] = file['a/b']
    self.assertEqual(hdf5.names_in(self._path), ['a', 'hard', 'soft'])

  @parameterized.parameters(
      ('external link', f'a link into another file, {_WHERE}'),
      ('way through an external link', 'a link into another file, way'),
      ('external storage', f'values in another file, those of {_WHERE}'),
      ('virtual data set', f'a virtual data set, {_WHERE}'),
  )
  def test_a_way_to_another_file_is_refused(self, kind, message):
    secret = np.frombuffer(b'A password.', np.uint8)
    other = os.path.join(self._folder, 'other')
    with h5py.File(f'{other}.hdf5', 'w') as file:
      file['secret'] = secret
    secret.tofile(other)
    with h5py.File(self._path, 'w') as file:
      file['rewards'] = np.arange(11)
      if kind == 'external link':
        file[_WHERE] = h5py.ExternalLink(f'{other}.hdf5', '/secret')
      elif kind == 'external storage':
        file.create_dataset(_WHERE, (11,), np.uint8, external=[(other, 0, 11)])
      elif kind == 'virtual data set':
        layout = h5py.VirtualLayout((11,), np.uint8)
        layout[:] = h5py.VirtualSource(f'{other}.hdf5', 'secret', (11,))
        file.create_virtual_dataset(_WHERE, layout)
      else:
        file['way'] = h5py.ExternalLink(f'{other}.hdf5', '/')
        file[_WHERE] = h5py.SoftLink('/way/secret')
    with self.assertRaisesRegex(ValueError, f'a.hdf5 has {message}.*refused'):
      hdf5.names_in(self._path)
    # HDF5 itself does read the other file, which is why, and what the error
    # advises helps.
    with h5py.File(self._path) as file, h5py.File(f'{other}.2', 'w') as copy:
      np.testing.assert_array_equal(file[_WHERE][:], secret)
      copy.create_dataset(_WHERE, data=file[_WHERE])
    self.assertEqual(hdf5.names_in(f'{other}.2'), ['infos'])


if __name__ == '__main__':
  absltest.main()
