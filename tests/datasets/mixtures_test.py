"""Tests of mixing data sets, and of giving them one structure."""

import collections

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.datasets import alignment
from rlds2reverb.datasets import mixtures
from rlds2reverb.fields import configs
from tests import golden
from tests import ways

_Pair = collections.namedtuple('_Pair', ['left', 'right'])


def _range(start, count):
  return tf.data.Dataset.range(start, start + count).map(lambda x: {'x': x})


def _chi_squared(counts, probabilities):
  expected = np.sum(counts) * np.array(probabilities)
  return ((counts - expected) ** 2 / expected).sum()


class AlignTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_missing_keys_of_episodes(self, form):
    a = dict(
        ways.FIVE,
        observation={
            'state': ways.FIVE['observation'],
            'deep': {'x': ways.FIVE['action']},
        },
    )
    b = dict(ways.THREE, observation={'state': ways.THREE['observation']})
    b['text'] = np.array([b'go'] * 4, object)
    aligned = alignment.align({'a': form([a]), 'b': form([b])})
    self.assertEqual(aligned['a'].element_spec, aligned['b'].element_spec)
    a_row, b_row = (
        next(aligned[name].as_numpy_iterator()) for name in ('a', 'b')
    )
    steps = a_row.element['steps']
    self.assertAllEqual(steps['text'], [b''] * 6)
    self.assertAllEqual(steps['observation']['deep']['x'], ways.FIVE['action'])
    self.assertEqual(
        a_row.mask, {'steps/text': False, 'steps/observation/deep/x': True}
    )
    steps = b_row.element['steps']
    self.assertAllEqual(steps['text'], [b'go'] * 4)
    # Its length is that of the episode, its dtype that of the other data set.
    self.assertAllEqual(steps['observation']['deep']['x'], np.zeros([4, 2]))
    self.assertEqual(steps['observation']['deep']['x'].dtype, np.float64)
    self.assertEqual(
        b_row.mask, {'steps/text': True, 'steps/observation/deep/x': False}
    )
    for name, leaf in ways.THREE.items():
      if name != 'observation':
        self.assertAllEqual(steps[name], leaf)

  @parameterized.parameters('tuple', 'named')
  def test_tuples(self, kind):
    make = tuple if kind == 'tuple' else lambda parts: _Pair(*parts)
    one = tf.data.Dataset.from_tensors(make([1, {'a': 2.0}]))
    other = tf.data.Dataset.from_tensors(make([3, {'b': [4.0, 5.0]}]))
    aligned = alignment.align({'one': one, 'other': other})
    first = next(aligned['one'].as_numpy_iterator())
    self.assertIsInstance(first.element, tuple)
    self.assertEqual(first.element[0], 1)
    self.assertAllEqual(first.element[1]['b'], [0, 0])
    second = next(aligned['other'].as_numpy_iterator())
    self.assertEqual(second.element[1]['a'], 0)
    self.assertAllEqual(second.element[1]['b'], [4, 5])
    self.assertFalse(second.mask['1/a' if kind == 'tuple' else 'right/a'])

  @parameterized.parameters(None, 2)
  def test_bare_tensors(self, subbatch_size):
    mixture = mixtures.mix_datasets(
        {
            'a': tf.data.Dataset.range(4),
            'b': tf.data.Dataset.range(10, 14),
        },
        subbatch_size=subbatch_size,
        stop_when='all',
    )
    rows = list(mixture.as_numpy_iterator())
    self.assertEqual({row.source.max() for row in rows}, {0, 1})
    for source, expected in ((0, range(4)), (1, range(10, 14))):
      found = [row.element for row in rows if row.source.max() == source]
      self.assertAllEqual(np.reshape(found, [-1]), expected)
    self.assertEqual(rows[0].mask, {})

  def test_bare_tensors_that_differ(self):
    with self.assertRaisesRegex(ValueError, r'element: a has int64 \(\), b'):
      mixtures.mix_datasets(
          {
              'a': tf.data.Dataset.range(4),
              'b': tf.data.Dataset.from_tensors('x'),
          }
      )
    open_size = tf.data.Dataset.range(4).batch(3)
    with self.assertRaisesRegex(ValueError, 'but the element is of'):
      mixtures.mix_datasets({'a': open_size}, subbatch_size=2)

  def test_what_only_one_knows_is_open(self):
    known = tf.data.Dataset.from_tensors({'x': np.zeros([3, 2])})
    unknown = golden.stacked([ways.FIVE]).map(
        lambda e: {'x': e['steps']['action']}
    )
    mixture = mixtures.mix_datasets(
        {'known': known, 'unknown': unknown}, stop_when='all'
    )
    self.assertEqual(
        mixture.element_spec.element,
        {'x': tf.TensorSpec([None, 2], tf.float64)},
    )
    self.assertEqual(mixture.element_spec.mask, {})
    self.assertEqual(sorted(len(row.element['x']) for row in mixture), [3, 6])

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
      alignment.align(
          {
              'first': tf.data.Dataset.from_tensors(a),
              'second': tf.data.Dataset.from_tensors(b),
          }
      )
    message = str(caught.exception)
    for line in (
        'x/image: first has float64 (4, 4, 3), second has float64 (8, 8, 3)',
        'x/n: first has int32 (), second has int64 ()',
        "x/y: first has float32 (), second has a dict of ['z']",
        't: first has a tuple of 2, second has a tuple of 1',
    ):
      self.assertIn(line, message)
    self.assertLen(message.splitlines(), 5)

  def test_no_length_to_take(self):
    ragged = tf.data.Dataset.from_tensors({'x': 1, 'y': [1.0]}).map(
        lambda e: {
            **e,
            'y': tf.ensure_shape(tf.boolean_mask(e['y'], e['y'] > 0), [None]),
        }
    )
    with self.assertRaisesRegex(ValueError, 'y is of no known length'):
      alignment.align(
          {'a': ragged, 'b': tf.data.Dataset.from_tensors({'x': 1})}
      )


