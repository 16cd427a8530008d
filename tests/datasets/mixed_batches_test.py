"""Tests of mixed batches."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

import rlds2reverb
from rlds2reverb.datasets import mixtures
from rlds2reverb.replay import local
from tests import golden
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
  return np.array(
      [batch.element['number'] for batch in dataset.as_numpy_iterator()]
  )


_A, _B = 0, 10**7


class MixedBatchesTest(parameterized.TestCase, tf.test.TestCase):

  def _mix(self, weights, batch_size, sizes=(5, 3), **kwargs):
    return mixtures.mix_datasets(
        {'a': _counting(_A, sizes[0]), 'b': _counting(_B, sizes[1])},
        dict(zip('ab', weights)),
        batch_size=batch_size,
        **kwargs,
    )

  def test_exact(self):
    mixed = self._mix([1, 3], 8)
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
    self.assertEqual(spec.element['number'].shape, [8])
    self.assertEqual(spec.element['twice'][1].shape, [8, 1])
    self.assertEqual(spec.source, tf.TensorSpec([8], tf.int32))
    for batch in mixed.take(3):
      numbers = batch.element['number']
      self.assertAllEqual(batch.element['twice'][0], 2 * numbers)
      self.assertAllEqual(batch.element['twice'][1][:, 0], numbers)
      self.assertAllEqual(batch.source, [0] * 2 + [1] * 6)
      self.assertEqual(batch.mask, {})

  def test_half_and_half(self):
    for weights in ([0.5, 0.5], [1, 1], [7, 7]):
      mixed = self._mix(weights, 256, (128, 128))
      self.assertAllEqual((_numbers(mixed, 20) >= _B).sum(axis=1), [128] * 20)

  def test_a_field_that_one_lacks(self):
    mixed = mixtures.mix_datasets(
        {
            'a': _counting(_A, 5).map(lambda batch: {'x': batch['number']}),
            'b': _counting(_B, 4).map(
                lambda batch: {'x': batch['number'], 'y': batch['number'] + 1}
            ),
        },
        batch_size=6,
    )
    [batch] = mixed.take(1).as_numpy_iterator()
    self.assertAllEqual(batch.element['x'], [0, 1, 2, _B, _B + 1, _B + 2])
    self.assertAllEqual(batch.element['y'], [0, 0, 0, _B + 1, _B + 2, _B + 3])
    self.assertAllEqual(batch.mask['y'], [False] * 3 + [True] * 3)

  @parameterized.parameters(4, 1)
  def test_draws(self, size):
    mixed = self._mix([1, 3], 16, (7, 3), seed=5, subbatch_size=size)
    self.assertEqual(mixed.element_spec.element['number'].shape, [16])
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

  @parameterized.parameters(6, 1)
  def test_each_data_set_keeps_its_order(self, size):
    found = _numbers(self._mix([2, 3], 6, (7, 3), subbatch_size=size), 100)
    found = found.ravel()
    for own, base in ((found[found < _B], _A), (found[found >= _B], _B)):
      self.assertAllEqual(own, base + np.arange(len(own)))
      self.assertGreater(len(own), 100)

  def test_a_subbatch_may_be_the_batch(self):
    mixed = self._mix([1, 1], 4, (4, 4), subbatch_size=4)
    counts = collections.Counter((_numbers(mixed, 60) >= _B).sum(axis=1))
    self.assertEqual(set(counts), {0, 4})

  @parameterized.parameters(3, 1)
  def test_draws_go_on_after_a_restart(self, size):

    def sources(num_batches, seed=11, **kwargs):
      mixed = self._mix(
          [1, 3], 12, (5, 5), subbatch_size=size, seed=seed, **kwargs
      )
      return _numbers(mixed, num_batches) >= _B

    whole = sources(60)
    self.assertAllEqual(sources(60), whole)
    self.assertAllEqual(sources(10, start=50), whole[50:])
    self.assertNotAllEqual(sources(60, seed=12), whole)

  @parameterized.parameters(None, 2, 1)
  def test_weight_0(self, size):
    mixed = mixtures.mix_datasets(
        {
            'a': _counting(_A, 5, count=7),
            'b': _counting(_B, 5, count=30),
            'c': _counting(2 * _B, 5, count=7),
        },
        {'a': 0, 'b': 1, 'c': 0},
        batch_size=4,
        subbatch_size=size,
        stop_when='first',
    )
    self.assertAllEqual(_numbers(mixed), _B + np.arange(28).reshape(7, 4))

  @parameterized.parameters(None, 2, 1)
  def test_ends_with_the_first_that_ended(self, size):
    mixed = mixtures.mix_datasets(
        {'a': _counting(_A, 5, count=21), 'b': _counting(_B, 5)},
        batch_size=4,
        subbatch_size=size,
        stop_when='first',
    )
    found = _numbers(mixed)
    self.assertBetween((found < _B).sum(), 17, 21)

  @parameterized.parameters(None, 2, 1)
  def test_what_has_ended_is_repeated(self, size):
    mixed = mixtures.mix_datasets(
        {'a': _counting(_A, 2, count=3), 'b': _counting(_B, 5)},
        batch_size=4,
        subbatch_size=size,
    )
    found = _numbers(mixed, 40).ravel()
    found = found[found < _B]
    self.assertAllEqual(found, np.tile([0, 1, 2], 80)[: len(found)])
    self.assertGreater(len(found), 40)

  def test_all_of_them(self):
    mixed = mixtures.mix_datasets(
        {
            'a': _counting(_A, 2, count=6),
            'b': _counting(_B, 5, count=10),
            'never': _counting(2 * _B, 5),
        },
        {'a': 1, 'b': 1, 'never': 0},
        batch_size=4,
        subbatch_size=2,
        stop_when='all',
    )
    self.assertCountEqual(
        _numbers(mixed).ravel(), [*range(6), *range(_B, _B + 10)]
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

  def test_draw_sources(self):
    draws = mixtures.draw_sources([0.0, 2, 0, 6, 0], 8000, (3, 4))
    counts = np.bincount(draws, minlength=5)
    self.assertAllEqual(counts[[0, 2, 4]], [0, 0, 0])
    self.assertLess(
        testing.chi_square(counts[[1, 3]], [0.25, 0.75]),
        testing.CHI_SQUARE_LIMITS[1],
    )

  @parameterized.named_parameters(
      ('weights', dict(weights={'a': 1}), r"of the data sets \['a', 'b'\]"),
      ('negative', dict(weights={'a': 2, 'b': -1}), 'b is -1'),
      ('shares', dict(batch_size=6), r'makes \[1.5, 4.5\] elements'),
      ('multiple', dict(subbatch_size=3), '4 is not one of 3'),
      ('batch_size', dict(batch_size=0), 'batch_size must be a positive'),
      ('subbatch_size', dict(subbatch_size=0), 'subbatch_size must be a posit'),
      ('start', dict(start=-1), 'start must be an integer from 0 up'),
      ('all', dict(stop_when='all'), 'Choose a subbatch_size, or stop_when'),
      (
          'dtype',
          dict(
              datasets={
                  'a': tf.data.Dataset.range(4).batch(2),
                  'b': tf.data.Dataset.from_tensors([1.0]),
              }
          ),
          r'a has int64 \(None,\), b has float32 \(None,\)',
      ),
      (
          'scalars',
          dict(datasets=dict.fromkeys('ab', tf.data.Dataset.range(4))),
          'the element of a is a scalar. Call batch',
      ),
      (
          'episodes',
          dict(datasets=dict.fromkeys('ab', golden.stacked([golden.COMPLETE]))),
          'data sets of batches are mixed, but a has episodes',
      ),
      ('none', dict(datasets={}), 'no data sets to mix'),
      (
          'structure',
          dict(
              datasets={
                  'a': _counting(0, 2),
                  'b': tf.data.Dataset.range(9).batch(2),
              }
          ),
          r"a has a dict of \['number', 'twice'\], b has int64",
      ),
  )
  def test_what_is_not_valid(self, settings, message):
    valid = dict(
        datasets={'a': _counting(_A, 4), 'b': _counting(_B, 4)},
        weights={'a': 1, 'b': 3},
        batch_size=4,
    )
    with self.assertRaisesRegex(ValueError, message):
      mixtures.mix_datasets(**{**valid, **settings})


if __name__ == '__main__':
  tf.test.main()
