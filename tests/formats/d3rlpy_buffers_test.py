"""Tests for d3rlpy_buffers, on what d3rlpy wrote: see write_d3rlpy_data.py."""

import os

from absl.testing import parameterized
import h5py
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import d3rlpy_buffers
from tests.formats import expected

_DATA = os.path.join(expected.DATA, 'd3rlpy')
_EPISODES = ((4, True), (3, False), (5, True))


def _expected(index, is_tuple):
  """Returns the steps of an episode, which counts from `10 * index` on."""
  length, is_terminal = _EPISODES[index]
  rows = np.arange(10 * index, 10 * index + length, dtype=np.float32)
  observation = np.stack([rows, -rows], 1)
  if is_tuple:
    observation = (observation, np.uint8(rows)[:, None, None])
  action = np.int64(rows)[:, None] % 3
  return expected.steps(observation, action, rows / 2, terminal=is_terminal)


class D3rlpyTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(('arrays', False), ('tuples', True))
  def test_episodes(self, name, is_tuple):
    dataset = d3rlpy_buffers.load_d3rlpy(os.path.join(_DATA, f'{name}.h5'))
    self.assertEqual(dataset.cardinality(), 3)
    expected.assert_read(
        self, dataset, [_expected(index, is_tuple) for index in range(3)]
    )

  def test_what_is_no_buffer(self):
    path = self.create_tempfile('a.h5').full_path
    with h5py.File(path, 'w') as file:
      file['actions'] = np.zeros(3)
    with self.assertRaisesRegex(ValueError, 'which has num_episodes and vers'):
      d3rlpy_buffers.load_d3rlpy(path)
    for version, message in (
        ('2.0', 'of version 2.0, but 2.1'),
        ('2.1', 'has no observations_0'),
    ):
      with h5py.File(path, 'w') as file:
        file['num_episodes'], file['version'] = 1, version
      with self.assertRaisesRegex(ValueError, message):
        d3rlpy_buffers.load_d3rlpy(path)


if __name__ == '__main__':
  tf.test.main()
