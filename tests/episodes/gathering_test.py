"""Tests of the gather that windows are made with."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import windows as windows_lib
from tests import contract


class TakeFilledTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ('zeros', 'zeros', [0, 0, 1, 2, 3, 4, 0, 0]),
      ('repeat', 'repeat', [1, 1, 1, 2, 3, 4, 4, 4]),
      ('repeat', 'zeros', [1, 1, 1, 2, 3, 4, 0, 0]),
      ('zeros', 'repeat', [0, 0, 1, 2, 3, 4, 4, 4]),
      (7, 7, [7, 7, 1, 2, 3, 4, 7, 7]),
      (7, 'repeat', [7, 7, 1, 2, 3, 4, 4, 4]),
  )
  def test_fills(self, before, after, expected):
    for dtype in (tf.int32, tf.uint8, tf.float64):
      # The fifth row is there, but does not count.
      taken = gathering.take_filled(
          tf.constant([1, 2, 3, 4, 5], dtype),
          tf.range(-2, 6),
          4,
          before=before,
          after=after,
      )
      self.assertEqual(taken.dtype, dtype)
      self.assertAllEqual(taken, expected)

  def test_random_nests_against_a_loop(self):
    rng = np.random.default_rng(0)
    for count in (0, 1, 5):
      steps = contract.random_steps(rng, count)
      index = rng.integers(-9, count + 9, (4, 3))
      stop = int(rng.integers(count + 1)) if count else 0
      rows = tf.nest.map_structure(tf.constant, steps)
      taken = gathering.take_filled(rows, tf.constant(index), stop)

      def row(position):
        if 0 <= position < stop:  # pylint: disable=cell-var-from-loop
          return tf.nest.map_structure(lambda leaf: leaf[position], steps)  # pylint: disable=cell-var-from-loop
        return contract.zero_like(
            tf.nest.map_structure(lambda leaf: leaf[0], steps)  # pylint: disable=cell-var-from-loop
        )

      contract.assert_equal(
          self,
          tf.nest.map_structure(lambda leaf: leaf.numpy(), taken),
          contract.stack(
              [contract.stack([row(p) for p in line]) for line in index]
          ),
      )
      self.assertAllEqual(
          gathering.is_inside(tf.constant(index), stop),
          [[0 <= p < stop for p in line] for line in index],
      )

  def test_no_rows_at_all(self):
    taken = gathering.take_filled(
        (tf.zeros([0, 2]), tf.zeros([0], tf.string)), tf.constant([[0, -1]]), 0
    )
    self.assertAllEqual(taken[0], np.zeros([1, 2, 2]))
    self.assertAllEqual(taken[1], [[b'', b'']])

  def test_static_shapes(self):
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3, None]),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def take(rows, starts):
      index = windows_lib.window_index(starts, 4)
      return gathering.take_filled(rows, index, 2), gathering.take(rows, index)

    for output in take.get_concrete_function().structured_outputs:
      self.assertEqual(output.shape.as_list(), [None, 4, 3, None])


class TakeWindowsTest(parameterized.TestCase, tf.test.TestCase):

  # Of 4 and of 7 row by row, of 80 and of 36 put together of pieces.
  @parameterized.parameters(
      (4, 1), (7, 1), (80, 1), (36, 2), (36, 30), (1, 1), (24, 1)
  )
  @pytest.mark.few(2)
  def test_random_nests_against_a_loop(self, length, stride):
    rng = np.random.default_rng(length)
    for count in (1, 5, length, 2 * length + 3):
      steps = contract.random_steps(rng, count - 1)
      starts = np.arange(int(rng.integers(count)), count, stride)
      take = lambda rows, starts: gathering.take_windows(  # pylint: disable=g-long-lambda
          rows, starts, length, stride
      )
      rows = tf.nest.map_structure(tf.constant, steps)
      mapped = tf.data.Dataset.from_tensors((rows, starts)).map(take)
      self.assertEqual(
          [leaf.shape[1] for leaf in tf.nest.flatten(mapped.element_spec)],
          [length] * len(tf.nest.flatten(steps)),
      )
      expected = contract.stack(
          [
              tf.nest.map_structure(
                  # pylint: disable-next=cell-var-from-loop
                  lambda leaf: leaf[
                      np.minimum(start + np.arange(length), count - 1)
                  ],
                  steps,
              )
              for start in starts
          ]
      )
      for taken in (take(rows, tf.constant(starts)), *mapped):
        contract.assert_equal(
            self,
            tf.nest.map_structure(lambda leaf: leaf.numpy(), taken),
            expected,
        )

  def test_windows_that_do_not_reach_the_end(self):
    taken = gathering.take_windows(tf.range(1000), tf.range(30, 50), 64, 1)
    self.assertAllEqual(taken, np.arange(30, 50)[:, None] + np.arange(64)[None])

  def test_zeros_unless(self):
    found = gathering.zeros_unless(
        tf.constant([True, False]),
        {'a': tf.ones([2, 3]), 'b': tf.constant(['x', 'y'])},
    )
    self.assertAllEqual(found['a'], [[1, 1, 1], [0, 0, 0]])
    self.assertAllEqual(found['b'], [b'x', b''])


if __name__ == '__main__':
  tf.test.main()
