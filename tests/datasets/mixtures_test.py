"""Tests of mixing data sets, against a loop over the draws."""

import itertools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from rlds2reverb.datasets import mixtures
from rlds2reverb.replay import local
from tests import golden
from tests import testing
from tests import ways

_DRAWS = 256  # So many are made at once.
_LENGTHS = {'a': 3, 'b': 5, 'c': 8}
_EPISODES = golden.stacked([ways.FIVE])


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
  """Yields what is drawn together: lists of numbers."""
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
  def test_as_a_loop_over_the_draws(
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
    found = [np.ravel(row.element['x']).tolist() for row in rows]
    self.assertEqual(found, expected)
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
    found = [row.element['x'] for row in mixture.take(40).as_numpy_iterator()]
    draws = _expected(
        (1, 3, 2), stop_when, 5, start * 6 // subbatch_size, subbatch_size
    )
    numbers = list(itertools.islice(itertools.chain.from_iterable(draws), 240))
    numbers = numbers[: len(numbers) // 6 * 6]
    self.assertAllEqual(np.reshape(found, [-1]), numbers)

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

  def test_batches_end_and_leave_out_what_is_never_drawn(self):
    for size in None, 1:
      mixture = mixtures.mix_datasets(
          {name: one.batch(5) for name, one in _data().items()},
          {'a': 0, 'b': 0, 'c': 1},
          batch_size=4,
          subbatch_size=size,
          stop_when='first',
      )
      found = [row.element['x'] for row in mixture.as_numpy_iterator()]
      self.assertAllEqual(found, 2000 + np.arange(8).reshape(2, 4))

  def test_batches_in_which_one_lacks_a_field(self):
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
          testing.chi_square(counts[[0, 2]], [0.25, 0.75]),
          testing.CHI_SQUARE_LIMITS[1],
      )

  def test_draws(self):
    draws = mixtures.draw_sources([0.0, 2, 0, 6, 0], 16000, (3, 4)).numpy()
    counts = np.bincount(draws, minlength=5)
    self.assertAllEqual(counts[[0, 2, 4]], [0, 0, 0])
    limits = testing.CHI_SQUARE_LIMITS
    self.assertLess(testing.chi_square(counts[[1, 3]], [0.25, 0.75]), limits[1])
    # They are independent: the chance of a pair is the product of both.
    pairs = np.bincount(2 * (draws[::2] > 1) + (draws[1::2] > 1))
    chances = [1 / 16, 3 / 16, 3 / 16, 9 / 16]
    self.assertLess(testing.chi_square(pairs, chances), limits[3])
    self.assertNotAllEqual(
        mixtures.draw_sources([1, 1], 99, (3, 5)), draws[:99]
    )

  def test_the_next_batch_sees_new_priorities(self):
    own = rlds2reverb.open_replay_buffer(
        golden.stacked([golden.COMPLETE, golden.TRUNCATED]),
        sampler=local.Prioritized(),
    )
    data = own.as_dataset(2, single_deterministic_pass=True)
    keys = np.concatenate([info.key[:, 0] for _, info in data])
    other = tf.data.Dataset.from_tensors(next(iter(data)))
    iterator = iter(
        mixtures.mix_datasets(
            {'own': own.as_dataset(2), 'other': other}, batch_size=4
        )
    )
    next(iterator)
    for chosen in keys:
      own.update_priorities(keys, (keys == chosen).astype(np.float64))
      _, info = next(iterator).element
      self.assertAllEqual(info.key[:2, 0], [chosen] * 2)

  def test_bare_tensors_of_which_one_is_empty(self):
    data = {'a': tf.data.Dataset.range(4), 'none': tf.data.Dataset.range(0)}
    found = [
        int(row.element) for row in mixtures.mix_datasets(data, stop_when='all')
    ]
    self.assertEqual(found, [*range(4)])
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
  def test_what_is_not_valid(self, settings, message):
    batches = 'batch_size' in settings
    data = _data({'a': 4, 'b': 4})
    valid = dict(
        datasets={k: v.batch(2) if batches else v for k, v in data.items()},
        weights={'a': 1, 'b': 3},
    )
    with self.assertRaisesRegex(ValueError, message):
      mixtures.mix_datasets(**{**valid, **settings})


if __name__ == '__main__':
  tf.test.main()
