"""Tests the table of all readers."""

import importlib
import inspect
import os
import pkgutil

from absl.testing import absltest
from absl.testing import parameterized
import h5py
import numpy as np

from rlds2reverb import formats
from rlds2reverb.datasets import other_formats
from rlds2reverb.fields import bindings
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

  def test_the_names_are_those_that_files_tell(self):
    hints = set(other_formats.FORMATS)
    self.assertEqual(set(readers.READERS), hints - {'rlds'})

  def test_gin_knows_every_reader_and_its_options(self):
    for name, reader in readers.READERS.items():
      self.assertIs(
          bindings.get_configurable(reader.__name__, 'a test'), reader
      )
      for option in readers.option_names(reader):
        text = f'{reader.__name__}.{option} = 1'
        found = bindings.read(text, 'a test')
        self.assertEqual(found, {reader: {option: 1}})

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
      [found] = data.as_numpy_iterator()
      np.testing.assert_array_equal(found['steps']['observation'], observation)
      np.testing.assert_array_equal(found['steps']['action'][:2], action)
      np.testing.assert_array_equal(
          found['steps']['is_terminal'], [False, False, True]
      )
    with self.assertRaisesRegex(ValueError, 'The reader of episodes has no'):
      formats.load([episode], cameras=[])

  def test_a_file_that_leads_to_another_one_is_refused(self):
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

  def test_what_is_not_known(self):
    path = self.create_tempfile(content='nothing').full_path
    with self.assertRaisesRegex(ValueError, 'one of .*d3rlpy, '):
      formats.load(path)
    with self.assertRaisesRegex(ValueError, "but is 'robomimik'.*robomimic?"):
      formats.load(path, 'robomimik')
    with self.assertRaisesRegex(ValueError, "'filterkey'.* mean filter_key?"):
      formats.load(path, 'robomimic', filterkey='train')
    path = os.path.join(_DATA, 'lerobot', 'v3.0')
    # The sentence alone, without those of gin.
    with self.assertRaisesRegex(ValueError, "^[^\n]* no video 'top'[^\n]*$"):
      formats.load(path, cameras=['top'])


if __name__ == '__main__':
  absltest.main()
