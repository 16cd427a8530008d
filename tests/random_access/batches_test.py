import dataclasses
import functools
import itertools
import os
import pickle
import tempfile
import time
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb import random_access
from rlds2reverb.episodes import windows as windows_lib
from tests import chi_square
from tests import golden

_LENGTHS = {'a': [4, 1, 7], 'b': [2, 30], 'c': [5]}


def _steps(name, first, length):
  place = np.arange(first, first + length)
  steps = {
      'id': place,
      'name': np.array([name.encode()] * length, object),
      'is_first': place == first,
  }
  if name == 'b':
    steps['extra'] = np.ones([length, 2], np.float32)
  return steps


class _Scale:

  def __init__(self, factor=1):
    self.factor = factor

  def apply(self, batch):
    return batch

  __call__ = apply


@dataclasses.dataclass
class _Chain:
  part: Any

  def __call__(self, batch):
    return batch


class BatchesTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls.items = {}
    cls.names = []
    for name, lengths in _LENGTHS.items():
      episodes = []
      for length in lengths:
        episodes.append(_steps(name, len(cls.names), length))
        cls.names += [name] * length
      index = random_access.build_index(
          golden.stacked(episodes), os.path.join(folder, name)
      )
      cls.items[name] = random_access.Items(index, windows_lib.Windows(1))
    cls.count = len(cls.names)

  def batches(self, *args, **kwargs):
    return random_access.Batches(self.items, *args, **kwargs)

  def noting(self, transform):
    index = self.items['a'].index
    return random_access.Batches(
        random_access.Items(index, windows_lib.Windows(1), transform=transform),
        4,
    )

  def ids(self, batch):
    return batch['id'][:, 0].tolist()

  @parameterized.parameters((3, True), (2, False), (3, None))
  def test_processes_share_batches(self, count, drop_last):
    kwargs = dict(seed=3, replacement=drop_last is None)
    if drop_last is not None:
      kwargs['drop_last'] = drop_last
    whole = self.batches(6, **kwargs)
    parts = [
        self.batches(6, process=(k, count), **kwargs) for k in range(count)
    ]
    orders = []
    for number in range(2 * whole.batches_per_epoch):
      actual = sum([self.ids(part[number]) for part in parts], [])
      # Any number of processes could resume with the same batches.
      self.assertCountEqual(actual, self.ids(whole[number]))
      orders += actual
    if drop_last is not None:
      size = self.count - self.count % 6 * drop_last
      epochs = orders[:size], orders[size:]
      self.assertNotEqual(*epochs)
      for epoch in epochs:
        self.assertLen(set(epoch), size)

  def test_frequencies_of_items_match_weights(self):
    rates = self.items['b'].column('id').astype(np.float64)
    self.assertAllEqual(rates, np.arange(12, 44))
    by_episode = np.repeat([5.0, 0.0, 1.0], _LENGTHS['a']) / 6
    by_episode /= np.repeat(_LENGTHS['a'], _LENGTHS['a'])
    weights = {
        'a': self.items['a'].episode_weights([5.0, 0.0, 1.0]),
        'b': 3 * rates / rates.sum(),
        'c': 1.0,
    }
    expected = [6 * by_episode, weights['b'], np.full(5, 1 / 5)]
    expected = np.concatenate(expected) / 10
    batches = self.batches(512, weights=weights)
    drawn = np.concatenate([batches.draw(number) for number in range(100)])
    chi_square.assert_frequencies(
        self, np.bincount(drawn, minlength=self.count), expected
    )
    # Neighbours in time are not of one kind.
    same = np.mean(drawn[1:] == drawn[:-1])
    self.assertLess(abs(same - (expected**2).sum()), 0.01)

  @parameterized.parameters(1e-310, 1e-200, 5e307)
  def test_weights_of_any_size(self, scale):
    weights = {'a': scale, 'b': np.eye(1, 32, 4)[0] * scale * 3, 'c': 0.0}
    drawn = self.batches(20000, weights=weights).draw(0)
    expected = np.zeros(self.count)
    expected[:12] = 0.25 / 12
    expected[16] = 0.75
    chi_square.assert_frequencies(
        self, np.bincount(drawn, minlength=self.count), expected
    )

  @parameterized.product(drop_last=[True, False], num_threads=[0, 2])
  def test_masks_leave_items_out_of_epochs(self, drop_last, num_threads):
    rng = np.random.default_rng(3)
    mask = {
        'a': rng.uniform(size=12) < 0.5,
        'b': 0.25 * (rng.uniform(size=32) < 0.5),
        'c': 0,
    }
    mask['a'] = mask['a'] * 0.25
    kwargs = dict(replacement=False, drop_last=drop_last, weights=mask, seed=2)
    batches = pickle.loads(pickle.dumps(self.batches(5, **kwargs)))
    kept = np.flatnonzero(np.concatenate([mask['a'], mask['b'], np.zeros(5)]))
    count = len(kept) // 5 if drop_last else -(-len(kept) // 5)
    self.assertEqual(batches.batches_per_epoch, count)
    orders = []
    with batches.iterate(num_threads=num_threads) as iterator:
      for _ in range(3):
        actual = sum([self.ids(next(iterator)) for _ in range(count)], [])
        self.assertLen(set(actual), len(actual))
        self.assertContainsSubset(actual, kept.tolist())
        self.assertLen(actual, 5 * count if drop_last else len(kept))
        orders.append(tuple(actual))
      state = iterator.state_dict()
    self.assertLen(set(orders), 3)
    with self.assertRaisesRegex(ValueError, 'The state is of other batches'):
      other = {**mask, 'a': 0.25}
      self.batches(5, **{**kwargs, 'weights': other}).iterate().load_state_dict(
          state
      )
    # Equal weights leave nothing out.
    whole = self.batches(5, **{**kwargs, 'weights': dict.fromkeys('abc', 3)})
    again = self.batches(5, **{**kwargs, 'weights': None})
    self.assertEqual(self.ids(whole[4]), self.ids(again[4]))

  def test_fields_of_a_mixture(self):
    batch = self.batches(200)[0]
    for row, number in enumerate(self.ids(batch)):
      name = self.names[number]
      self.assertEqual(batch['name'][row, 0], name.encode())
      self.assertAllEqual(batch['extra'][row, 0], [float(name == 'b')] * 2)

  def test_iterators_resume_from_a_state(self):
    batches = pickle.loads(pickle.dumps(self.batches(4)))
    expected = [self.ids(batches[number]) for number in range(9)]
    with self.batches(4).iterate(num_threads=3, num_ahead=5) as iterator:
      for number in range(4):
        self.assertEqual(self.ids(next(iterator)), expected[number])
      state = iterator.state_dict()
    with self.batches(4).iterate(num_threads=1) as iterator:
      next(iterator)
      iterator.load_state_dict(state)
      next_batches = itertools.islice(iterator, 5)
      self.assertEqual(list(map(self.ids, next_batches)), expected[4:])
    for other in (
        self.batches(4, seed=1),
        self.batches(2),
        self.batches(4, replacement=False),
        self.batches(4, weights={'a': 1, 'b': 1, 'c': 1}),
    ):
      with self.assertRaisesRegex(ValueError, 'The state is of other batches'):
        other.iterate().load_state_dict(state)

  def test_states_name_functions_by_their_module_and_name(self):

    def make(factor):
      def scale(batch):
        return {**batch, 'id': batch['id'] * factor}

      return scale

    def other(batch):
      return batch

    scales = make(1), make(1)  # As in two processes.
    for one, same in (
        scales,
        [functools.partial(scale) for scale in scales],
        [_Scale(), _Scale()],
        [_Scale().apply, _Scale().apply],
        [_Chain(scale) for scale in scales],
    ):
      batches, again = self.noting(one), self.noting(same)
      iterator = again.iterate()
      iterator.load_state_dict(batches.iterate(start=3).state_dict())
      self.assertEqual(iterator.position, 3)
      # Grain compares them.
      self.assertEqual(repr(batches.items), repr(again.items))
      for function in None, other, functools.partial(other), _Chain(other):
        iterator = self.noting(function).iterate()
        with self.assertRaisesRegex(ValueError, 'the images, the transform,'):
          iterator.load_state_dict(batches.iterate().state_dict())
    [[_, items]] = self.noting(scales[0]).items.identity()
    self.assertEndsWith(items[-1], 'make.<locals>.scale')
    self.assertStartsWith(items[-1], __name__)
    circles = [_Scale(), _Scale()]
    for circle in circles:
      circle.factor = circle.apply
    self.assertEqual(*(self.noting(circle).identity() for circle in circles))
    for one, same, another in (
        (_Chain('a'), _Chain('a'), _Chain('b')),  # Dataclasses.
        (_Scale(2), _Scale(2), _Scale(3)),
        (_Scale(2).apply, _Scale(2).apply, _Scale(3).apply),
        (_Scale(_Scale(2)), _Scale(_Scale(2)), _Scale(_Scale(3))),
        (
            _Scale(np.arange(2000.0)),
            _Scale(np.arange(2000.0)),
            _Scale(np.arange(2000.0) + (np.arange(2000) == 1000)),
        ),
    ):
      state = self.noting(one).iterate().state_dict()
      self.noting(same).iterate().load_state_dict(state)
      with self.assertRaisesRegex(ValueError, 'The state is of other batches'):
        self.noting(another).iterate().load_state_dict(state)

  def test_few_batches_are_read_in_advance(self):
    read = []
    noting = self.noting(lambda batch: read.append(1) or batch)
    read.clear()  # The first item was read for its spec.
    with noting.iterate(num_ahead=3) as iterator:
      next(iterator)
      next(iterator)
      time.sleep(0.2)
      self.assertLessEqual(len(read), 4)

  def test_as_dataset_equals_indexing(self):
    batches = self.batches(4)
    dataset = batches.as_dataset(start=2).take(10)
    self.assertEqual(
        dataset.element_spec['id'], tf.TensorSpec([4, 1], tf.int64)
    )
    actual = list(dataset.as_numpy_iterator())
    self.assertLen(actual, 10)
    for number, batch in enumerate(actual, 2):
      tree.map_structure(self.assertAllEqual, batch, batches[number])

  def test_a_deleted_data_set_closes_the_index(self):
    folder = self.create_tempdir().full_path
    data = golden.stacked([_steps('a', 0, 5)])
    index = random_access.build_index(data, os.path.join(folder, 'index'))
    items = random_access.Items(index, windows_lib.Windows(1))
    iterator = iter(random_access.Batches(items, 2).as_dataset().batch(2))
    del index, items
    self.assertEqual(next(iterator)['id'].shape, [2, 2, 1])
    del iterator
    golden.assert_no_open_files(self, folder)

  def test_errors_in_threads(self):
    transform = mock.Mock(side_effect=lambda batch: batch)
    batches = self.noting(transform)
    transform.side_effect = OSError('it is damaged')
    with batches.iterate() as iterator:
      with self.assertRaisesRegex(OSError, 'it is damaged'):
        next(iterator)
    with self.assertRaises(tf.errors.UnknownError) as raised:
      next(iter(batches.as_dataset()))
    self.assertEqual(raised.exception.message, 'OSError: it is damaged')

  @parameterized.product(num_threads=[0, 1, 3], failing=[0, 2, 5])
  def test_a_batch_that_failed_is_read_again(self, num_threads, failing):
    wanted = [self.ids(self.noting(None)[number]) for number in range(8)]
    errors = []

    def fail_twice(batch):
      if self.ids(batch) == wanted[failing] and len(errors) < 2:
        errors.append(1)
        raise OSError('a file system was away')
      return batch

    batches, actual = self.noting(fail_twice), []
    with batches.iterate(num_threads=num_threads) as iterator:
      while len(actual) < 8:
        self.assertEqual(iterator.state_dict()['position'], len(actual))
        try:
          actual.append(self.ids(next(iterator)))
        except OSError:
          self.assertLen(actual, failing)
    self.assertEqual(actual, wanted)
    self.assertLen(errors, 2)
    errors.clear()
    actual, dataset = [], batches.as_dataset(num_threads=num_threads)
    iterator = dataset.as_numpy_iterator()
    while len(actual) < 8:
      try:
        actual.append(self.ids(next(iterator)))
      except tf.errors.UnknownError:
        self.assertLen(actual, failing)
    self.assertAllEqual(actual, wanted)
    self.assertLen(errors, 2)

  def test_specs_describe_transformed_items(self):
    def change(batch):
      names = [name.decode().encode('utf-16') for name in batch['name'][:, 0]]
      return {
          'half': batch['id'] * 0.5 + 0.25,
          'extra': np.float32(batch['id'] ** 2),
          'names': np.array(names, object),
          'is_first': batch['is_first'].astype(np.uint8),
      }

    def items(name):
      index = self.items[name].index
      return random_access.Items(
          index, windows_lib.Windows(1), transform=change
      )

    for sources in items('a'), {name: items(name) for name in 'ab'}:
      batches = random_access.Batches(sources, 6, seed=4)
      batch = batches[1]
      ids = batches.draw(1)[:, np.newaxis]
      self.assertAllEqual(batch['half'], ids * 0.5 + 0.25)
      self.assertAllEqual(batch['extra'], ids**2)
      self.assertEqual(
          {
              name: (leaf.dtype, leaf.shape)
              for name, leaf in batches.spec.items()
          },
          {
              'half': ('float64', (6, 1)),
              'extra': ('float32', (6, 1)),
              'names': ('string', (6,)),
              'is_first': ('uint8', (6, 1)),
          },
      )
      [actual] = batches.as_dataset(1).take(1).as_numpy_iterator()
      tree.map_structure(self.assertAllEqual, actual, batch)
      for name, leaf in batch.items():
        self.assertEqual(actual[name].dtype, leaf.dtype)

  def test_transforms_that_differ_between_items(self):
    casts = lambda batch: {
        'id': batch['id'] * (1.0 if batch['id'].max() > 3 else 1)
    }
    drops = lambda batch: {
        key: leaf for key, leaf in batch.items() if batch['id'].max() < 4
    }
    for problem, transform in (
        ('Field id .* is float64, but it was int64 for the first', casts),
        ('Field id .* is missing, but it was int64 for the first', drops),
    ):
      items = self.noting(transform).items
      self.assertLen(items.batch([1, 2])['id'], 2)
      with self.assertRaisesRegex(ValueError, problem):
        items.batch([1, 8])
    with self.assertRaisesRegex(ValueError, 'shape .4., but its first'):
      self.noting(lambda batch: {'id': np.zeros(4)})

  @parameterized.parameters('a', 'mixed')
  def test_indexing_items(self, which):
    items = self.items['a'] if which == 'a' else self.batches(4).items
    wanted = items.batch([3, 0, -1])
    for index in (
        [3, 0, -1],
        np.array([3, 0, -1]),
        np.array([3, 0, len(items) - 1], np.uint64),
        tf.constant([3, 0, -1]),
    ):
      tree.map_structure(self.assertAllEqual, items[index], wanted)
    for index in 3, np.int32(3), np.array(3), tf.constant(3):
      tree.map_structure(
          lambda actual, batch: self.assertAllEqual(actual, batch[0]),
          items[index],
          wanted,
      )
    self.assertEqual(items[[]]['id'].shape, (0, 1))
    for index in (
        1.5,
        [1.5],
        np.array([1.0]),
        np.array(1.0),
        True,
        [True, False],
        np.ones(len(items), bool),
        [[1, 2], [3, 4]],
        (1, 2),
        slice(2),
        None,
        'id',
        ['id'],
    ):
      with self.assertRaises(TypeError, msg=repr(index)):
        items[index]
    for index in len(items), -len(items) - 1, [0, len(items)], [2**63]:
      with self.assertRaisesRegex(IndexError, 'is out of range: there are'):
        items[index]

  def test_positions_are_integers_from_0_up(self):
    batches = self.batches(4)
    for invalid in -1, 1.5, True, None, '1':
      for call in (
          batches.iterate,
          batches.as_dataset,
          batches.draw,
          lambda start: next(batches.iterate(num_threads=start)),
          lambda start: batches.iterate().load_state_dict(
              {**batches.iterate().state_dict(), 'position': start}
          ),
      ):
        if invalid is None and call not in (
            batches.iterate,
            batches.as_dataset,
        ):
          continue
        with self.assertRaisesRegex(ValueError, 'integer from 0 up'):
          call(invalid)
      for kwargs in dict(seed=invalid), dict(process=(invalid, 2)):
        with self.assertRaisesRegex(ValueError, 'integer from 0 up'):
          self.batches(4, **kwargs)
    for invalid in 1.5, '1', [1, 2], slice(2), None:
      with self.assertRaisesRegex(TypeError, 'index of a batch must be one'):
        batches[invalid]
    self.assertAllEqual(self.ids(batches[np.int64(3)]), self.ids(batches[3]))

  def test_invalid_arguments_raise(self):
    equal = {'a': 1, 'b': 1, 'c': 1}
    octo = random_access.Augmentation.OCTO
    for problem, size, kwargs in (
        ('multiple of count', 4, dict(process=(0, 3))),
        ('process must be', 4, dict(process=(2, 2))),
        ('weights must be of', 4, dict(weights={'a': 1})),
        ('All weights are 0', 4, dict(weights={'a': 0, 'b': 0, 'c': 0})),
        (
            '1.0 and 2.0. Unequal weights need replacement',
            4,
            dict(weights={**equal, 'a': 2}, replacement=False),
        ),
        (
            'each of the 12 items',
            4,
            dict(weights={**equal, 'a': [1.0]}, replacement=False),
        ),
        (
            'weights must be of',
            4,
            dict(weights={'a': 1}, replacement=False),
        ),
        (
            'All weights are 0',
            4,
            dict(weights=dict.fromkeys('abc', 0), replacement=False),
        ),
        ('no batch would remain', 100, dict(replacement=False)),
        ('each of the 12 items', 4, dict(weights={**equal, 'a': [1.0]})),
        ('decoded image must be one of', 4, dict(augment={'id': octo})),
    ):
      with self.assertRaisesRegex(ValueError, problem):
        self.batches(size, **kwargs)
    with self.assertRaisesRegex(
        ValueError, r'shape \[3\], one weight per episode'
    ):
      self.items['a'].episode_weights([1.0])
    with self.assertRaisesRegex(IndexError, 'no batch -1'):
      self.batches(4)[-1]


if __name__ == '__main__':
  tf.test.main()
