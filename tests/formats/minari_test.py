"""Tests on Minari data sets that Minari wrote: see write_minari_data.py."""

import os
import shutil

from absl.testing import parameterized
import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import tensorflow as tf

from rlds2reverb.formats import minari
from rlds2reverb.transforms import images
from tests import golden
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'minari')


def _expected(name, episode):
  """Returns what Minari itself reads: its columns, by their paths."""
  with np.load(os.path.join(_DATA, name, 'expected.npz')) as arrays:
    prefix = f'{episode}/'
    return {
        key[len(prefix) :]: arrays[key]
        for key in arrays
        if key.startswith(prefix)
    }


def _read(path):
  return list(minari.load_minari(path).as_numpy_iterator())


class MinariTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters('', 'data', 'data/main_data.hdf5')
  def test_vectors(self, below):
    columns = [_expected('cartpole', index) for index in range(2)]
    # The first episode is terminated and truncated at once.
    self.assertEqual([one['truncations'][-1] for one in columns], [True, False])
    expected.assert_read(
        self,
        minari.load_minari(os.path.join(_DATA, 'cartpole', below)),
        [
            expected.steps(
                one['observations'],
                one['actions'],
                one['rewards'],
                terminal=one['terminations'][-1],
            )
            for one in columns
        ],
    )

  @parameterized.parameters(
      'rooms', 'rooms_arrow', 'rooms_arrow/data', 'rooms_parquet'
  )
  def test_dicts_tuples_text_images_and_infos(self, name):
    rlds_data = minari.load_minari(os.path.join(_DATA, name))
    self.assertEqual(
        rlds_data.element_spec['steps']['observation']['camera'],
        tf.TensorSpec([None], tf.string),
    )
    rlds_data = rlds_data.map(
        lambda episode: images.decode_images(
            episode, ['steps/observation/camera'], size=(32, 32), channels=1
        )
    )
    self.assertEqual(rlds_data.cardinality(), 2)
    for index, episode in enumerate(rlds_data.as_numpy_iterator()):
      self.assertEqual(episode['episode_id'], index)
      columns = _expected(name.split('/')[0], index)
      steps = episode['steps']
      # TensorFlow and Pillow do not decode JPEGs to the last bit alike.
      camera = steps['observation'].pop('camera')[..., 0]
      self.assertAllClose(camera, columns['observations/camera'], atol=2)
      wanted = expected.steps(
          {
              'mission': columns['observations/mission'],
              'pose': (
                  columns['observations/pose/0'],
                  columns['observations/pose/1'],
              ),
          },
          {key: columns[f'actions/{key}'] for key in ('grip', 'move')},
          columns['rewards'],
          terminal=index == 1,
          infos={
              'energy': columns['infos/energy'],
              'room': {'door': columns['infos/room/door']},
          },
      )
      golden.assert_frames_equal(self, [steps], [wanted])

  def _changed(self, change):
    """Returns the path of a copy of a data set, in which `change` is made."""
    path = expected.copy_of(self, 'minari/cartpole/data/main_data.hdf5')
    with h5py.File(path, 'a') as file:
      change(file)
    return path

  def test_order_and_ids(self):
    def change(file):
      for index in (10, 9, 2):
        file.copy('episode_0', f'episode_{index}')

    episodes = _read(self._changed(change))
    self.assertEqual([e['episode_id'] for e in episodes], [0, 1, 2, 9, 10])

  def test_infos_of_transitions_and_others(self):
    def change(file):
      for group in file.values():
        length = len(group['rewards'])
        group['infos/cost'] = np.arange(length)
        group['infos/version'] = 3
        group['infos/final'] = np.zeros(2)

    with self.assertLogs(level='WARNING') as logs:
      episodes = _read(self._changed(change))
    self.assertIn('infos/final, infos/version', logs.output[0])
    self.assertEqual(list(episodes[1]['steps']['infos']), ['cost'])
    self.assertEqual(
        episodes[1]['steps']['infos']['cost'].tolist(), [*range(14), 0]
    )

  def test_no_transitions(self):
    def change(file):
      group = file.create_group('episode_2')
      for name, column in file['episode_0'].items():
        if isinstance(column, h5py.Dataset):
          group[name] = column[: int(name == 'observations')]

    steps = _read(self._changed(change))[2]['steps']
    observations = _expected('cartpole', 0)['observations'][:1]
    wanted = expected.steps(observations, np.zeros(0, int), np.zeros(0))
    golden.assert_frames_equal(self, [steps], [wanted])

  def _replace(self, name, array):
    def change(file):
      del file[name]
      if array is not None:
        file[name] = array

    return change

  @parameterized.parameters(
      ('actions', None, 'episode_. of .* has no actions, but .*rewards'),
      (
          'actions',
          np.zeros(3, np.int64),
          'has 1. rows of observations, but 3 of actions: expected 4',
      ),
      (
          'terminations',
          np.arange(14) == 4,
          'episode_. has a termination in row 4, but 14 rows',
      ),
  )
  def test_errors(self, name, array, message):
    path = self._changed(self._replace(f'episode_0/{name}', array))
    with self.assertRaisesRegex(ValueError, message):
      minari.load_minari(path)
    path = self._changed(self._replace(f'episode_1/{name}', array))
    episodes = iter(minari.load_minari(path))
    self.assertLen(next(episodes)['steps']['reward'], 19)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      next(episodes)

  def test_by_name(self):
    old = os.environ.get('MINARI_DATASETS_PATH')
    if old is not None:
      self.addCleanup(os.environ.update, {'MINARI_DATASETS_PATH': old})
    os.environ['MINARI_DATASETS_PATH'] = os.path.dirname(_DATA)
    self.assertLen(_read('minari/cartpole'), 2)
    with self.assertRaisesRegex(
        ValueError, 'no Minari data set .*, and none at .*/minari/nothing'
    ):
      minari.load_minari('minari/nothing')
    os.environ.pop('MINARI_DATASETS_PATH')
    with self.assertRaisesRegex(ValueError, r'none at /.*\.minari/datasets/m'):
      minari.load_minari('minari/cartpole')

  def test_what_is_no_minari_data_set(self):
    folder = self.create_tempdir().full_path
    path = os.path.join(folder, 'flat.hdf5')
    with h5py.File(path, 'w') as file:
      file['observations'] = np.zeros(1)
    expected.assert_refused(
        self,
        minari.load_minari,
        ('/nowhere/a', r'no Minari data set /nowhere/a\.\n'),
        ('gs://b/a', 'local disk, but is at gs://b/a'),
        (folder, f'no HDF5 file in {folder}: .*data/main_data.hdf5'),
        (path, "not a Minari data set: it has .'observations'"),
    )


