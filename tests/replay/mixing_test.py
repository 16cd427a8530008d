"""Tests of mixed batches."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.replay import mixing
from tests import testing


def _counting(base, batch_size, count=None):
  """Batches of a nest that counts from `base`."""
  dataset = tf.data.Dataset.range(base, base + (count or 10**6))
  return dataset.map(
      lambda number: {'number': number, 'twice': (2 * number, [number])}
  ).batch(batch_size)


def _numbers(dataset, num_batches=None):
  """The numbers of the batches, `[num_batches, batch_size]`."""
  dataset = dataset if num_batches is None else dataset.take(num_batches)
  return np.array([batch['number'] for batch in dataset.as_numpy_iterator()])


_A, _B = 0, 10**7


class MixingTest(parameterized.TestCase, tf.test.TestCase):

  def test_share(self):
    mixed = mixing.mix_batches([_counting(_A, 5), _counting(_B, 3)], [1, 3], 8)
    found = _numbers(mixed, 50)
    expected = np.concatenate(
        [
            np.arange(100).reshape(50, 2),
            _B + np.arange(300).reshape(50, 6),
        ],
        axis=1,
    )
    self.assertAllEqual(found, expected)
    spec = mixed.element_spec
    self.assertEqual(spec['number'].shape, [8])
    self.assertEqual(spec['twice'][1].shape, [8, 1])
    for batch in mixed.take(3):
      self.assertAllEqual(batch['twice'][0], 2 * batch['number'])
      self.assertAllEqual(batch['twice'][1][:, 0], batch['number'])

  def test_half_and_half(self):
    for weights in ([0.5, 0.5], [1, 1], [7, 7]):
      mixed = mixing.mix_batches(
          [_counting(_A, 128), _counting(_B, 128)], weights, 256
      )
      self.assertAllEqual((_numbers(mixed, 20) >= _B).sum(axis=1), [128] * 20)

  @parameterized.parameters(('subbatch', 4), ('element', 1))
  def test_draws(self, level, size):
    settings = dict(subbatch_size=size) if level == 'subbatch' else {}
    mixed = mixing.mix_batches(
        [_counting(_A, 7), _counting(_B, 3)],
        [1, 3],
        16,
        level=level,
        seed=5,
        **settings,
    )
    self.assertEqual(mixed.element_spec['number'].shape, [16])
    draws = (_numbers(mixed, 16000 // 16) >= _B).reshape(-1, size)
    # A sub-batch comes whole from one data set.
    self.assertAllEqual(draws, draws[:, :1].repeat(size, axis=1))
    counts = np.bincount(draws[:, 0])
    self.assertLess(
        testing.chi_square(counts, [0.25, 0.75]), testing.CHI_SQUARE_LIMITS[1]
    )
    # Draws do not depend on the ones before.
    after_a = np.bincount(draws[1:, 0][~draws[:-1, 0]])
    self.assertLess(
        testing.chi_square(after_a, [0.25, 0.75]), testing.CHI_SQUARE_LIMITS[1]
    )

  @parameterized.parameters('subbatch', 'element')
  def test_each_data_set_keeps_its_order(self, level):
    mixed = mixing.mix_batches(
        [_counting(_A, 7), _counting(_B, 3)], [2, 3], 6, level=level
    )
    found = _numbers(mixed, 100).ravel()
    for own, base in ((found[found < _B], _A), (found[found >= _B], _B)):
      self.assertAllEqual(own, base + np.arange(len(own)))
      self.assertGreater(len(own), 100)

  def test_default_subbatch_is_the_batch(self):
    mixed = mixing.mix_batches(
        [_counting(_A, 4), _counting(_B, 4)], [1, 1], 4, level='subbatch'
    )
    counts = collections.Counter((_numbers(mixed, 60) >= _B).sum(axis=1))
    self.assertEqual(set(counts), {0, 4})

  @parameterized.parameters('subbatch', 'element')
  def test_draws_go_on_after_a_restart(self, level):
    settings = dict(weights=[1, 3], batch_size=12, level=level, seed=11)
    if level == 'subbatch':
      settings['subbatch_size'] = 3

    def sources(num_batches, **kwargs):
      datasets = [_counting(_A, 5), _counting(_B, 5)]
      mixed = mixing.mix_batches(datasets, **{**settings, **kwargs})
      return _numbers(mixed, num_batches) >= _B

    whole = sources(30)
    self.assertAllEqual(sources(30), whole)
    self.assertAllEqual(sources(10, first_batch=20), whole[20:])
    self.assertNotAllEqual(sources(30, seed=12), whole)

  @parameterized.parameters('exact', 'subbatch', 'element')
  def test_weight_0(self, level):
    mixed = mixing.mix_batches(
        [_counting(_A, 5), _counting(_B, 5), _counting(2 * _B, 5)],
        [0, 1, 0],
        4,
        level=level,
    )
    self.assertAllEqual(_numbers(mixed, 50), _B + np.arange(200).reshape(50, 4))

  @parameterized.parameters('exact', 'subbatch', 'element')
  def test_ends_with_the_first_that_ended(self, level):
    mixed = mixing.mix_batches(
        [_counting(_A, 5, count=21), _counting(_B, 5)], [1, 1], 4, level=level
    )
    found = _numbers(mixed)
    self.assertBetween((found < _B).sum(), 17, 21)

  def test_draw_sources(self):
    draws = mixing.draw_sources([0.0, 2, 0, 6, 0], 8000, (3, 4))
    counts = np.bincount(draws, minlength=5)
    self.assertAllEqual(counts[[0, 2, 4]], [0, 0, 0])
    self.assertLess(
        testing.chi_square(counts[[1, 3]], [0.25, 0.75]),
        testing.CHI_SQUARE_LIMITS[1],
    )

  @parameterized.named_parameters(
      ('weights', dict(weights=[1]), 'a weight for each of the 2 data sets'),
      ('negative', dict(weights=[2, -1]), 'data set 1 is -1.0'),
      ('nan', dict(weights=[1, np.nan]), 'finite numbers from 0 up'),
      ('zero', dict(weights=[0, 0]), 'All weights are 0'),
      ('shares', dict(batch_size=6, weights=[1, 3]), r'makes \[1.5, 4.5\]'),
      ('level', dict(level='batch'), "one of 'exact', 'subbatch', 'element'"),
      (
          'subbatch_size',
          dict(level='element', subbatch_size=2),
          'subbatch_size is for level="subbatch"',
      ),
      (
          'multiple',
          dict(level='subbatch', subbatch_size=3),
          '4 is not one of 3',
      ),
      ('batch_size', dict(batch_size=0), 'batch_size must be a positive'),
      (
          'dtype',
          dict(
              datasets=[
                  tf.data.Dataset.range(4).batch(2),
                  tf.data.Dataset.from_tensors([1.0]),
              ]
          ),
          r'Data set 1 differs .* float32 \(1,\), and the first has int64',
      ),
      (
          'scalars',
          dict(datasets=[tf.data.Dataset.range(4)] * 2),
          'of data set 0 is a scalar. Call batch',
      ),
      ('none', dict(datasets=[], weights=[]), 'no data sets to mix'),
      (
          'structure',
          dict(datasets=[_counting(0, 2), tf.data.Dataset.range(9).batch(2)]),
          'Data set 1 has another structure than the first',
      ),
  )
  def test_what_is_not_valid(self, settings, message):
    valid = dict(
        datasets=[_counting(_A, 4), _counting(_B, 4)],
        weights=[1, 1],
        batch_size=4,
    )
    with self.assertRaisesRegex(ValueError, message):
      mixing.mix_batches(**{**valid, **settings})


if __name__ == '__main__':
  tf.test.main()
