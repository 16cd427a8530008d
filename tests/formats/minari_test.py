"""Tests on Minari data sets that Minari wrote: see write_minari_data.py."""

import os
import shutil

from absl.testing import parameterized
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import minari
from rlds2reverb.transforms import images
from tests import golden

_DATA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    'data',
    'minari',
)


def _expected(name, episode):
  """Returns what Minari itself reads: its columns, by their paths."""
  with np.load(os.path.join(_DATA, name, 'expected.npz')) as arrays:
    prefix = f'{episode}/'
    return {
        key[len(prefix) :]: arrays[key]
        for key in arrays
        if key.startswith(prefix)
    }


def _padded(array):
  return np.concatenate([array, np.zeros_like(array[:1])])


def _read(path):
  return list(minari.load_minari(path).as_numpy_iterator())


class MinariTest(tf.test.TestCase, parameterized.TestCase):

  def _check_flags(self, steps, length, *, terminal):
    step = np.arange(length)
    discount = np.ones(length, np.float32)
    if terminal:
      discount[-2:] = 0
    found = {
        name: steps[name]
        for name in ('discount', 'is_first', 'is_last', 'is_terminal')
    }
    golden.assert_frames_equal(
        self,
        [found],
        [
            {
                'discount': discount,
                'is_first': step == 0,
                'is_last': step == length - 1,
                'is_terminal': (step == length - 1) & terminal,
            }
        ],
    )

  @parameterized.parameters('', 'data', 'data/main_data.hdf5')
  def test_vectors(self, below):
    episodes = _read(os.path.join(_DATA, 'cartpole', below))
    self.assertEqual([e['episode_id'] for e in episodes], [0, 1])
    for index, episode in enumerate(episodes):
      expected = _expected('cartpole', index)
      # The first episode is terminated and truncated at once.
      self.assertTrue(expected['terminations'][-1])
      self.assertEqual(expected['truncations'][-1], index == 0)
      steps = episode['steps']
      golden.assert_frames_equal(
          self,
          [[steps['observation'], steps['action'], steps['reward']]],
          [
              [
                  expected['observations'],
                  _padded(expected['actions']),
                  _padded(expected['rewards']),
              ]
          ],
      )
      self._check_flags(steps, len(expected['observations']), terminal=True)

  def test_dicts_tuples_text_images_and_infos(self):
    rlds_data = minari.load_minari(os.path.join(_DATA, 'rooms'))
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
      expected = _expected('rooms', index)
      length = len(expected['infos/energy'])
      self.assertEqual(length, [6, 5][index])
      steps = episode['steps']
      mission = np.array([m.encode() for m in expected['observations/mission']])
      self._check_flags(steps, length, terminal=index == 1)
      # TensorFlow and Pillow do not decode JPEGs to the last bit alike.
      camera = steps['observation'].pop('camera')[..., 0]
      self.assertAllClose(camera, expected['observations/camera'], atol=2)
      golden.assert_frames_equal(
          self,
          [{k: steps[k] for k in ('observation', 'action', 'reward', 'infos')}],
          [
              {
                  'observation': {
                      'mission': mission.astype(object),
                      'pose': (
                          expected['observations/pose/0'],
                          expected['observations/pose/1'],
                      ),
                  },
                  'action': {
                      'grip': _padded(expected['actions/grip']),
                      'move': _padded(expected['actions/move']),
                  },
                  'reward': _padded(expected['rewards']),
                  'infos': {
                      'energy': expected['infos/energy'],
                      'room': {'door': expected['infos/room/door']},
                  },
              }
          ],
      )

  def _changed(self, change):
    """Returns the path of a copy of a data set, in which `change` is made."""
    path = os.path.join(self.create_tempdir().full_path, 'main_data.hdf5')
    shutil.copy(os.path.join(_DATA, 'cartpole', 'data', 'main_data.hdf5'), path)
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
    golden.assert_frames_equal(
        self,
        [steps],
        [
            {
                'observation': _expected('cartpole', 0)['observations'][:1],
                'action': np.zeros(1, np.int64),
                'reward': np.zeros(1),
                'discount': np.ones(1, np.float32),
                'is_first': np.array([True]),
                'is_last': np.array([True]),
                'is_terminal': np.array([False]),
            }
        ],
    )

  def _replace(self, name, array):
    def change(file):
      del file[name]
      if array is not None:
        file[name] = array

    return change

  @parameterized.named_parameters(
      ('missing', 'episode_0/actions', None, 'has no actions'),
      (
          'rows',
          'episode_0/actions',
          np.zeros(3, np.int64),
          'episode_0 of .* has 19 rows of observations, but 3 of actions',
      ),
      (
          'early',
          'episode_0/terminations',
          np.arange(18) == 4,
          'episode_0 has a termination in row 4, but 18 rows',
      ),
  )
  def test_errors(self, name, array, message):
    path = self._changed(self._replace(name, array))
    with self.assertRaisesRegex(ValueError, message):
      minari.load_minari(path)

  @parameterized.named_parameters(
      (
          'missing',
          'episode_1/actions',
          None,
          'episode_1 of .* has no actions, but .*rewards',
      ),
      (
          'rows',
          'episode_1/observations',
          np.zeros((14, 4), np.float32),
          'has 14 rows of observations, but 14 of actions: expected 15',
      ),
      (
          'dtype',
          'episode_1/observations',
          np.zeros((15, 4)),
          'observation of episode 1 are float64',
      ),
  )
  def test_errors_while_iterating(self, name, array, message):
    path = self._changed(self._replace(name, array))
    episodes = iter(minari.load_minari(path))
    self.assertLen(next(episodes)['steps']['reward'], 19)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      next(episodes)

  def test_a_file_that_leads_to_another_one_is_refused(self):
    def link(file):
      file['episode_1/infos/more'] = h5py.ExternalLink('other.hdf5', '/more')

    path = self._changed(link)
    with self.assertRaisesRegex(ValueError, 'into another file, episode_1/inf'):
      minari.load_minari(path)

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
    with self.assertRaisesRegex(
        ValueError, r'no Minari data set /nowhere/a\.\n'
    ):
      minari.load_minari('/nowhere/a')
    with self.assertRaisesRegex(ValueError, 'local disk, but is at gs://b/a'):
      minari.load_minari('gs://b/a')
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(
        ValueError, f'no HDF5 file in {folder}: .*data/main_data.hdf5'
    ):
      minari.load_minari(folder)
    path = os.path.join(folder, 'flat.hdf5')
    with h5py.File(path, 'w') as file:
      file['observations'] = np.zeros(1)
    with self.assertRaisesRegex(
        ValueError, "not a Minari data set: it has .'observations'"
    ):
      minari.load_minari(path)


if __name__ == '__main__':
  tf.test.main()