class MinariArrowTest(tf.test.TestCase):

  def _changed(self, name, *columns):
    """Returns the path of a copy; a column of None is not there."""
    path = expected.copy_of(self, 'minari', 'rooms_parquet')
    for episode, column in enumerate(columns):
      file = os.path.join(path, 'data', str(episode), 'part-0.parquet')
      table = parquet.read_table(file, partitioning=None).drop_columns([name])
      if column is not None:
        table = table.append_column(name, pa.array(column))
      parquet.write_table(table, file)
    return path

  def test_infos_that_have_no_rows_are_left_out(self):
    path = self._changed(
        'infos',
        *(
            [{'whole': step, 'lists': [0] * step} for step in range(length)]
            for length in (6, 5)
        ),
    )
    with self.assertLogs(level='WARNING') as logs:
      episodes = list(minari.load_minari(path).as_numpy_iterator())
    self.assertIn('infos/lists', logs.output[0])
    self.assertEqual(list(episodes[1]['steps']['infos']), ['whole'])
    self.assertAllEqual(episodes[1]['steps']['infos']['whole'], range(5))

  def test_errors(self):
    damaged = expected.copy_of(self, 'minari', 'rooms_parquet')
    os.truncate(os.path.join(damaged, 'data/0/part-0.parquet'), 7)
    empty = expected.copy_of(self, 'minari', 'rooms_parquet')
    for episode in '01':
      shutil.rmtree(os.path.join(empty, 'data', episode))
    expected.assert_refused(
        self,
        minari.load_minari,
        (self._changed('rewards', None), 'Episode 0 has no rewards, but'),
        (damaged, 'part-0.parquet is not a whole'),
        (empty, 'There is no episode in'),
    )
    path = self._changed('rewards', [1.0] * 6, [1.0, 2.0, None, 1.0, 0.0])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'rewards must have a value in every row'
    ):
      list(minari.load_minari(path))


if __name__ == '__main__':
  tf.test.main()
