"""Tests of keys by their bytes."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.indexing import keys as keys_lib

_DTYPES = (tf.bool, tf.uint8, tf.int64, tf.bfloat16, tf.float64, tf.complex64)


class KeysTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ([0.0, -0.0, float('nan'), float('nan'), 0.0], [0, 1, 2, 2, 0]),
      # Strings may end with zeros.
      (['a', 'a\0', '', '\0', 'a'], [0, 1, 2, 3, 0]),
  )
  def test_equality_is_of_bytes(self, column, expected):
    group = keys_lib.Keys(tf.constant(column)).group
    self.assertAllEqual(
        group[:, np.newaxis] == group, np.equal.outer(expected, expected)
    )

  @parameterized.product(dtype=_DTYPES, in_graph=(False, True))
  def test_rows_against_a_dict(self, dtype, in_graph):
    rng = np.random.default_rng(0)
    numbers, words = rng.integers(0, 2, (2, 60, 2))
    nest = {
        'column': tf.cast(numbers, dtype),
        'word': tf.gather(['', 'b'], words[:, 0]),
        'nothing': tf.zeros([60, 0]),
    }
    recorded = tf.nest.map_structure(lambda leaf: leaf[:40], nest)
    keys = keys_lib.Keys(recorded)
    as_key = lambda row: (*numbers[row], words[row, 0])
    expected = {}
    for row in range(40):
      expected.setdefault(as_key(row), []).append(row)
    self.assertLen(keys, len(expected))
    find = tf.function(keys.find) if in_graph else keys.find
    group, found = find(nest)
    for row in range(60):
      rows = expected.get(as_key(row))
      self.assertEqual(bool(found[row]), rows is not None)
      if rows:
        start, end = keys.starts[group[row] : group[row] + 2]
        self.assertAllEqual(keys.rows[start:end], rows)
        self.assertAllEqual(keys.group[rows], [group[row]] * len(rows))

  def test_keys_of_another_kind(self):
    keys = keys_lib.Keys({'o': tf.zeros([3, 2])})
    self.assertAllEqual(keys.find({'o': tf.zeros([0, 2])})[1], [])
    for bad in tf.zeros([5, 3]), tf.zeros([2]), tf.zeros([5, 2], tf.float64):
      with self.assertRaisesRegex(ValueError, 'o of a key is float'):
        keys.find({'o': bad})


if __name__ == '__main__':
  tf.test.main()
