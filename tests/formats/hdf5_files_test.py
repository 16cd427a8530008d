"""Tests of looking into HDF5 files, which may lead to other files."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import h5py
import numpy as np

from rlds2reverb import formats
from rlds2reverb.episodes import limits
from rlds2reverb.formats import hdf5_files

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
    self.assertEqual(hdf5_files.check_file(self._path), ['a', 'hard', 'soft'])

  @parameterized.parameters(
      ('external link', f'{_WHERE} of .*a.hdf5 is a link into another file'),
      (
          'way through an external link',
          'way of .*a.hdf5 is a link into another',
      ),
      ('external storage', f'{_WHERE} of .*a.hdf5 has its values in another'),
      ('virtual data set', f'{_WHERE} of .*a.hdf5 is a virtual data set'),
  )
  def test_link_to_another_file_is_refused_unless_allowed(self, kind, message):
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
    allow = f'{message}.* names {other}.* {limits.PLACES_VARIABLE}='
    with self.assertRaisesRegex(ValueError, f'{allow}{self._folder}\\.'):
      hdf5_files.check_file(self._path)
    for place, is_allowed in (
        (self._folder, True),
        (f'/nowhere:{self._folder}/', True),
        (f'{self._folder}/below', False),
        (f'{self._folder[:-1]}', False),
    ):
      with mock.patch.dict(os.environ, {limits.PLACES_VARIABLE: place}):
        if is_allowed:
          self.assertIn('rewards', hdf5_files.check_file(self._path))
        else:
          with self.assertRaisesRegex(ValueError, allow):
            hdf5_files.check_file(self._path)
    # HDF5 itself does read the other file, which is why.
    with h5py.File(self._path) as file:
      np.testing.assert_array_equal(file[_WHERE][:], secret)

  @parameterized.parameters(
      ('itself', 'a group that contains itself, a'),
      ('its parent', 'a group that contains itself'),
      ('two soft links', 'a group that contains itself'),
      ('deep', 'groups nested more than 100 levels'),
      ('often', 'links in .* that repeat the same groups too often'),
  )
  def test_groups_without_end_are_refused(self, kind, message):
    with h5py.File(self._path, 'w') as file:
      group = file.create_group('a')
      if kind == 'itself':
        group['b'] = group
      elif kind == 'its parent':
        group.create_group('b/c')['d'] = h5py.SoftLink('/')
      elif kind == 'two soft links':
        group['b'] = h5py.SoftLink('/c')
        file.create_group('c')['d'] = h5py.SoftLink('/a')
      elif kind == 'deep':
        for _ in range(2000):
          group = group.create_group('b')
      else:  # 2**40 paths.
        for _ in range(40):
          group['b'] = group['c'] = group.file.create_group(None)
          group = group['b']
    with self.assertRaisesRegex(ValueError, f'a.hdf5 has {message}'):
      hdf5_files.check_file(self._path)

  @parameterized.parameters(
      ('d3rlpy', b'\xff'), ('hdf5', b'obs\xe9'), ('hdf5', b'group/\xff')
  )
  def test_a_name_that_is_not_text(self, form, name):
    path = os.path.join(self.create_tempdir().full_path, 'a.h5')
    with h5py.File(path, 'w') as file:
      file['values'] = np.zeros(3)
      file.create_group('group')
      h5py.h5o.link(file['values'].id, file.id, name)
    with self.assertRaisesRegex(ValueError, f'of {path} is not UTF-8'):
      formats.load(path, form)


if __name__ == '__main__':
  absltest.main()
