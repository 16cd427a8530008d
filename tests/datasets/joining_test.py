"""Tests of joining small batches of records."""

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import joining


def _batches(*marked):
  """Returns a data set of marked batches of records of some sizes."""
  return tf.data.Dataset.from_generator(
      lambda: (
          (
              mark,
              {
                  'record': np.array([b'x' * n for n in sizes], object),
                  'name': np.array([str(n) for n in sizes], object),
              },
          )
          for mark, sizes in marked
      ),
      output_signature=(
          tf.TensorSpec([], tf.int64),
          {
              'record': tf.TensorSpec([None], tf.string),
              'name': tf.TensorSpec([None], tf.string),
          },
      ),
  )


class JoiningTest(tf.test.TestCase):

  def _join(self, *marked, max_records=100):
    dataset = _batches(*marked)
    joined = joining.join_batches(dataset, 'record', 10, max_records)
    self.assertEqual(joined.element_spec, dataset.element_spec)
    found = []
    for mark, batch in joined.as_numpy_iterator():
      sizes = [len(record) for record in batch['record']]
      self.assertEqual([int(name) for name in batch['name']], sizes)
      found.append((mark, sizes))
    return found

  def test_batches_that_fit(self):
    found = self._join((-1, [1, 2]), (-1, [3, 4]), (-1, [1]), (-1, [5, 5]))
    self.assertEqual(found, [(-1, [1, 2, 3, 4]), (-1, [1]), (-1, [5, 5])])

  def test_a_large_batch_comes_out_with_what_is_held(self):
    found = self._join((-1, [1]), (-1, [20]), (-1, [30, 1]), (-1, [2]))
    self.assertEqual(found, [(-1, [1, 20]), (-1, [30, 1]), (-1, [2])])

  def test_the_number_of_records(self):
    found = self._join(*[(-1, [1, 1])] * 5, max_records=5)
    self.assertEqual(found, [(-1, [1] * 4)] * 2 + [(-1, [1, 1])])

  def test_marks(self):
    found = self._join((-1, [1]), (-1, [2]), (7, []), (9, []), (-1, [3]))
    self.assertEqual(found, [(7, [1, 2]), (9, []), (-1, [3])])

  def test_no_batches(self):
    self.assertEqual(self._join(), [])
    self.assertEqual(self._join((-1, [])), [])


if __name__ == '__main__':
  tf.test.main()
