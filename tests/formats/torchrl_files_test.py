"""Tests of TorchRL's files; torchrl_test.py reads those of TorchRL itself."""

from absl.testing import parameterized
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import torchrl_files


def _columns(num_rows):
  rows = np.arange(num_rows)
  return {
      'observation': np.stack([rows, -rows], 1).astype(np.float32),
      'info/speed': rows.astype(np.uint8),
      'info/wheel/left': (rows[:, None, None] > 1),
  }


class FilesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(True, False)
  def test_a_folder(self, nested):
    folder = self.create_tempdir().full_path
    writer = torchrl_files.FolderWriter(folder, nested)
    for num_rows in 3, 2:
      writer.write(_columns(num_rows))
    writer.close(5)
    found = torchrl_files.read_folder(folder)
    self.assertEqual(found.length, 5)
    for name, column in found.columns.items():
      expected = np.concatenate([_columns(3)[name], _columns(2)[name]])
      self.assertEqual(column.dtype, expected.dtype)
      self.assertAllEqual(column, expected)

  def test_hdf5(self):
    folder = self.create_tempdir()
    writer = torchrl_files.Hdf5Writer(folder.full_path)
    # The names are not in the order of the numbers.
    for num_rows in range(1, 13):
      writer.write(_columns(num_rows))
    writer.close(78)
    path = f'{folder.full_path}/{torchrl_files.HDF5_FILE}'
    found = torchrl_files.read_hdf5(path)
    self.assertEqual(found.length, 78)
    self.assertAllEqual(
        found.columns['info/speed'],
        np.concatenate([np.arange(n) for n in range(1, 13)]),
    )
    with h5py.File(path, 'a') as file:
      del file['traj_3/info']
    with self.assertRaisesRegex(ValueError, 'traj_3 .*has the fields'):
      torchrl_files.read_hdf5(path)
    with h5py.File(path, 'a') as file:
      del file['_len']
    with self.assertRaisesRegex(ValueError, 'must have _len'):
      torchrl_files.read_hdf5(path)

  def test_an_hdf5_file_that_leads_to_another_one(self):
    folder = self.create_tempdir().full_path
    writer = torchrl_files.Hdf5Writer(folder)
    writer.write(_columns(3))
    writer.close(3)
    path = f'{folder}/{torchrl_files.HDF5_FILE}'
    with h5py.File(path, 'a') as file:
      file['traj_0/extra'] = h5py.ExternalLink('other.hdf5', '/extra')
    with self.assertRaisesRegex(ValueError, 'into another file, traj_0/extra'):
      torchrl_files.read_hdf5(path)


if __name__ == '__main__':
  tf.test.main()
