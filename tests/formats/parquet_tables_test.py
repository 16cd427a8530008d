"""Tests for parquet_tables, on what Hugging Face `datasets` wrote.

See write_parquet_data.py.
"""

import os

import numpy as np
import pyarrow as pa
from pyarrow import parquet
import tensorflow as tf

from rlds2reverb.formats import parquet_tables
from rlds2reverb.transforms import images
from tests import golden
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'parquet')
_BOUNDS = ((0, 2), (2, 6), (6, 9))
_STEPS = os.path.join(_DATA, 'steps')
_EPISODES = os.path.join(_DATA, 'episodes.parquet')


def _expected(index):
  """Returns the steps of an episode, of which the second is terminal."""
  rows = np.arange(*_BOUNDS[index])
  return expected.steps(
      np.stack([rows, -rows], 1).astype(np.float32),
      (rows % 3).astype(np.int32),
      (rows / 2).astype(np.float32),
      terminal=index == 1,
  )


class ParquetTest(tf.test.TestCase):

  def _assert_episodes(self, episodes):
    golden.assert_frames_equal(
        self, [one['steps'] for one in episodes], [*map(_expected, range(3))]
    )

  def test_a_row_a_step(self):
    dataset = parquet_tables.load_parquet(
        _STEPS, episode_column='run', column_names={'observations': 'obs'}
    )
    episodes = list(dataset.as_numpy_iterator())
    encoded = [one['steps'].pop('image') for one in episodes]
    self._assert_episodes(episodes)
    self.assertEqual(encoded[1][-1], b'')
    decoded = images.decode_images(
        {'image': encoded[2]}, ['image'], size=(4, 4)
    )['image']
    self.assertAllEqual(decoded[:, 0, 0, 0], [54, 63, 72])

  def test_a_row_an_episode(self):
    dataset = parquet_tables.load_parquet(
        _EPISODES, column_names={'terminals': 'dones'}
    )
    self.assertEqual(dataset.cardinality(), 3)
    episodes = list(dataset.as_numpy_iterator())
    self.assertEqual([e['task'] for e in episodes], [b'lift', b'push', b'lift'])
    self._assert_episodes(episodes)

  def test_one_observation_more(self):
    path = os.path.join(self.create_tempdir().full_path, 'a.parquet')
    table = {
        'observations': [[0, 1, 2], [7, 8]],
        'actions': [[5, 6], [9]],
        'terminals': [True, False],
    }
    parquet.write_table(pa.table(table), path)
    dataset = parquet_tables.load_parquet(path)
    steps = [one['steps'] for one in dataset.as_numpy_iterator()]
    self.assertAllEqual(steps[0]['observation'], [0, 1, 2])
    self.assertAllEqual(steps[0]['action'], [5, 6, 0])
    self.assertAllEqual(steps[0]['is_terminal'], [0, 0, 1])
    self.assertAllEqual(steps[1]['observation'], [7, 8])
    self.assertAllEqual(steps[1]['reward'], [0.0, 0.0])
    self.assertFalse(steps[1]['is_terminal'].any())

  def test_errors(self):
    names = {'observations': 'obs'}
    damaged = self.create_tempfile('a.parquet', 'damaged').full_path
    expected.assert_refused(
        self,
        parquet_tables.load_parquet,
        (_STEPS, "no column observations, but .*'obs'.* column_names"),
        (
            _STEPS,
            {'column_names': {**names, 'terminals': 'done'}},
            'no column terminals',
        ),
        (
            _STEPS,
            {'column_names': {'obs': 'obs'}},
            'key of column_names must be one',
        ),
        (_STEPS, {'column_names': names}, 'must be lists of steps'),
        (
            _STEPS,
            {'column_names': names, 'episode_column': 'ran'},
            "no column 'ran'. Did you mean run",
        ),
        ('/nowhere', 'There is no table of parquet'),
        (damaged, 'not a whole file'),
    )


if __name__ == '__main__':
  tf.test.main()
