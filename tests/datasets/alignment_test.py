"""Tests of giving the elements of data sets one structure."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import alignment
from rlds2reverb.datasets import mixtures
from tests import golden
from tests import ways

_Pair = collections.namedtuple('_Pair', ['left', 'right'])


def _first(aligned):
  return {
      name: next(dataset.as_numpy_iterator())
      for name, dataset in aligned.items()
  }


def _aligned(**elements):
  return _first(
      alignment.align(
          {
              name: tf.data.Dataset.from_tensors(element)
              for name, element in elements.items()
          }
      )
  )


class AlignTest(tf.test.TestCase, parameterized.TestCase):

  def test_zeros_and_a_mask_where_a_field_is_missing(self):
    found = _aligned(
        one={'a': 1, 'b': {'c': [2.0, 3.0]}},
        other={'a': 4, 'd': 'text'},
    )
    self.assertAllEqual(found['one'].element['b']['c'], [2, 3])
    self.assertEqual(found['one'].element['d'], b'')
    self.assertEqual(found['one'].mask, {'b/c': True, 'd': False})
    self.assertEqual(found['other'].element['a'], 4)
    self.assertAllEqual(found['other'].element['b']['c'], [0, 0])
    self.assertEqual(found['other'].element['d'], b'text')
    self.assertEqual(found['other'].mask, {'b/c': False, 'd': True})
    self.assertEqual([row.source for row in found.values()], [0, 1])
    self.assertEqual(_aligned(one={'a': 1}, other={'a': 2})['one'].mask, {})

  def test_missing_keys_of_episodes(self):
    a = dict(ways.FIVE, deep={'x': ways.FIVE['action']})
    b = dict(ways.THREE, text=np.array([b'go'] * 4, object))
    aligned = alignment.align(
        {'a': golden.stacked([a]), 'b': golden.nested([b])}
    )
    self.assertEqual(aligned['a'].element_spec, aligned['b'].element_spec)
    found = _first(aligned)
    steps = found['a'].element['steps']
    self.assertAllEqual(steps['text'], [b''] * 6)
    self.assertAllEqual(steps['deep']['x'], ways.FIVE['action'])
    steps = found['b'].element['steps']
    # Its length is that of the episode, its dtype that of the other data set.
    self.assertAllEqual(steps['deep']['x'], np.zeros([4, 2]))
    self.assertEqual(steps['deep']['x'].dtype, np.float64)
    for name, leaf in b.items():
      self.assertAllEqual(steps[name], leaf)

  @parameterized.parameters((lambda *parts: parts, '1/a'), (_Pair, 'right/a'))
  def test_tuples(self, make, name):
    found = _aligned(one=make(1, {'a': 2.0}), other=make(3, {'b': [4.0, 5.0]}))
    self.assertIsInstance(found['one'].element, tuple)
    self.assertEqual(found['one'].element[0], 1)
    self.assertAllEqual(found['one'].element[1]['b'], [0, 0])
    self.assertEqual(found['other'].element[1]['a'], 0)
    self.assertFalse(found['other'].mask[name])

  def _of_any_length(self, element):
    signature = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None], leaf.dtype), element
    )
    return tf.data.Dataset.from_generator(
        lambda: iter([element]), output_signature=signature
    )

  def test_an_open_length_is_that_of_the_nearest_field(self):
    aligned = alignment.align(
        {
            'whole': self._of_any_length(
                {'p': {'x': np.ones(3)}, 'q': {'x': np.ones(3)}}
            ),
            'lacking': self._of_any_length(
                {'p': {'y': np.ones(5)}, 'q': {'x': np.ones(2)}}
            ),
        }
    )
    found = _first(aligned)['lacking'].element
    # p/x is as long as p/y, which shares p, and not as q/x.
    self.assertAllEqual(found['p']['x'], np.zeros(5))
    self.assertAllEqual(found['p']['y'], np.ones(5))

  def test_what_only_one_knows_is_open(self):
    known = tf.data.Dataset.from_tensors({'x': np.zeros([3])})
    mixture = mixtures.mix_datasets(
        {'known': known, 'open': self._of_any_length({'x': np.zeros(6)})},
        stop_when='all',
    )
    spec = mixture.element_spec.element
    self.assertEqual(spec, {'x': tf.TensorSpec([None], tf.float64)})
    self.assertEqual(sorted(len(row.element['x']) for row in mixture), [3, 6])

  def test_no_length_to_take(self):
    one = self._of_any_length({'y': np.ones(3)})
    other = tf.data.Dataset.from_tensors({'x': 1})
    with self.assertRaisesRegex(ValueError, 'y is of no known length'):
      alignment.align({'a': one, 'b': other})

  def test_differences_are_listed_by_path(self):
    a = {
        'x': {'image': np.zeros([4, 4, 3]), 'n': np.int32(1), 'y': 1.0},
        't': (1, 2),
    }
    b = {
        'x': {'image': np.zeros([8, 8, 3]), 'n': np.int64(1), 'y': {'z': 1}},
        't': (1,),
    }
    with self.assertRaises(ValueError) as caught:
      _aligned(first=a, second=b)
    for line in (
        'x/image: first has float64 (4, 4, 3), second has float64 (8, 8, 3)',
        'x/n: first has int32 (), second has int64 ()',
        "x/y: first has float32 (), second has a dict of ['z']",
        't: first has a tuple of 2, second has a tuple of 1',
    ):
      self.assertIn(line, str(caught.exception))
    self.assertLen(str(caught.exception).splitlines(), 5)
    with self.assertRaisesRegex(ValueError, r'element: a has int32 \(\), b'):
      _aligned(a=1, b='x')


if __name__ == '__main__':
  tf.test.main()
