"""Tries every reader of a path on data sets of every format."""

import functools
import os

from absl.testing import parameterized
import h5py
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import datasets
from rlds2reverb import formats
from rlds2reverb.datasets import other_formats
from tests import golden
from tests.formats import expected

_ARRAYS = {
    name: np.zeros(3)
    for name in ('observations', 'actions', 'rewards', 'terminals')
}


class FormatsTest(tf.test.TestCase, parameterized.TestCase):

  def _paths(self):
    """Yields what is to be read, and the name of its reader."""
    folder = self.create_tempdir().full_path
    for path in (
        *('d3rlpy/arrays.h5', 'imitation/folder', 'lerobot/v2.1'),
        *('imitation/trajectories.npz', 'lerobot/v3.0', 'minari/cartpole'),
        *('minari/rooms_arrow', 'minari/rooms_parquet', 'zarr/pusht.zarr'),
        *('minari/cartpole/data/main_data.hdf5', 'parquet/episodes.parquet'),
        *('robomimic/low_dim.hdf5', 'zarr/umi.zarr.zip'),
    ):
      yield os.path.join(expected.DATA, path), path.split('/')[0]
    rlds = os.path.join(folder, 'rlds')
    datasets.save_episodes(golden.stacked([golden.COMPLETE]), rlds)
    yield rlds, 'rlds'
    yield expected.write_calvin(self)[0], 'calvin'
    np.savez(os.path.join(folder, 'flat.npz'), **_ARRAYS)
    yield os.path.join(folder, 'flat.npz'), 'npz'
    with h5py.File(os.path.join(folder, 'flat.hdf5'), 'w') as file:
      file.update(_ARRAYS)
    yield os.path.join(folder, 'flat.hdf5'), 'hdf5'
    with h5py.File(os.path.join(folder, 'maniskill.h5'), 'w') as file:
      file['traj_0/obs'], file['traj_0/actions'] = np.zeros(4), np.zeros(3)
    yield os.path.join(folder, 'maniskill.h5'), 'maniskill'
    torchrl = os.path.join(folder, 'torchrl')
    formats.save_torchrl(golden.stacked([golden.COMPLETE]), torchrl)
    yield torchrl, 'torchrl'

  @pytest.mark.long
  def test_the_wrong_reader_names_the_right_one(self):
    flat = {'hdf5', 'npz'}
    for path, right in self._paths():
      for name in other_formats.FORMATS:
        with self.subTest(f'{name} {path}'):
          if name == right == 'zarr':
            pytest.importorskip('zarr')
          options = {}
          read = functools.partial(formats.load, format=name)
          if name == 'rlds':
            read = datasets.load_episodes
          elif name == right == 'parquet':
            options['column_names'] = {'terminals': 'dones'}
          # One reader reads flat arrays from either kind of file.
          if name == right or {name, right} == flat:
            self.assertLen(list(read(path, **options).take(1)), 1)
            continue
          reader = 'load_episodes' if right == 'rlds' else 'formats.load'
          with self.assertRaisesRegex(
              (ValueError, FileNotFoundError),
              f'It holds {other_formats.FORMATS[right]}, which {reader} reads',
          ):
            read(path)

  def test_a_folder_of_files(self):
    folder = self.create_tempdir().full_path
    self.assertEqual(other_formats.hint(folder), '')
    with h5py.File(os.path.join(folder, 'flat.hdf5'), 'w') as file:
      file.update(_ARRAYS)
    self.assertEqual(
        other_formats.hint(folder),
        ' flat.hdf5 in it holds flat arrays, which formats.load reads.',
    )

  def test_what_is_not_known(self):
    path = self.create_tempfile('a.hdf5', 'damaged').full_path
    self.assertEqual(other_formats.hint(path), '')
    self.assertEqual(other_formats.hint('/nowhere'), '')
    self.assertEqual(other_formats.hint('/nowhere/a.npz'), '')
    text = self.create_tempfile('a.txt', 'text').full_path
    self.assertEqual(other_formats.hint(text), '')

  def test_data_that_is_no_group_of_this_file(self):
    path = self.create_tempfile('a.hdf5').full_path
    with h5py.File(path, 'w') as file:
      file['data'] = np.zeros(3)
    self.assertEqual(other_formats.hint(path), '')
    other = self.create_tempfile('other.hdf5').full_path
    with h5py.File(other, 'w') as file:
      file.create_group('data/demo_0')
    with h5py.File(path, 'w') as file:
      file['data'] = h5py.ExternalLink(other, 'data')
    self.assertEqual(other_formats.hint(path), '')
    self.assertIn('robomimic', other_formats.hint(other))


if __name__ == '__main__':
  tf.test.main()
