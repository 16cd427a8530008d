"""Tests of keys by their bytes."""

from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.indexing import keys


class KeysTest(parameterized.TestCase, tf.test.TestCase):

  def test_equality_is_of_bytes(self):
    one = tf.constant([0.0, float('nan'), 1.0])
    other = tf.constant([-0.0, float('nan'), 1.0])
    self.assertAllEqual(keys.are_equal(one, other), [False, True, True])
    prints = keys.fingerprint(tf.concat([one, other], 0)).numpy()
    self.assertEqual(
        [prints[i] == prints[i + 3] for i in range(3)], [False, True, True]
    )

  @parameterized.parameters(
      tf.bool, tf.uint8, tf.int64, tf.bfloat16, tf.float64, tf.complex64
  )
  def test_dtypes(self, dtype):
    column = tf.cast([[0, 1], [1, 1], [0, 1]], dtype)
    groups = keys.group_rows((column, tf.constant(['a', 'b', 'a'])))
    self.assertLen(groups.fingerprints, 2)
    self.assertEqual(groups.group[0], groups.group[2])
    self.assertAllEqual(
        keys.are_equal(column, tf.reverse(column, [0])), [True] * 3
    )

  def test_rows_of_a_key_stay_in_order(self):
    column = np.random.default_rng(0).integers(0, 5, 100)
    groups = keys.group_rows(tf.constant(column))
    self.assertAllEqual(np.sort(groups.fingerprints), groups.fingerprints)
    for number in range(len(groups.fingerprints)):
      rows = groups.rows[groups.starts[number] : groups.starts[number + 1]]
      self.assertLen(set(column[rows]), 1)
      self.assertAllEqual(rows, np.flatnonzero(column == column[rows[0]]))
      self.assertAllEqual(groups.group[rows], [number] * len(rows))

  def test_keys_that_collide(self):
    real = keys.fingerprint

    def colliding(nest, salt=0):
      return real(nest, salt) % 4 if salt < 2 else real(nest, salt)

    column = tf.range(50)
    with mock.patch.object(keys, 'fingerprint', colliding):
      groups = keys.group_rows(column)
      self.assertEqual(groups.salt, 2)
      self.assertLen(groups.fingerprints, 50)
    with mock.patch.object(
        keys, 'fingerprint', lambda nest, salt: real(nest) % 4
    ):
      with self.assertRaisesRegex(RuntimeError, 'Distinct keys'):
        keys.group_rows(column)

  def test_find_group(self):
    column = tf.constant([7, 5, 7])
    groups = keys.group_rows(column)
    group, found = keys.find_group(
        tf.constant([5, 6, 7]), groups.fingerprints, groups.salt
    )
    self.assertAllEqual(found, [True, False, True])
    self.assertAllEqual(
        [group[0], group[2]], [groups.group[1], groups.group[0]]
    )

  def test_salts_change_what_is_hashed(self):
    nest = {
        'flag': tf.constant([True, False]),
        'pose': tf.ones([2, 3, 2]),
        'text': tf.constant([['a', 'b'], ['c', '']]),
    }
    prints = np.stack([keys.fingerprint(nest, salt) for salt in range(4)])
    self.assertLen(np.unique(prints), 8)
    empty = tf.nest.map_structure(lambda leaf: leaf[:0], nest)
    for salt in 0, 1:
      self.assertEqual(keys.fingerprint(empty, salt).shape, [0])

  def test_keys_of_another_kind(self):
    spec = {'o': tf.TensorSpec([None, 2], tf.float32)}
    keys.check_keys({'o': tf.zeros([5, 2])}, spec)
    for bad in tf.zeros([5, 3]), tf.zeros([2]), tf.zeros([5, 2], tf.float64):
      with self.assertRaisesRegex(ValueError, 'o of a key is float'):
        keys.check_keys({'o': bad}, spec)


if __name__ == '__main__':
  tf.test.main()
