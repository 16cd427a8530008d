"""Tests of where the episodes of flat arrays begin and end."""

import numpy as np
import tensorflow as tf

from rlds2reverb.formats import flat_layout


def _columns(terminals, **others):
  num_rows = len(terminals)
  return {
      'observations': np.zeros((num_rows, 3), np.float32),
      'actions': np.zeros(num_rows, np.int32),
      'rewards': np.zeros((num_rows, 1)),
      'terminals': np.array(terminals),
      **others,
  }


class FindLayoutTest(tf.test.TestCase):

  def test_fields(self):
    layout = flat_layout.find_layout(
        _columns([0, 1], **{'infos/a': np.zeros(2, bool)}), None
    )
    self.assertEqual(
        layout.names,
        {
            'observation': 'observations',
            'action': 'actions',
            'reward': 'rewards',
            'infos': {'a': 'infos/a'},
        },
    )
    self.assertEqual(
        layout.spec,
        {
            'observation': tf.TensorSpec([3], tf.float32),
            'action': tf.TensorSpec([], tf.int32),
            'reward': tf.TensorSpec([], tf.float64),
            'infos': {'a': tf.TensorSpec([], tf.bool)},
        },
    )
    self.assertFalse(layout.has_next)

  def test_bounds(self):
    columns = _columns(
        [0, 1, 0, 0, 0, 0], timeouts=np.array([0, 1, 0, 1, 0, 0])
    )
    for max_steps, bounds, is_terminal in (
        (None, [0, 2, 4, 6], [True, False, False]),
        (1, range(7), [False, True, False, False, False, False]),
    ):
      layout = flat_layout.find_layout(columns, max_steps)
      self.assertAllEqual(layout.bounds, bounds)
      self.assertAllEqual(layout.is_terminal, is_terminal)

  def test_fields_are_in_the_order_of_the_columns(self):
    # As many as a set would hardly keep in order.
    names = [f'extra_{letter}' for letter in 'hbgdace']
    columns = _columns([0, 1], **{name: np.zeros(2) for name in names})
    spec = flat_layout.find_layout(columns, None).spec
    self.assertEqual([name for name in spec if name in names], names)

  def test_no_rows(self):
    layout = flat_layout.find_layout(_columns([]), None)
    self.assertAllEqual(layout.bounds, [0])
    self.assertEmpty(layout.is_terminal)

  def test_next_observations(self):
    columns = _columns([1], next_observations=np.zeros((1, 3), np.float32))
    self.assertTrue(flat_layout.find_layout(columns, None).has_next)


if __name__ == '__main__':
  tf.test.main()
