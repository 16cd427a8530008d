"""Tries every reader of a path on data sets of every format."""

import functools
import gzip
import os
import shutil
import zipfile

from absl.testing import parameterized
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow as tf

from rlds2reverb import datasets
from rlds2reverb import formats
from rlds2reverb.datasets import format_registry
from rlds2reverb.formats import readers
from tests import golden
from tests.formats import expected

_ARRAYS = {
    name: np.zeros(3)
    for name in ('observations', 'actions', 'rewards', 'terminals')
}


class FormatsTest(tf.test.TestCase, parameterized.TestCase):

  def _paths(self):
    """Yields a path and the name of its reader."""
    folder = self.create_tempdir().full_path
    for path in (
        *('d3rlpy/arrays.h5', 'imitation/folder', 'lerobot/v2.1'),
        *('imitation/trajectories.npz', 'lerobot/v3.0', 'minari/cartpole'),
        *('minari/rooms_arrow', 'minari/rooms_parquet', 'zarr/pusht.zarr'),
        *('minari/cartpole/data/main_data.hdf5', 'parquet/episodes.parquet'),
        *('rllib/packed', 'rllib/plain/output-0.json', 'rllib/episodes'),
        *('rllib/columns/cartpole-v1', 'rllib/columns'),
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
  def test_error_of_wrong_reader_names_right_reader(self):
    flat = {'hdf5', 'npz'}
    for path, right in self._paths():
      for name in format_registry.FORMATS:
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
          description = format_registry.FORMATS[right].description
          with self.assertRaisesRegex(
              (ValueError, FileNotFoundError),
              f'It holds {description}, which {reader} reads',
          ):
            read(path)

  def test_a_folder_of_files(self):
    folder = self.create_tempdir().full_path
    self.assertEqual(format_registry.hint(folder), '')
    with h5py.File(os.path.join(folder, 'flat.hdf5'), 'w') as file:
      file.update(_ARRAYS)
    self.assertEqual(
        format_registry.hint(folder),
        ' flat.hdf5 in it holds flat arrays, which formats.load reads.',
    )

  def _copies(self, *names):
    """Copies files of RLlib into a folder: to a path, from another one."""
    folder = self.create_tempdir().full_path
    for target, source in names:
      path = os.path.join(folder, target)
      os.makedirs(os.path.dirname(path), exist_ok=True)
      shutil.copy(os.path.join(expected.DATA, 'rllib', source), path)
    return folder

  def test_folders_of_rllib(self):
    run = 'cartpole-v1/run-000001-00001/0_000000_000000.parquet'
    table, lines = 'table/output-0.parquet', 'plain/output-0.json'
    for names in (
        # As RLlib writes them: <environment>/<run>/<file>, or output-*.json.
        [(run, f'episodes/{run}')],
        [(run, f'columns/{run}')],
        [
            (f'env/run-00000{i}-00001/0_00000{i}_0.parquet', f'episodes/{run}')
            for i in range(3)
        ],
        [('0_000000_000000.parquet', f'episodes/{run}')],
        [('output-0.parquet', table)],
        [('output-2026-01-01_worker-1_0.json', lines)],
        # A folder for each worker, or names of the user's own.
        [('worker_1/output-0.json', lines), ('worker_2/output-0.json', lines)],
        [('all.json', 'packed/output-0.json')],
        [('a/b/agents.json', 'agents/output-0.json')],
        [('a/table.parquet', table)],
    ):
      with self.subTest(names[0][0]):
        folder = self._copies(*names)
        path = os.path.join(folder, names[0][0])
        parents = [folder, path, os.path.dirname(path)]
        for parent in parents:
          self.assertEqual(readers.find_format(parent), 'rllib', parent)
        options = {'policy': 'one'} if 'agents' in names[0][1] else {}
        if options:
          continue
        actual = [
            episode['steps']
            for episode in formats.load(folder, **options).as_numpy_iterator()
        ]
        wanted = formats.load(folder, 'rllib', **options).as_numpy_iterator()
        golden.assert_frames_equal(
            self, actual, [episode['steps'] for episode in wanted]
        )
        self.assertNotEmpty(actual)

  def test_compressed_lines_of_rllib(self):
    folder = self.create_tempdir().full_path
    with open(os.path.join(expected.DATA, 'rllib/plain/output-0.json')) as f:
      lines = f.read()
    with gzip.open(os.path.join(folder, 'a.json.gz'), 'wt') as f:
      f.write(lines)
    with zipfile.ZipFile(os.path.join(folder, 'a.zip'), 'w') as archive:
      archive.writestr('a.json', lines)
    for name in '', 'a.json.gz', 'a.zip':
      path = os.path.join(folder, name)
      self.assertEqual(readers.find_format(path), 'rllib')

  def test_a_damaged_first_file_of_rllib(self):
    run = 'cartpole-v1/run-000001-00001/0_000000_000000.parquet'
    for first, name, source in (
        ('env/run-1/a.parquet', 'env/run-2/b.parquet', f'episodes/{run}'),
        ('a.parquet', 'b.parquet', f'columns/{run}'),
        ('output-0.json', 'output-1.json', 'plain/output-0.json'),
    ):
      with self.subTest(source):
        folder = self._copies((first, source), (name, source))
        for size in 20, 0:
          os.truncate(os.path.join(folder, first), size)
          self.assertEqual(readers.find_format(folder), 'rllib')

  def test_tables_that_are_not_of_rllib(self):
    folder = self.create_tempdir().full_path
    table = {'obs': [[0.0]], 'actions': [0], 'rewards': [0.0]}
    os.mkdir(os.path.join(folder, 'run'))
    for name in 'a.parquet', 'run/a.parquet':
      parquet.write_table(pa.table(table), os.path.join(folder, name))
    self.assertEqual(readers.find_format(folder), 'parquet')
    path = os.path.join(folder, 'a.parquet')
    self.assertEqual(readers.find_format(path), 'parquet')
    os.remove(path)
    self.assertIsNone(readers.find_format(folder))
    with open(os.path.join(folder, 'a.json'), 'w') as f:
      f.write('{"type": "Other"}')
    self.assertIsNone(readers.find_format(folder))

  def test_columns_of_rllib_by_the_names_of_the_user(self):
    path = os.path.join(expected.DATA, 'rllib/table/output-0.parquet')
    options = {
        'episode_column': 'eps_id',
        'column_names': {
            'observations': 'obs',
            'next_observations': 'new_obs',
            'terminals': 'terminateds',
            'timeouts': 'truncateds',
        },
    }
    actual = list(formats.load(path, **options).as_numpy_iterator())
    self.assertLen(actual, 3)
    again = formats.load(path, 'parquet', **options).as_numpy_iterator()
    golden.assert_frames_equal(
        self,
        [episode['steps'] for episode in actual],
        [episode['steps'] for episode in again],
    )
    # A table of steps has these columns, too.
    self.assertLen(list(formats.load(path, 'parquet')), 3)

  def test_unknown_files_have_no_hint(self):
    path = self.create_tempfile('a.hdf5', 'damaged').full_path
    self.assertEqual(format_registry.hint(path), '')
    self.assertEqual(format_registry.hint('/nowhere'), '')
    self.assertEqual(format_registry.hint('/nowhere/a.npz'), '')
    text = self.create_tempfile('a.txt', 'text').full_path
    self.assertEqual(format_registry.hint(text), '')

  def test_data_that_is_no_group_of_this_file(self):
    path = self.create_tempfile('a.hdf5').full_path
    with h5py.File(path, 'w') as file:
      file['data'] = np.zeros(3)
    self.assertEqual(format_registry.hint(path), '')
    other = self.create_tempfile('other.hdf5').full_path
    with h5py.File(other, 'w') as file:
      file.create_group('data/demo_0')
    with h5py.File(path, 'w') as file:
      file['data'] = h5py.ExternalLink(other, 'data')
    self.assertEqual(format_registry.hint(path), '')
    self.assertIn('robomimic', format_registry.hint(other))


if __name__ == '__main__':
  tf.test.main()
