"""Tests of mixing data sets, against a loop over the draws."""

import collections
import itertools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from rlds2reverb.datasets import mixtures
from rlds2reverb.replay import local
from tests import call_modes
from tests import chi_square
from tests import golden

_DRAWS = 256  # The number of draws that are computed together.
_LENGTHS = {'a': 3, 'b': 5, 'c': 8}
_EPISODES = golden.stacked([call_modes.FIVE])


def _both(dataset):
  return dict.fromkeys('ab', dataset)


def _range(start, count):
  return tf.data.Dataset.range(start, start + count).map(
      lambda x: {'x': x, 'more': (2 * x, [x])}
  )


def _data(lengths=None):
  lengths = _LENGTHS if lengths is None else lengths
  return {
      name: _range(1000 * place, count)
      for place, (name, count) in enumerate(lengths.items())
  }


def _draws(weights, seed, start):
  """Yields the drawn data sets, from a number on."""
  for block in itertools.count(start // _DRAWS):
    draws = mixtures.draw_sources(weights, _DRAWS, (seed, block)).numpy()
    yield from draws[max(start - block * _DRAWS, 0) :]


def _expected(weights, stop_when, seed, start=0, size=1):
  """Yields the numbers of each batch of draws."""
  # One that is never drawn is not waited for.
  drawn = [place for place, weight in enumerate(weights) if weight]
  parts = []
  for place in drawn:
    numbers = range(1000 * place, 1000 * place + [*_LENGTHS.values()][place])
    numbers = itertools.cycle(numbers) if stop_when == 'never' else numbers
    parts.append(iter(numbers))
  ended = set()
  chances = np.array(weights)[drawn] / sum(weights)
  for place in _draws(chances, seed, start):
    found = list(itertools.islice(parts[place], size))
    is_short = len(found) < size
    if found and (not is_short or stop_when == 'all'):
      yield found
    ended |= {place} if not found else set()
    if is_short and stop_when == 'first' or len(ended) == len(drawn):
      return


class MixDatasetsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(
      ('never', None, (1, 1, 1), 0, 0),
      ('first', 2, (1, 3, 0), 7, 3),
      ('all', 4, (5.0, 1, 2), 1, 300),
      ('first', None, (5.0, 1, 2), 1, 300),
      ('all', 2, (1, 3, 0), 7, 3),
      ('never', 4, (1, 1, 1), 0, 0),
  )
  @pytest.mark.few(3)
  def test_mixture_equals_loop_over_draws(
      self, stop_when, subbatch_size, weights, seed, start
  ):
    mixture = mixtures.mix_datasets(
        _data(),
        dict(zip(_LENGTHS, weights)),
        subbatch_size=subbatch_size,
        stop_when=stop_when,
        seed=seed,
        start=start,
    )
    rows = list(mixture.take(60).as_numpy_iterator())
    expected = _expected(weights, stop_when, seed, start, subbatch_size or 1)
    expected = list(itertools.islice(expected, 60))
    actual = [np.ravel(row.element['x']).tolist() for row in rows]
    self.assertEqual(actual, expected)
    for row, numbers in zip(rows, expected):
      self.assertAllEqual(np.ravel(row.source), np.array(numbers) // 1000)
      self.assertAllEqual(row.element['more'][0], 2 * row.element['x'])
      self.assertEqual(row.mask, {})

  @parameterized.parameters((6, 0, 'never'), (3, 50, 'first'))
  def test_batches_of_draws(self, subbatch_size, start, stop_when):
    # The batches that come in may be of any size.
    sizes = {'a': 2, 'b': 4, 'c': 3}
    mixture = mixtures.mix_datasets(
        {name: one.batch(sizes[name]) for name, one in _data().items()},
        dict(zip(_LENGTHS, (1, 3, 2))),
        batch_size=6,
        subbatch_size=subbatch_size,
        stop_when=stop_when,
        seed=5,
        start=start,
    )
    self.assertEqual(mixture.element_spec.element['x'].shape, [6])
    actual = [row.element['x'] for row in mixture.take(40).as_numpy_iterator()]
    draws = _expected(
        (1, 3, 2), stop_when, 5, start * 6 // subbatch_size, subbatch_size
    )
    numbers = list(itertools.islice(itertools.chain.from_iterable(draws), 240))
    numbers = numbers[: len(numbers) // 6 * 6]
    self.assertAllEqual(np.reshape(actual, [-1]), numbers)

  def test_batches_that_are_shared_exactly(self):
    weights, size = (0.25, 0.75), 16
    mixture = mixtures.mix_datasets(
        {'a': _range(0, 10**6).batch(5), 'b': _range(10**7, 10**6).batch(3)},
        dict(zip('ab', weights)),
        batch_size=size,
    )
    for number, row in enumerate(mixture.take(20).as_numpy_iterator()):
      a, b = 4 * number + np.arange(4), 12 * number + np.arange(12)
      self.assertAllEqual(row.element['x'], [*a, *(10**7 + b)])
      self.assertAllEqual(row.source, [0] * 4 + [1] * 12)

  def test_batches_end_and_omit_data_sets_of_weight_0(self):
    for size in None, 1:
      mixture = mixtures.mix_datasets(
          {name: one.batch(5) for name, one in _data().items()},
          {'a': 0, 'b': 0, 'c': 1},
          batch_size=4,
          subbatch_size=size,
          stop_when='first',
      )
      actual = [row.element['x'] for row in mixture.as_numpy_iterator()]
      self.assertAllEqual(actual, 2000 + np.arange(8).reshape(2, 4))

  def test_missing_field_of_batches_is_zeros_with_mask(self):
    data = {name: one.batch(5) for name, one in _data({'a': 9, 'b': 9}).items()}
    data['a'] = data['a'].map(lambda row: {'x': row['x']})
    mixture = mixtures.mix_datasets(data, batch_size=6)
    row = next(mixture.as_numpy_iterator())
    self.assertAllEqual(row.element['more'][0], [0, 0, 0, 2000, 2002, 2004])
    self.assertAllEqual(row.mask['more/0'], [False] * 3 + [True] * 3)

  def test_weights_of_any_size(self):
    sources = {
        name: tf.data.Dataset.range(k, k + 1) for k, name in enumerate('abc')
    }
    for scale in 1e-310, 1e-200, 5e307:
      weights = {'a': scale, 'b': 0.0, 'c': 3 * scale}
      mixture = mixtures.mix_datasets(sources, weights).take(4000)
      drawn = [int(row.element) for row in mixture.as_numpy_iterator()]
      counts = np.bincount(drawn, minlength=3)
      self.assertEqual(counts[1], 0)
      self.assertLess(
          chi_square.compute_statistic(counts[[0, 2]], [0.25, 0.75]),
          chi_square.LIMITS[1],
      )

  def test_draws(self):
    draws = mixtures.draw_sources([0.0, 2, 0, 6, 0], 16000, (3, 4)).numpy()
    counts = np.bincount(draws, minlength=5)
    self.assertAllEqual(counts[[0, 2, 4]], [0, 0, 0])
    limits = chi_square.LIMITS
    self.assertLess(
        chi_square.compute_statistic(counts[[1, 3]], [0.25, 0.75]), limits[1]
    )
    # They are independent: the chance of a pair is the product of both.
    pairs = np.bincount(2 * (draws[::2] > 1) + (draws[1::2] > 1))
    chances = [1 / 16, 3 / 16, 3 / 16, 9 / 16]
    self.assertLess(chi_square.compute_statistic(pairs, chances), limits[3])
    self.assertNotAllEqual(
        mixtures.draw_sources([1, 1], 99, (3, 5)), draws[:99]
    )

  def test_next_batch_uses_updated_priorities(self):
    buffer = rlds2reverb.open_replay_buffer(
        golden.stacked([golden.COMPLETE, golden.TRUNCATED]),
        sampler=local.Prioritized(),
    )
    data = buffer.as_dataset(2, single_deterministic_pass=True)
    keys = np.concatenate([info.key[:, 0] for _, info in data])
    other = tf.data.Dataset.from_tensors(next(iter(data)))
    iterator = iter(
        mixtures.mix_datasets(
            {'own': buffer.as_dataset(2), 'other': other}, batch_size=4
        )
    )
    next(iterator)
    for chosen in keys:
      buffer.update_priorities(keys, (keys == chosen).astype(np.float64))
      _, info = next(iterator).element
      self.assertAllEqual(info.key[:2, 0], [chosen] * 2)

  def test_empty_data_set_of_tensors_is_skipped_or_raises(self):
    data = {'a': tf.data.Dataset.range(4), 'none': tf.data.Dataset.range(0)}
    actual = [
        int(row.element) for row in mixtures.mix_datasets(data, stop_when='all')
    ]
    self.assertEqual(actual, [*range(4)])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'data set none is empty'
    ):
      list(mixtures.mix_datasets(data).take(50))

  @parameterized.parameters(
      (dict(stop_when='last'), 'stop_when must be one of'),
      (dict(weights={'a': 1, 'd': 1}), r"are of \['a', 'd'\]"),
      (dict(weights={'a': 1, 'b': -1}), 'from 0 up.* b has -1'),
      (dict(weights={'a': 0, 'b': 0}), 'All weights are 0'),
      (dict(subbatch_size=0), 'subbatch_size must be a positive'),
      (dict(batch_size=0), 'batch_size must be a positive'),
      (dict(start=-2), 'start must be an integer from 0 up'),
      (dict(datasets={}), 'no data sets to mix'),
      (dict(batch_size=6), r'makes \[1.5, 4.5\] elements'),
      (dict(weights={'a': 1e-9, 'b': 1}, batch_size=4), 'shared exactly'),
      (dict(batch_size=4, subbatch_size=3), '4 is not one of 3'),
      (dict(batch_size=4, stop_when='all'), 'Choose a subbatch_size, or stop'),
      (
          dict(datasets=_both(tf.data.Dataset.range(4)), batch_size=4),
          'the element of a is a scalar. Call batch',
      ),
      (
          dict(datasets=_both(_EPISODES), batch_size=4),
          'data sets of batches are mixed, but a has episodes',
      ),
      (dict(datasets=_both(_EPISODES), subbatch_size=2), 'steps/action is of'),
      (
          dict(
              datasets=_both(tf.data.Dataset.range(4).batch(3)), subbatch_size=2
          ),
          'but the element is of',
      ),
  )
  def test_invalid_arguments_raise(self, settings, message):
    batches = 'batch_size' in settings
    data = _data({'a': 4, 'b': 4})
    valid = dict(
        datasets={k: v.batch(2) if batches else v for k, v in data.items()},
        weights={'a': 1, 'b': 3},
    )
    with self.assertRaisesRegex(ValueError, message):
      mixtures.mix_datasets(**{**valid, **settings})


_Pair = collections.namedtuple('_Pair', ['left', 'right'])


def _first(aligned):
  return {
      name: next(dataset.as_numpy_iterator())
      for name, dataset in aligned.items()
  }


def _aligned(**elements):
  return _first(
      mixtures.align(
          {
              name: tf.data.Dataset.from_tensors(element)
              for name, element in elements.items()
          }
      )
  )


class AlignTest(tf.test.TestCase, parameterized.TestCase):

  def test_zeros_and_a_mask_where_a_field_is_missing(self):
    actual = _aligned(
        one={'a': 1, 'b': {'c': [2.0, 3.0]}},
        other={'a': 4, 'd': 'text'},
    )
    self.assertAllEqual(actual['one'].element['b']['c'], [2, 3])
    self.assertEqual(actual['one'].element['d'], b'')
    self.assertEqual(actual['one'].mask, {'b/c': True, 'd': False})
    self.assertEqual(actual['other'].element['a'], 4)
    self.assertAllEqual(actual['other'].element['b']['c'], [0, 0])
    self.assertEqual(actual['other'].element['d'], b'text')
    self.assertEqual(actual['other'].mask, {'b/c': False, 'd': True})
    self.assertEqual([row.source for row in actual.values()], [0, 1])
    self.assertEqual(_aligned(one={'a': 1}, other={'a': 2})['one'].mask, {})

  def test_missing_keys_of_episodes(self):
    a = dict(call_modes.FIVE, deep={'x': call_modes.FIVE['action']})
    b = dict(call_modes.THREE, text=np.array([b'go'] * 4, object))
    aligned = mixtures.align(
        {'a': golden.stacked([a]), 'b': golden.nested([b])}
    )
    self.assertEqual(aligned['a'].element_spec, aligned['b'].element_spec)
    found = _first(aligned)
    steps = found['a'].element['steps']
    self.assertAllEqual(steps['text'], [b''] * 6)
    self.assertAllEqual(steps['deep']['x'], call_modes.FIVE['action'])
    steps = found['b'].element['steps']
    # It has the length of the episode and the dtype of the other data set.
    self.assertAllEqual(steps['deep']['x'], np.zeros([4, 2]))
    self.assertEqual(steps['deep']['x'].dtype, np.float64)
    for name, leaf in b.items():
      self.assertAllEqual(steps[name], leaf)

  @parameterized.parameters((lambda *parts: parts, '1/a'), (_Pair, 'right/a'))
  def test_tuples(self, make, name):
    actual = _aligned(one=make(1, {'a': 2.0}), other=make(3, {'b': [4.0, 5.0]}))
    self.assertIsInstance(actual['one'].element, tuple)
    self.assertEqual(actual['one'].element[0], 1)
    self.assertAllEqual(actual['one'].element[1]['b'], [0, 0])
    self.assertEqual(actual['other'].element[1]['a'], 0)
    self.assertFalse(actual['other'].mask[name])

  def _of_any_length(self, element):
    signature = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None], leaf.dtype), element
    )
    return tf.data.Dataset.from_generator(
        lambda: iter([element]), output_signature=signature
    )

  def test_an_open_length_is_that_of_the_nearest_field(self):
    aligned = mixtures.align(
        {
            'whole': self._of_any_length(
                {'p': {'x': np.ones(3)}, 'q': {'x': np.ones(3)}}
            ),
            'lacking': self._of_any_length(
                {'p': {'y': np.ones(5)}, 'q': {'x': np.ones(2)}}
            ),
        }
    )
    actual = _first(aligned)['lacking'].element
    # p/x is as long as p/y, which shares p, and not as q/x.
    self.assertAllEqual(actual['p']['x'], np.zeros(5))
    self.assertAllEqual(actual['p']['y'], np.ones(5))

  def test_dimension_known_in_one_data_set_only_is_none(self):
    known = tf.data.Dataset.from_tensors({'x': np.zeros([3])})
    mixture = mixtures.mix_datasets(
        {'known': known, 'open': self._of_any_length({'x': np.zeros(6)})},
        stop_when='all',
    )
    spec = mixture.element_spec.element
    self.assertEqual(spec, {'x': tf.TensorSpec([None], tf.float64)})
    self.assertEqual(sorted(len(row.element['x']) for row in mixture), [3, 6])

  def test_field_without_known_length_raises(self):
    one = self._of_any_length({'y': np.ones(3)})
    other = tf.data.Dataset.from_tensors({'x': 1})
    with self.assertRaisesRegex(ValueError, 'y is of no known length'):
      mixtures.align({'a': one, 'b': other})

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
