"""Tests the table of all readers."""

import importlib
import inspect
import os
import pkgutil

from absl.testing import absltest
from absl.testing import parameterized
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import rlds2reverb
from rlds2reverb import datasets
from rlds2reverb import formats
from rlds2reverb.datasets import format_registry
from rlds2reverb.fields import configs
from rlds2reverb.formats import readers
from tests.formats import expected

_DATA = expected.DATA


class ReadersTest(parameterized.TestCase):

  def test_every_reader_of_a_path_is_in_the_table(self):
    names = set()
    for module in pkgutil.iter_modules(
        formats.__path__, 'rlds2reverb.formats.'
    ):
      names |= {
          name
          for name, value in vars(importlib.import_module(module.name)).items()
          if name.startswith('load_')
          and inspect.isfunction(inspect.unwrap(value))
      }
    self.assertEqual(
        {reader.__name__ for reader in readers.READERS.values()}, names
    )

  def test_reader_names_equal_names_of_registry(self):
    hints = set(format_registry.FORMATS)
    self.assertEqual(set(readers.READERS), hints - {'rlds'})

  def test_gin_knows_every_reader_and_its_options(self):
    for reader in readers.READERS.values():
      self.assertIs(configs.get_configurable(reader.__name__, 'a test'), reader)
      for option in readers.option_names(reader):
        text = f'{reader.__name__}.{option} = 1'
        actual = configs.parse_bindings(text, 'a test')
        self.assertEqual(actual, {reader: {option: 1}})

  def test_data_in_memory(self):
    observation = np.array([[1.0], [2.0], [3.0]], np.float32)
    action = np.array([[4.0], [5.0]], np.float32)
    episode = {'observation': observation, 'action': action}
    arrays = {
        'observations': observation[:2],
        'next_observations': observation[1:],
        'actions': action,
        'rewards': np.zeros(2, np.float32),
        'terminals': np.array([False, True]),
    }
    of_episodes = formats.load([episode | {'is_terminal': True}])
    for data in (
        of_episodes,
        formats.load(arrays),
        formats.load(arrays, 'arrays', max_episode_steps=2),
        formats.load(formats.to_ted(of_episodes), 'ted'),
    ):
      [actual] = data.as_numpy_iterator()
      np.testing.assert_array_equal(actual['steps']['observation'], observation)
      np.testing.assert_array_equal(actual['steps']['action'][:2], action)
      np.testing.assert_array_equal(
          actual['steps']['is_terminal'], [False, False, True]
      )
    with self.assertRaisesRegex(ValueError, 'The reader of episodes has no'):
      formats.load([episode], cameras=[])

  def test_file_with_link_to_another_file_is_refused(self):
    for name in (
        'd3rlpy/arrays.h5',
        'minari/cartpole/data/main_data.hdf5',
        'robomimic/low_dim.hdf5',
    ):
      path = expected.copy_of(self, *name.split('/'))
      with h5py.File(path, 'a') as file:
        group = next(iter(file.values()))
        group = group if isinstance(group, h5py.Group) else file
        group['more'] = h5py.ExternalLink('other.hdf5', '/more')
      for reader in readers.find_format(path), 'hdf5':
        with self.assertRaisesRegex(ValueError, 'into another file'):
          formats.load(path, reader)

  def test_names_of_the_user_in_a_file(self):
    columns = {
        'obs_state': np.zeros([4, 3], np.float32),
        'act': np.zeros([4, 2], np.float32),
        'r': np.ones(4, np.float32),
        'done': [False, True, False, False],
        'timeout': [False, False, False, True],
    }
    names = {
        'observations': 'obs_state',
        'actions': 'act',
        'rewards': 'r',
        'terminals': 'done',
        'timeouts': 'timeout',
    }
    folder = self.create_tempdir().full_path
    for name in 'run.h5', 'run.hdf5', 'run.npz':
      path = os.path.join(folder, name)
      if name.endswith('npz'):
        np.savez(path, **columns)
      else:
        with h5py.File(path, 'w') as file:
          file.update(columns)
      self.assertLen(list(formats.load(path, column_names=names)), 2)
      with self.assertRaisesRegex(ValueError, 'There is no column .*act'):
        formats.load(path)

  def test_an_error_lists_the_names_in_the_file(self):
    columns = {
        'obs': np.zeros([4, 3], np.float32),
        'act': np.zeros([4, 2], np.float32),
        'terminated': [False, True, False, False],
    }
    names = r"\['act', 'obs', 'terminated'\]"
    folder = self.create_tempdir().full_path
    with h5py.File(f'{folder}/run.h5', 'w') as file:
      file.update(columns)
    table = {name: list(column) for name, column in columns.items()}
    parquet.write_table(pa.table(table), f'{folder}/run.parquet')
    for source, message in (
        (columns, f'no column actions, rewards. .*The columns are {names}'),
        (f'{folder}/run.h5', f'no column actions, rewards. .*are {names}'),
        (f'{folder}/run.parquet', f'has no actions, but {names}'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        formats.load(source)

  def test_a_missing_file(self):
    for options in (
        {},
        {'column_names': {'observations': 'x'}},
        {'format': 'hdf5', 'column_names': {'observation': 'x'}},
        {'format': 'npz', 'no_option': 1},
        {'format': 'parquet', 'episode_column': 'x', 'cameras': []},
    ):
      for path in '/no/such.h5', 'no_such.npz', '/no/folder':
        with self.assertRaisesRegex(
            ValueError, f'There is no .*{os.path.basename(path)}'
        ):
          formats.load(path, **options)
    with self.assertRaisesRegex(ValueError, r"load\('a/b', format='lerobot'\)"):
      formats.load('a/b')
    with self.assertRaisesRegex(ValueError, 'Did you mean run1.h5'):
      folder = self.create_tempdir().full_path
      h5py.File(f'{folder}/run1.h5', 'w').close()
      formats.load(f'{folder}/run2.h5')

  def test_file_instead_of_rlds_folder_raises(self):
    path = os.path.join(self.create_tempdir().full_path, 'run.h5')
    with h5py.File(path, 'w') as file:
      file['x'] = np.zeros(3)
    for open_data in rlds2reverb.open_replay_buffer, datasets.load_episodes:
      with self.assertRaisesRegex(
          FileNotFoundError,
          f"but a file.*formats.load\\('{path}', format='hdf5'\\)",
      ):
        open_data(path)

  def test_unknown_formats_and_options_raise(self):
    path = self.create_tempfile(content='nothing').full_path
    with self.assertRaisesRegex(ValueError, 'one of .*d3rlpy, '):
      formats.load(path)
    with self.assertRaisesRegex(ValueError, "but is 'robomimik'.*robomimic?"):
      formats.load(path, 'robomimik')
    with self.assertRaisesRegex(ValueError, "'filterkey'.* mean filter_key?"):
      formats.load(path, 'robomimic', filterkey='train')
    path = os.path.join(_DATA, 'lerobot', 'v3.0')
    # The message of the error only, without the lines that gin adds.
    with self.assertRaisesRegex(ValueError, "^[^\n]* no video 'top'[^\n]*$"):
      formats.load(path, cameras=['top'])


if __name__ == '__main__':
  absltest.main()
