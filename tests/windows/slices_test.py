"""Tests of random slices, crops and padded trajectories."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.windows import flat_rows
from rlds2reverb.windows import slices
from rlds2reverb.windows import transitions
from tests import contract
from tests import golden

_DRAWS = 6000
# Chi-squared at p=0.001, by the degrees of freedom.
_CRITICAL = {2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3}


def _store(*episodes):
  return flat_rows.FlatRows.of(golden.stacked(list(episodes)))


def _numpy(nest):
  return tf.nest.map_structure(lambda leaf: leaf.numpy(), nest)


class JoinTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*golden.FORMS)
  def test_against_a_loop(self, form):
    episodes = contract.edge_episodes(3)
    rows, lengths, _ = flat_rows.FlatRows.of(golden.FORMS[form](episodes))
    contract.assert_rows(
        self,
        _numpy(rows),
        [row for steps in episodes for row in contract.transitions(steps)],
    )
    self.assertAllEqual(
        lengths, [golden.length_of(steps) - 1 for steps in episodes]
    )

  @parameterized.parameters(*golden.FORMS)
  def test_a_data_set_that_is_shuffled_anew_at_each_pass(self, form):
    # Episode e has e transitions, with the observations 10 e, 10 e + 1, ...
    episodes = [
        contract.make_steps(
            range(10 * count, 11 * count + 1), range(count), terminal=True
        )
        for count in range(9)
    ]
    data = golden.FORMS[form](episodes).shuffle(9)
    for join in (flat_rows.FlatRows.of, tf.function(flat_rows.FlatRows.of)):
      rows, lengths, _ = join(data)
      self.assertCountEqual(lengths.numpy(), range(9))
      expected = [
          10 * count + t for count in lengths.numpy() for t in range(count)
      ]
      self.assertAllEqual(rows['observation'], expected)

  def test_no_episodes(self):
    rows, lengths, _ = flat_rows.FlatRows.of(
        golden.stacked([], golden.stacked_spec(contract.A))
    )
    self.assertEqual(rows['observation'].shape, [0])
    self.assertEqual(lengths.shape, [0])


class SampleSlicesTest(parameterized.TestCase, tf.test.TestCase):

  def _assert_frequencies(self, drawn, expected):
    """Asserts that what was drawn has just these probabilities."""
    pairs = list(zip(drawn.trajectory.numpy(), drawn.start.numpy()))
    self.assertEqual(set(pairs), set(expected))
    chi_squared = sum(
        (pairs.count(pair) - len(pairs) * p) ** 2 / (len(pairs) * p)
        for pair, p in expected.items()
    )
    self.assertLess(chi_squared, _CRITICAL[len(expected) - 1])

  @parameterized.named_parameters(
      (
          'trajectory',
          {},
          {(0, 0): 1 / 6, (0, 1): 1 / 6, (0, 2): 1 / 6, (1, 0): 1 / 2},
      ),
      (
          'window',
          {'weighting': 'window'},
          {(0, 0): 1 / 4, (0, 1): 1 / 4, (0, 2): 1 / 4, (1, 0): 1 / 4},
      ),
      (
          'span',
          {'span': (1, 0)},
          {(0, start): 1 / 8 for start in range(-1, 3)}
          | {(1, start): 1 / 4 for start in range(-1, 1)},
      ),
      (
          'window_span',
          {'span': (0, 2), 'weighting': 'window'},
          {(0, start): 1 / 8 for start in range(0, 5)}
          | {(1, start): 1 / 8 for start in range(0, 3)},
      ),
      (
          'not_strict',
          {'strict': False, 'slice_length': 4},
          {(0, 0): 1 / 6, (0, 1): 1 / 6, (1, 0): 1 / 3, (2, 0): 1 / 3},
      ),
      (
          'not_strict_window',
          {
              'strict': False,
              'slice_length': 4,
              'weighting': 'window',
              'span': (1, 0),
          },
          {(0, -1): 0.2, (0, 0): 0.2, (0, 1): 0.2, (1, 0): 0.2, (2, 0): 0.2},
      ),
  )
  def test_supports_and_frequencies(self, arguments, expected):
    none = contract.make_steps([50], [], terminal=True)
    one = contract.make_steps([60, 61], [1], terminal=True)
    rows, lengths, _ = _store(contract.A, contract.B, one, none)
    drawn = slices.sample_slices(
        flat_rows.FlatRows.of(rows, lengths=lengths),
        (_DRAWS, arguments.pop('slice_length', 3)),
        **{'seed': (1, 2), **arguments},
    )
    self._assert_frequencies(drawn, expected)

  @parameterized.product(
      weighting=slices.WEIGHTINGS, fill=['zeros', 'repeat', 'ragged']
  )
  def test_rows_against_a_loop(self, weighting, fill):
    length = 4
    episodes = contract.edge_episodes(length)
    rows, lengths, _ = _store(*episodes)
    drawn = slices.sample_slices(
        flat_rows.FlatRows.of(rows, lengths=lengths),
        (50, length),
        (3, 4),
        strict=False,
        weighting=weighting,
        fill=fill,
        span=(2, 3),
    )
    sliced = _numpy(drawn.rows) if fill != 'ragged' else drawn.rows
    seen = set()
    for s in range(50):
      transitions = contract.transitions(episodes[int(drawn.trajectory[s])])
      count = len(transitions)
      expected, mask = [], []
      for at in range(int(drawn.start[s]), int(drawn.start[s]) + length):
        inside = 0 <= at < count
        mask.append(inside)
        if inside or fill == 'repeat':
          expected.append(transitions[min(max(at, 0), count - 1)])
        elif fill == 'zeros':
          expected.append(contract.zero_like(transitions[0]))
      seen.add(sum(mask))
      self.assertAllEqual(drawn.mask[s], mask)
      row = tf.nest.map_structure(lambda leaf: leaf[s], sliced)  # pylint: disable=cell-var-from-loop
      row = _numpy(row) if fill == 'ragged' else row
      contract.assert_rows(self, row, expected)
    self.assertContainsSubset({1, 2, 3, 4}, seen)

  @parameterized.parameters(
      ('zeros', [10, 11, 12, 0]), ('repeat', [10, 11, 12, 12])
  )
  def test_a_short_trajectory(self, fill, expected):
    rows, lengths, _ = _store(contract.B)
    drawn = slices.sample_slices(
        flat_rows.FlatRows.of(rows, lengths=lengths),
        (2, 4),
        (0, 0),
        strict=False,
        fill=fill,
    )
    self.assertAllEqual(drawn.rows['observation'], [expected] * 2)
    self.assertAllEqual(drawn.mask, [[True, True, True, False]] * 2)

  def test_without_replacement(self):
    rows, lengths, _ = _store(contract.A, contract.B)
    firsts, starts = [], []
    draw = tf.function(
        lambda seed: slices.sample_slices(
            flat_rows.FlatRows.of(rows, lengths=lengths),
            (2, 3),
            (seed, 0),
            replacement=False,
        )
    )
    draw_windows = tf.function(
        lambda seed: slices.sample_slices(
            flat_rows.FlatRows.of(rows, lengths=lengths),
            (4, 3),
            (seed, 0),
            weighting='window',
            replacement=False,
        )
    )
    for seed in tf.range(400):
      drawn = draw(seed)
      self.assertCountEqual(drawn.trajectory.numpy(), [0, 1])
      firsts.append(int(drawn.trajectory[0]))
      starts.append(int(drawn.start[tf.argmin(drawn.trajectory)]))
      windows = draw_windows(seed)
      self.assertCountEqual(
          zip(windows.trajectory.numpy(), windows.start.numpy()),
          [(0, 0), (0, 1), (0, 2), (1, 0)],
      )
    self.assertBetween(sum(firsts), 150, 250)  # 5 standard deviations
    for start in range(3):
      self.assertBetween(starts.count(start), 85, 182)

  def test_the_seed_decides(self):
    rows, lengths, _ = _store(contract.A, contract.B)
    draw = lambda seed: slices.sample_slices(  # pylint: disable=g-long-lambda
        flat_rows.FlatRows.of(rows, lengths=lengths), (30, 3), seed
    )
    in_graph = tf.function(draw)
    tf.nest.map_structure(self.assertAllEqual, draw((1, 2)), in_graph((1, 2)))
    tf.nest.map_structure(
        self.assertAllEqual, draw((1, 2)), draw(tf.constant([1, 2]))
    )
    self.assertNotAllEqual(draw((1, 2)).start, draw((1, 3)).start)
    self.assertNotAllEqual(draw((1, 2)).start, draw((2, 2)).start)

  def test_in_map_with_static_shapes(self):
    rows, lengths, _ = _store(*contract.edge_episodes(3))
    dataset = tf.data.Dataset.range(3).map(
        lambda index: slices.sample_slices(
            flat_rows.FlatRows.of(rows, lengths=lengths), (5, 3), (7, index)
        )
    )
    spec = dataset.element_spec
    self.assertEqual(
        spec.rows['observation']['camera'],
        tf.TensorSpec([5, 3, 2, 1], tf.uint8),
    )
    self.assertEqual(spec.mask, tf.TensorSpec([5, 3], tf.bool))
    self.assertEqual(spec.start, tf.TensorSpec([5], tf.int64))
    for index, drawn in enumerate(dataset):
      tf.nest.map_structure(
          self.assertAllEqual,
          drawn,
          slices.sample_slices(
              flat_rows.FlatRows.of(rows, lengths=lengths), (5, 3), (7, index)
          ),
      )

  def test_nothing_to_draw(self):
    rows, lengths, _ = _store(contract.B)
    for arguments in (
        {'slice_length': 4},
        {'slice_length': 3, 'replacement': False},
        {'slice_length': 4, 'weighting': 'window'},
    ):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'not enough slices to draw'
      ):
        slices.sample_slices(
            flat_rows.FlatRows.of(rows, lengths=lengths),
            (2, arguments.pop('slice_length')),
            seed=(0, 0),
            **arguments,
        )

  def test_lengths_that_do_not_add_up(self):
    rows, *_ = _store(contract.B)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'must add up to the rows'
    ):
      slices.sample_slices(
          flat_rows.FlatRows.of(rows, lengths=[2]), (1, 1), (0, 0)
      )

  def test_arrays_and_lists_in_the_place_of_tensors(self):
    rows, lengths, _ = _store(*contract.edge_episodes(3))
    numpy_rows, numpy_lengths = _numpy((rows, lengths))
    for fill in slices.FILLS:
      draw = lambda rows, lengths, seed: slices.sample_slices(  # pylint: disable=g-long-lambda
          flat_rows.FlatRows.of(rows, lengths=lengths),
          (5, 4),
          seed,
          strict=False,
          fill=fill,  # pylint: disable=cell-var-from-loop
      )
      expected = draw(rows, lengths, (1, 2))
      for lengths_given, seed in (
          (numpy_lengths, np.array([1, 2])),
          (list(numpy_lengths), [1, 2]),
      ):
        tf.nest.map_structure(
            self.assertAllEqual,
            draw(numpy_rows, lengths_given, seed),
            expected,
        )
      in_map = tf.data.Dataset.range(1).map(
          lambda _: draw(numpy_rows, numpy_lengths, (1, 2))  # pylint: disable=cell-var-from-loop
      )
      tf.nest.map_structure(
          self.assertAllEqual, in_map.get_single_element(), expected
      )
    drawn = slices.sample_slices(
        flat_rows.FlatRows.of([5, 6, 7], lengths=[3]), (1, 3), (0, 0)
    )
    self.assertAllEqual(drawn.rows, [[5, 6, 7]])

  def test_bad_arguments(self):
    rows, lengths, _ = _store(contract.B)
    for message, arguments in (
        ('num_slices must be a positive', {'shape': (0, 2)}),
        ('slice_length must be a positive', {'shape': (1, 0)}),
        ('Did you mean window', {'weighting': 'windows'}),
        ('Did you mean ragged', {'fill': 'raged'}),
        ('span must be two numbers from 0', {'span': (0, 2)}),
        ('span must be two numbers from 0', {'span': (-1, 0)}),
        ('seed must be an integer or two', {'seed': tf.constant([1, 2, 3])}),
        ('seed must be an integer or two', {'seed': (0.5, 1)}),
        ('span must be two numbers from 0', {'span': (0.5, 0)}),
    ):
      with self.assertRaisesRegex(ValueError, message):
        slices.sample_slices(
            flat_rows.FlatRows.of(rows, lengths=lengths),
            **{'shape': (1, 2), 'seed': (0, 0), **arguments},
        )

  def test_rows_and_lengths_that_do_not_go_together(self):
    for error, message, rows, lengths in (
        (ValueError, 'lengths must be integers, one a traj', [1, 2], [2.0]),
        (ValueError, 'lengths must be integers, one a traj', [1, 2], [[2]]),
        (ValueError, 'lengths must be integers, one a traj', [1, 2], 2),
        (
            ValueError,
            'rows/a .*has 2.*rows/b .*has 3',
            {'a': [1, 2], 'b': [1, 2, 3]},
            [2],
        ),
        (ValueError, 'rows/a .*needs a first dimension', {'a': 1}, [1]),
        (ValueError, 'must have a field', {}, [0]),
        (
            tf.errors.InvalidArgumentError,
            'must not be negative',
            [1, 2],
            [4, -2],
        ),
        (tf.errors.InvalidArgumentError, 'must add up', [1, 2], [1]),
    ):
      with self.assertRaisesRegex(error, message):
        slices.sample_slices(
            flat_rows.FlatRows.of(rows, lengths=lengths), (1, 1), (0, 0)
        )


class CropTest(tf.test.TestCase):

  def test_a_seed_an_episode(self):
    def crops(seed):
      data = golden.stacked([contract.A] * 20).enumerate()
      return [
          crop.tolist()
          for crop in data.map(
              lambda index, episode: slices.sample_slices(
                  transitions.transition_rows(episode['steps']),
                  (1, 3),
                  (seed, index),
              ).rows['reward'][0]
          ).as_numpy_iterator()
      ]

    self.assertEqual(crops(1), crops(1))
    self.assertNotEqual(crops(1), crops(2))
    self.assertCountEqual(
        set(map(tuple, crops(1))), [(1, 2, 3), (2, 3, 4), (3, 4, 5)]
    )


class DrawStepsTest(tf.test.TestCase):

  def test_some_steps_are_drawn(self):
    steps = {'a': tf.range(100), 'b': {'c': tf.range(100) * 2}}
    drawn = [slices.draw_steps(steps, 30, (1, seed)) for seed in range(2)]
    for one in drawn:
      self.assertLen(set(one['a'].numpy()), 30)
      self.assertAllEqual(one['b']['c'], 2 * one['a'])
    self.assertNotAllEqual(drawn[0]['a'], drawn[1]['a'])
    again = slices.draw_steps(steps, 30, (1, 0))
    self.assertAllEqual(again['a'], drawn[0]['a'])
    whole = slices.draw_steps(steps, 100, 5)
    self.assertAllEqual(whole['a'], steps['a'])
    with self.assertRaisesRegex(ValueError, 'num_steps'):
      slices.draw_steps(steps, 0, 5)


if __name__ == '__main__':
  tf.test.main()
