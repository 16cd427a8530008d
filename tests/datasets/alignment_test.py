"""Tests of giving the elements of data sets one structure."""

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import alignment


def _one(element):
  return tf.data.Dataset.from_tensors(element)


def _aligned(**elements):
  aligned = alignment.align(
      {name: _one(element) for name, element in elements.items()}
  )
  return {
      name: next(dataset.as_numpy_iterator())
      for name, dataset in aligned.items()
  }


class AlignTest(tf.test.TestCase):

  def test_zeros_and_a_mask_where_a_field_is_missing(self):
    found = _aligned(
        one={'a': 1, 'b': {'c': [2.0, 3.0]}},
        other={'a': 4, 'd': 'text'},
    )
    self.assertAllEqual(found['one'].element['b']['c'], [2, 3])
    self.assertEqual(found['one'].element['a'], 1)
    self.assertEqual(found['one'].element['d'], b'')
    self.assertEqual(found['one'].mask, {'b/c': True, 'd': False})
    self.assertEqual(found['other'].element['a'], 4)
    self.assertAllEqual(found['other'].element['b']['c'], [0, 0])
    self.assertEqual(found['other'].element['d'], b'text')
    self.assertEqual(found['other'].mask, {'b/c': False, 'd': True})

  def test_no_mask_where_nothing_is_missing(self):
    found = _aligned(one={'a': 1}, other={'a': 2})
    self.assertEqual(found['one'].mask, {})
    self.assertEqual(found['other'].element, {'a': 2})

  def test_an_open_length_is_that_of_the_nearest_field(self):
    def vary(element):
      return tf.data.Dataset.from_generator(
          lambda: iter([element]),
          output_signature=tf.nest.map_structure(
              lambda leaf: tf.TensorSpec([None], leaf.dtype), element
          ),
      )

    aligned = alignment.align(
        {
            'whole': vary({'p': {'x': np.ones(3)}, 'q': {'x': np.ones(3)}}),
            'lacking': vary({'p': {'y': np.ones(5)}, 'q': {'x': np.ones(2)}}),
        }
    )
    found = next(aligned['lacking'].as_numpy_iterator()).element
    # p/x is as long as p/y, which shares p, and not as q/x.
    self.assertAllEqual(found['p']['x'], np.zeros(5))
    self.assertAllEqual(found['p']['y'], np.ones(5))

  def test_differences(self):
    with self.assertRaisesRegex(
        ValueError, r'a: one has int32 \(\), other has float32 \(2,\)'
    ):
      _aligned(one={'a': 1}, other={'a': [1.0, 2.0]})


if __name__ == '__main__':
  tf.test.main()