class MixDatasetsTest(tf.test.TestCase, parameterized.TestCase):

  def _mix(self, count=None, **kwargs):
    mixture = mixtures.mix_datasets(
        {'a': _range(0, 3), 'b': _range(100, 5)}, **kwargs
    )
    if count is not None:
      mixture = mixture.take(count)
    return [
        (row.source, row.element['x']) for row in mixture.as_numpy_iterator()
    ]

  def test_frequencies_of_elements(self):
    rows = self._mix(4000, weights={'a': 1, 'b': 3})
    counts = np.bincount([source for source, _ in rows])
    self.assertLess(_chi_squared(counts, [0.25, 0.75]), 10.8)  # .001
    # Draws are independent: the chance of a pair is the product of both.
    pairs = np.bincount(
        [2 * one[0] + two[0] for one, two in zip(rows[::2], rows[1::2])]
    )
    self.assertLess(_chi_squared(pairs, [1 / 16, 3 / 16, 3 / 16, 9 / 16]), 16.3)

  @pytest.mark.long
  def test_the_weights_of_a_known_mixture(self):
    weights = configs.load_mixture('oxe_magic_soup').weights
    # Each has as many episodes as its place in the list.
    shares = {
        name: weight * size
        for size, (name, weight) in enumerate(weights.items(), 1)
    }
    data = tf.data.Dataset.range(1).repeat()
    mixture = mixtures.mix_datasets(
        {name: data for name in shares}, shares, seed=7
    )
    sources = mixture.map(lambda row: row.source).batch(100_000)
    counts = np.bincount(next(iter(sources)), minlength=len(shares))
    expected = np.array([*shares.values()]) / sum(shares.values())
    # 24 degrees of freedom; one seed of a thousand is above.
    self.assertLess(_chi_squared(counts, expected), 51.2)

  def test_frequencies_of_three_sources(self):
    mixture = mixtures.mix_datasets(
        {name: _range(0, 2) for name in 'abc'},
        {'a': 5.0, 'b': 0.0, 'c': 15.0},
        seed=3,
    )
    sources = [int(row.source) for row in mixture.take(2000)]
    counts = np.bincount(sources, minlength=3)
    self.assertEqual(counts[1], 0)
    self.assertLess(_chi_squared(counts[[0, 2]], [0.25, 0.75]), 10.8)

  def test_each_source_in_its_order_again_and_again(self):
    rows = self._mix(60)
    for source, expected in ((0, [0, 1, 2]), (1, range(100, 105))):
      values = [value for one, value in rows if one == source]
      self.assertGreater(len(values), 15)
      repeated = list(expected) * 60
      self.assertEqual(values, repeated[: len(values)])

  def test_all(self):
    rows = self._mix(stop_when='all')
    self.assertEqual([x for s, x in rows if s == 0], [0, 1, 2])
    self.assertEqual([x for s, x in rows if s == 1], list(range(100, 105)))

  def test_first(self):
    for seed in range(5):
      rows = self._mix(stop_when='first', seed=seed)
      a = [x for s, x in rows if s == 0]
      b = [x for s, x in rows if s == 1]
      self.assertEqual(a, [0, 1, 2][: len(a)])
      self.assertEqual(b, list(range(100, 105))[: len(b)])
      # It ends when a data set is drawn after its end, not before.
      self.assertTrue(len(a) == 3 or len(b) == 5)
      self.assertLess(len(a) + len(b), 8 + 1)

  def test_subbatches(self):
    mixture = mixtures.mix_datasets(
        {'a': _range(0, 3), 'b': _range(100, 5)},
        {'a': 1, 'b': 3},
        subbatch_size=4,
    )
    self.assertEqual(
        mixture.element_spec.element, {'x': tf.TensorSpec([4], tf.int64)}
    )
    rows = list(mixture.take(1500).as_numpy_iterator())
    for row in rows:
      self.assertLen(set(row.source), 1)
    counts = np.bincount([row.source[0] for row in rows])
    self.assertLess(_chi_squared(counts, [0.25, 0.75]), 10.8)
    # A sub-batch is not shorter because its data set has ended.
    firsts = [row.element['x'] for row in rows if row.source[0] == 0]
    self.assertAllEqual(
        np.concatenate(firsts),
        np.tile([0, 1, 2], len(rows) * 4)[: 4 * len(firsts)],
    )

  def test_subbatches_of_all(self):
    rows = list(
        mixtures.mix_datasets(
            {'a': _range(0, 3), 'b': _range(100, 5)},
            subbatch_size=2,
            stop_when='all',
        ).as_numpy_iterator()
    )
    self.assertEqual(
        sorted(tuple(row.element['x']) for row in rows),
        [(0, 1), (2,), (100, 101), (102, 103), (104,)],
    )

  def test_seed(self):
    self.assertEqual(self._mix(30, seed=1), self._mix(30, seed=1))
    self.assertNotEqual(self._mix(30, seed=1), self._mix(30, seed=2))
    mixture = mixtures.mix_datasets({'a': _range(0, 3), 'b': _range(9, 5)})
    once, again = (
        [int(row.source) for row in mixture.take(30)] for _ in range(2)
    )
    self.assertEqual(once, again)

  def test_draws_go_on(self):
    data = {'a': _range(0, 3), 'b': _range(9, 5)}
    whole = [int(row.source) for row in mixtures.mix_datasets(data).take(600)]
    for start in (0, 1, 255, 256, 500):
      rest = mixtures.mix_datasets(data, start=start).take(50)
      self.assertEqual(
          [int(row.source) for row in rest], whole[start : start + 50]
      )

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_episodes(self, form):
    b = {name: leaf for name, leaf in ways.THREE.items() if name != 'reward'}
    rows = list(
        mixtures.mix_datasets(
            {'a': form([ways.FIVE]), 'b': form([b])}, stop_when='all'
        ).as_numpy_iterator()
    )
    self.assertLen(rows, 2)
    for row in rows:
      episode = [ways.FIVE, ways.THREE][row.source]
      steps = row.element['steps']
      self.assertAllEqual(steps['observation'], episode['observation'])
      self.assertEqual(row.mask, {'steps/reward': row.source == 0})
      self.assertAllEqual(
          steps['reward'],
          ways.FIVE['reward'] if row.source == 0 else np.zeros(4),
      )

  def test_an_empty_data_set_cannot_be_repeated(self):
    mixture = mixtures.mix_datasets({'a': _range(0, 3), 'none': _range(0, 0)})
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'data set none is empty'
    ):
      list(mixture.take(50))

  @parameterized.named_parameters(
      ('stop', dict(stop_when='last'), 'stop_when must be one of'),
      ('names', dict(weights={'a': 1, 'c': 1}), r"are of \['a', 'c'\]"),
      ('negative', dict(weights={'a': 1, 'b': -1}), 'from 0 up.* b is -1'),
      ('zeros', dict(weights={'a': 0, 'b': 0}), 'All weights are 0'),
      ('nan', dict(weights={'a': float('nan'), 'b': 1}), 'finite'),
      ('size', dict(subbatch_size=0), 'subbatch_size must be a positive'),
      ('start', dict(start=-2), 'start must be an integer from 0 up'),
  )
  def test_bad_arguments(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      self._mix(**kwargs)

  def test_no_data_sets(self):
    with self.assertRaisesRegex(ValueError, 'no data sets'):
      mixtures.mix_datasets({})

  def test_subbatches_of_episodes(self):
    with self.assertRaisesRegex(ValueError, 'steps/action is of'):
      mixtures.mix_datasets({'a': golden.stacked([ways.FIVE])}, subbatch_size=2)


if __name__ == '__main__':
  tf.test.main()
