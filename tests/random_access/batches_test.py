import itertools
import os
import pickle
import tempfile
import time
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb import random_access
from rlds2reverb.episodes import windows as windows_lib
from tests import golden
from tests.replay.local import cuts

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
      found = sum([self.ids(part[number]) for part in parts], [])
      # Another number of processes would go on with the same batches.
      self.assertCountEqual(found, self.ids(whole[number]))
      orders += found
    if drop_last is not None:
      size = self.count - self.count % 6 * drop_last
      epochs = orders[:size], orders[size:]
      self.assertNotEqual(*epochs)
      for epoch in epochs:
        self.assertLen(set(epoch), size)

  def test_items_come_as_often_as_the_weights_say(self):
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
    cuts.assert_frequencies(
        self, np.bincount(drawn, minlength=self.count), expected
    )
    # Neighbours in time are not of one kind.
    same = np.mean(drawn[1:] == drawn[:-1])
    self.assertLess(abs(same - (expected**2).sum()), 0.01)

  def test_fields_of_a_mixture(self):
    batch = self.batches(200)[0]
    for row, number in enumerate(self.ids(batch)):
      name = self.names[number]
      self.assertEqual(batch['name'][row, 0], name.encode())
      self.assertAllEqual(batch['extra'][row, 0], [float(name == 'b')] * 2)

  def test_iterators_go_on_where_a_state_says(self):
    batches = pickle.loads(pickle.dumps(self.batches(4)))
    expected = [self.ids(batches[number]) for number in range(9)]
    with self.batches(4).iterate(num_threads=3, num_ahead=5) as iterator:
      for number in range(4):
        self.assertEqual(self.ids(next(iterator)), expected[number])
      state = iterator.state_dict()
    with self.batches(4).iterate(num_threads=1) as iterator:
      next(iterator)
      iterator.load_state_dict(state)
      rest = itertools.islice(iterator, 5)
      self.assertEqual(list(map(self.ids, rest)), expected[4:])
    for other in (
        self.batches(4, seed=1),
        self.batches(2),
        self.batches(4, replacement=False),
        self.batches(4, weights={'a': 1, 'b': 1, 'c': 1}),
    ):
      with self.assertRaisesRegex(ValueError, 'The state is of other batches'):
        other.iterate().load_state_dict(state)

  def test_few_batches_are_read_in_advance(self):
    read = []
    noting = self.noting(lambda batch: read.append(1) or batch)
    with noting.iterate(num_ahead=3) as iterator:
      next(iterator)
      next(iterator)
      time.sleep(0.2)
      self.assertLessEqual(len(read), 4)

  def test_as_dataset(self):
    batches = self.batches(4)
    dataset = batches.as_dataset(start=2).take(10)
    self.assertEqual(
        dataset.element_spec['id'], tf.TensorSpec([4, 1], tf.int64)
    )
    found = list(dataset.as_numpy_iterator())
    self.assertLen(found, 10)
    for number, batch in enumerate(found, 2):
      tree.map_structure(self.assertAllEqual, batch, batches[number])

  def test_errors_in_threads(self):
    batches = self.noting(mock.Mock(side_effect=OSError('it is damaged')))
    with batches.iterate() as iterator:
      with self.assertRaisesRegex(OSError, 'it is damaged'):
        next(iterator)
    with self.assertRaises(tf.errors.UnknownError) as raised:
      next(iter(batches.as_dataset()))
    self.assertEqual(raised.exception.message, 'OSError: it is damaged')

  def test_wrong_arguments(self):
    equal = {'a': 1, 'b': 1, 'c': 1}
    octo = random_access.Augmentation.OCTO
    for problem, size, kwargs in (
        ('multiple of count', 4, dict(process=(0, 3))),
        ('process must be', 4, dict(process=(2, 2))),
        ('weights must be of', 4, dict(weights={'a': 1})),
        ('All weights are 0', 4, dict(weights={'a': 0, 'b': 0, 'c': 0})),
        ('need replacement', 4, dict(weights=equal, replacement=False)),
        ('nothing would be left', 100, dict(replacement=False)),
        ('each of the 12 items', 4, dict(weights={**equal, 'a': [1.0]})),
        ('decoded image must be one of', 4, dict(augment={'id': octo})),
    ):
      with self.assertRaisesRegex(ValueError, problem):
        self.batches(size, **kwargs)
    with self.assertRaisesRegex(ValueError, 'each of the 3 episodes'):
      self.items['a'].episode_weights([1.0])
    with self.assertRaisesRegex(IndexError, 'no batch -1'):
      self.batches(4)[-1]  # pylint: disable=pointless-statement


if __name__ == '__main__':
  tf.test.main()
