"""Tests for minari_arrow, on data sets that Minari has written."""

import os
import shutil

from absl.testing import parameterized
import numpy as np
import pyarrow as pa
from pyarrow import parquet
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


class MinariArrowTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.product(
      name=['rooms_arrow', 'rooms_parquet'], below=['', 'data']
  )
  def test_what_minari_reads(self, name, below):
    rlds_data = minari.load_minari(os.path.join(_DATA, name, below))
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
      expected = _expected(name, index)
      length = [6, 5][index]
      steps = episode['steps']
      # TensorFlow and Pillow do not decode JPEGs to the last bit alike.
      camera = steps['observation'].pop('camera')[..., 0]
      self.assertAllClose(camera, expected['observations/camera'], atol=2)
      mission = [m.encode() for m in expected['observations/mission']]
      discount = np.ones(length, np.float32)
      discount[-2:] -= index == 1
      last = np.arange(length) == length - 1
      golden.assert_frames_equal(
          self,
          [steps],
          [
              {
                  'observation': {
                      'mission': np.array(mission, object),
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
                  'discount': discount,
                  'is_first': np.arange(length) == 0,
                  'is_last': last,
                  'is_terminal': last & (index == 1),
              }
          ],
      )

  def _copy(self):
    path = os.path.join(self.create_tempdir().full_path, 'copy')
    shutil.copytree(os.path.join(_DATA, 'rooms_parquet'), path)
    return path

  def _change(self, path, episode, name, column):
    file = os.path.join(path, 'data', str(episode), 'part-0.parquet')
    table = parquet.read_table(file, partitioning=None)
    if name in table.column_names:
      table = table.drop_columns([name])
    if column is not None:
      table = table.append_column(name, column)
    parquet.write_table(table, file)

  def test_infos_that_have_no_rows_are_left_out(self):
    path = self._copy()
    for episode, length in enumerate([6, 5]):
      rows = [{'whole': step, 'lists': [0] * step} for step in range(length)]
      self._change(path, episode, 'infos', pa.array(rows))
    with self.assertLogs(level='WARNING') as logs:
      episodes = list(minari.load_minari(path).as_numpy_iterator())
    self.assertIn('infos/lists', logs.output[0])
    self.assertEqual(list(episodes[1]['steps']['infos']), ['whole'])
    self.assertAllEqual(episodes[1]['steps']['infos']['whole'], range(5))

  def test_errors(self):
    path = self._copy()
    self._change(path, 0, 'rewards', None)
    with self.assertRaisesRegex(ValueError, 'Episode 0 has no rewards. It has'):
      minari.load_minari(path)
    path = self._copy()
    with open(os.path.join(path, 'data/0/part-0.parquet'), 'w') as f:
      f.write('damaged')
    with self.assertRaisesRegex(ValueError, 'part-0.parquet is not a whole'):
      minari.load_minari(path)
    path = self._copy()
    self._change(path, 1, 'rewards', pa.array([1.0, 2.0, None, 1.0, 0.0]))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'rewards must have a value in every row'
    ):
      list(minari.load_minari(path))
    path = self._copy()
    for episode in '01':
      shutil.rmtree(os.path.join(path, 'data', episode))
    with self.assertRaisesRegex(ValueError, 'There is no episode in'):
      minari.load_minari(path)


if __name__ == '__main__':
  tf.test.main()
