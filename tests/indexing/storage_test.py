"""Tests of transitions on disk."""

import os

import numpy as np
import tensorflow as tf

from rlds2reverb import indexing
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
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(ValueError, 'There is no index'):
      storage.read(folder)
    args = folder, rows, tf.constant([2, 0], tf.int64), ('flag',)
    storage.write(*args)
    with self.assertRaises(FileExistsError):
      storage.write(*args)
    indexing.TransitionIndex(*args[1:]).save(folder, overwrite=True)
    found, lengths, keys = storage.read(folder)
    as_arrays = lambda nest: tf.nest.map_structure(lambda x: x.numpy(), nest)
    contract.assert_equal(self, as_arrays(found), as_arrays(rows))
    self.assertAllEqual(lengths, [2, 0])
    self.assertEqual(keys, ('flag',))
    index = indexing.TransitionIndex.load(folder)
    key = {'flag': tf.constant([False])}
    self.assertAllEqual(index.lookup(key).index, [1])
    np.save(os.path.join(folder, 'lengths.npy'), [3])
    with self.assertRaisesRegex(ValueError, 'is damaged'):
      storage.read(folder)


if __name__ == '__main__':
  tf.test.main()
