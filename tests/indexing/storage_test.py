"""Tests of transitions on disk."""

import os

import numpy as np
import tensorflow as tf

from rlds2reverb.indexing import storage
from tests import contract


class StorageTest(tf.test.TestCase):

  def test_there_and_back(self):
    rows = {
        'observation': {
            'pose': (
                tf.constant([[1.5, -0.0], [2, 3]]),
                tf.constant(['a\0', '']),
            ),
            'half': tf.constant([1, 2], tf.bfloat16),
        },
        'flag': tf.constant([True, False]),
        'nothing': tf.zeros([2, 0], tf.int16),
    }
    folder = os.path.join(self.create_tempdir().full_path, 'index')
    storage.write(folder, rows, tf.constant([2, 0], tf.int64), ('flag',))
    found, lengths, keys = storage.read(folder)
    contract.assert_equal(
        self,
        *(
            tf.nest.map_structure(lambda leaf: leaf.numpy(), nest)
            for nest in (found, rows)
        ),
    )
    self.assertAllEqual(lengths, [2, 0])
    self.assertEqual(keys, ('flag',))
    np.save(os.path.join(folder, 'lengths.npy'), [3])
    with self.assertRaisesRegex(ValueError, 'is damaged'):
      storage.read(folder)

  def test_nothing_there(self):
    with self.assertRaisesRegex(ValueError, 'There is no index'):
      storage.read(self.create_tempdir().full_path)


if __name__ == '__main__':
  tf.test.main()
