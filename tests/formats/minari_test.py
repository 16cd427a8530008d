"""Tests on Minari data sets that Minari wrote: see write_minari_data.py."""

import os
from unittest import mock

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import tensorflow as tf

from rlds2reverb.formats import minari
from tests import golden
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'minari')


def _read(path):
  return list(minari.load_minari(path).as_numpy_iterator())


class MinariTest(tf.test.TestCase):

  def _changed(self, change):
    """Returns the path of a copy of a data set, in which `change` is made."""
    path = expected.copy_of(self, 'minari/cartpole/data/main_data.hdf5')
    with h5py.File(path, 'a') as file:
      change(file)
    return path

  def test_order_and_infos_of_transitions(self):
    def change(file):
      for index in (10, 9, 2):
        file.copy('episode_0', f'episode_{index}')
      for group in file.values():
        length = len(group['rewards'])
        group['infos/cost'] = np.arange(length)
        group['infos/version'] = 3
        group['infos/final'] = np.zeros(2)

    with self.assertLogs(level='WARNING') as logs:
      episodes = _read(self._changed(change))
    self.assertIn('infos/final, infos/version', logs.output[0])
    self.assertEqual([e['episode_id'] for e in episodes], [0, 1, 2, 9, 10])
    infos = episodes[1]['steps']['infos']
    self.assertEqual(list(infos), ['cost'])
    self.assertAllEqual(infos['cost'], [*range(14), 0])

  def test_no_transitions(self):
    def change(file):
      group = file.create_group('episode_2')
      for name, column in file['episode_0'].items():
        if isinstance(column, h5py.Dataset):
          group[name] = column[: int(name == 'observations')]

    first, _, actual = _read(self._changed(change))
    observations = first['steps']['observation'][:1]
    wanted = expected.steps(observations, np.zeros(0, int), np.zeros(0))
    golden.assert_frames_equal(self, [actual['steps']], [wanted])

  def test_by_name(self):
    folder = os.path.dirname(_DATA)
    with mock.patch.dict(os.environ, MINARI_DATASETS_PATH=folder):
      self.assertLen(_read('minari/cartpole'), 2)
      with self.assertRaisesRegex(
          ValueError, 'no Minari data set .*, and none at .*/minari/nothing'
      ):
        minari.load_minari('minari/nothing')
    with self.assertRaisesRegex(ValueError, r'none at /.*\.minari/datasets/m'):
      minari.load_minari('minari/cartpole')

  def test_infos_of_arrow_that_have_no_rows_are_left_out(self):
    path = expected.copy_of(self, 'minari', 'rooms_parquet')
    for episode, length in enumerate((6, 5)):
      file = os.path.join(path, 'data', str(episode), 'part-0.parquet')
      table = parquet.read_table(file, partitioning=None)
      infos = [{'whole': step, 'lists': [0] * step} for step in range(length)]
      index = table.column_names.index('infos')
      table = table.set_column(index, 'infos', pa.array(infos))
      parquet.write_table(table, file)
    with self.assertLogs(level='WARNING') as logs:
      episodes = _read(path)
    self.assertIn('infos/lists', logs.output[0])
    self.assertEqual(list(episodes[1]['steps']['infos']), ['whole'])
    self.assertAllEqual(episodes[1]['steps']['infos']['whole'], range(5))


if __name__ == '__main__':
  tf.test.main()
