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
      'done': rows == num_rows - 1,
  }


class FilesTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters('flat', 'nested', 'hdf5')
  def test_there_and_back(self, form):
    folder = self.create_tempdir().full_path
    # With twelve, the names of groups are not in the order of the numbers.
    episodes = [_columns(num_rows) for num_rows in range(1, 13)]
    path = folder
    if form == 'hdf5':
      length = torchrl_files.write_hdf5(folder, episodes)
      path = f'{folder}/{torchrl_files.HDF5_FILE}'
    else:
      length = torchrl_files.write_folder(folder, episodes, form == 'nested')
    self.assertEqual(length, 78)
    columns, length = torchrl_files.read(path)
    self.assertEqual(length, 78)
    self.assertEqual(columns.keys(), episodes[0].keys())
    for name, column in columns.items():
      expected = np.concatenate([episode[name] for episode in episodes])
      self.assertEqual(column.dtype, expected.dtype)
      self.assertAllEqual(column, expected)

  def test_hdf5_that_is_not_torchrls(self):
    path = self.create_tempfile('a.h5').full_path
    with h5py.File(path, 'w') as file:
      file['_len'] = 1
    with self.assertRaisesRegex(ValueError, 'not a file of TorchRL'):
      torchrl_files.read(path)
    with h5py.File(path, 'a') as file:
      file['traj_0/a'], file['traj_1/b'] = [1], [1]
    with self.assertRaisesRegex(ValueError, 'traj_1 of .* has the fields'):
      torchrl_files.read(path)


if __name__ == '__main__':
  tf.test.main()
