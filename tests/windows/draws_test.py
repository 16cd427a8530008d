"""Tests of random slices and steps, and of rows of many trajectories."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import windows
from tests import chi_square
from tests import contract
from tests import golden

_EPISODES = [
    contract.A,
    contract.B,
    contract.make_steps([60, 61], [1], terminal=True),
    contract.make_steps([50], [], terminal=True),
]


def _drawn(slices):
  return list(zip(slices.trajectory.numpy(), slices.start.numpy()))


class SlicesTest(parameterized.TestCase, tf.test.TestCase):

  # Trajectories of 5, 3, 1 and 0 rows; the weights of their starts.
  @parameterized.named_parameters(
      ('trajectory', 3, {}, [(0, range(3), 2), (1, range(1), 6)]),
      (
          'window_span',
          3,
          {'span': (0, 2), 'weighting': 'window'},
          [(0, range(5), 1), (1, range(3), 1)],
      ),
      (
          'not_strict',
          4,
          {'strict': False},
          [(0, range(2), 1), (1, [0], 2), (2, [0], 2)],
      ),
      (
          'not_strict_window',
          4,
          {'strict': False, 'weighting': 'window', 'span': (1, 0)},
          [(0, range(-1, 2), 1), (1, [0], 1), (2, [0], 1)],
      ),
  )
  @pytest.mark.few(2)
  def test_frequencies(self, length, arguments, weights):
    flat = windows.FlatRows.of(golden.stacked(_EPISODES))
    drawn = _drawn(
        windows.sample_slices(flat, (3000, length), (1, 2), **arguments)
    )
    expected = {
        (trajectory, start): weight
        for trajectory, starts, weight in weights
        for start in starts
    }
    self.assertEqual(set(drawn), set(expected))
    total = sum(expected.values())
    self.assertLess(
        chi_square.compute_statistic(
            [drawn.count(one) for one in expected],
            [weight / total for weight in expected.values()],
        ),
        chi_square.LIMITS[7],
    )

  def test_without_replacement_by_seeds_in_map(self):
    flat = windows.FlatRows.of(golden.stacked(_EPISODES))

    def draw(index):
      trajectories = windows.sample_slices(
          flat, (2, 3), (index, 7), replacement=False
      )
      starts = windows.sample_slices(
          flat, (4, 3), (index, 7), weighting='window', replacement=False
      )
      return trajectories, starts

    mapped = tf.data.Dataset.range(20).map(draw)
    for spec in tf.nest.flatten(mapped.element_spec):
      self.assertTrue(spec.shape.is_fully_defined())
    actual = list(mapped)
    for trajectories, starts in actual:
      self.assertCountEqual(trajectories.trajectory.numpy(), [0, 1])
      self.assertCountEqual(_drawn(starts), [(0, 0), (0, 1), (0, 2), (1, 0)])
    firsts = [_drawn(trajectories)[0] for trajectories, _ in actual]
    self.assertEqual(set(firsts), {(0, 0), (0, 1), (0, 2), (1, 0)})
    self.assertBetween(firsts.count((1, 0)), 3, 17)
    tf.nest.map_structure(self.assertAllEqual, actual[9], draw(9))
    other = windows.sample_slices(flat, (2, 3), (9, 8), replacement=False)
    self.assertNotEqual(_drawn(other), _drawn(actual[9][0]))


class DrawStepsTest(tf.test.TestCase):

  def test_some_steps_or_all(self):
    steps = {'a': tf.range(100), 'b': {'c': tf.range(100) * 2}}
    first, other, again = (
        windows.draw_steps(steps, 30, (1, seed)) for seed in (0, 1, 0)
    )
    self.assertLen(set(first['a'].numpy()), 30)
    self.assertAllEqual(first['b']['c'], 2 * first['a'])
    self.assertNotAllEqual(first['a'], other['a'])
    self.assertAllEqual(first['a'], again['a'])
    whole = windows.draw_steps(steps, 100, 5)
    self.assertAllEqual(whole['a'], steps['a'])


class FlatRowsTest(parameterized.TestCase, tf.test.TestCase):

  def test_trajectory_ends_from_lengths_ids_and_flags(self):
    cases = (
        ({'lengths': [3, 0, 2]}, [3, 0, 2]),
        ({'episode_ids': ['x', 'y', 'y', 'x', 'x']}, [1, 2, 2]),
        ({'episode_ids': [[1, 1], [1, 2], [1, 2], [2, 2], [2, 2]]}, [1, 2, 2]),
        ({'is_last': np.array([1, 0, 0, 0, 0], bool)}, [1, 4]),
        ({'is_last': np.zeros(5, bool)}, [5]),
    )
    # Lists of numbers and of strings are leaves.
    rows = {
        'a': [1, 2, 3, 4, 5],
        'b': (['v', 'w', 'x', 'y', 'z'], (np.arange(5, dtype=np.uint8),)),
        'c': range(5),
        'd': [[1.5, 2.0]] * 5,
    }
    of = lambda _: tuple(
        windows.FlatRows.of(rows, states=tf.range(5), **ends)
        for ends, _ in cases
    )
    in_map = tf.data.Dataset.range(1).map(of).get_single_element()
    for index, flat in enumerate(of(0) + in_map):
      expected = cases[index % len(cases)][1]
      self.assertEqual(flat.lengths.dtype, tf.int64)
      self.assertAllEqual(flat.lengths, expected)
      self.assertAllEqual(flat.rows['b'][0], [b'v', b'w', b'x', b'y', b'z'])
      self.assertEqual(flat.rows['b'][1][0].dtype, tf.uint8)
      self.assertEqual(flat.rows['d'].shape, [5, 2])
      self.assertAllEqual(flat.states, flat.rows['c'])
      chopped = windows.chop_into_sequences(flat, 9, dynamic_max=True)
      lengths = [length for length in expected if length]
      self.assertAllEqual(chopped.seq_lens, lengths)
      self.assertEqual(chopped.rows['a'].shape[1], max(lengths))

  def test_no_rows(self):
    for ends in {'episode_ids': []}, {'is_last': tf.zeros([0], tf.bool)}:
      flat = windows.FlatRows.of(tf.zeros([0, 2]), **ends)
      self.assertEqual(flat.lengths.shape, [0])
    nothing = golden.stacked([], golden.stacked_spec(contract.A))
    self.assertEqual(windows.FlatRows.of(nothing).lengths.shape, [0])
    self.assertEmpty(list(windows.convert_rlds_to_fragments(nothing, 3)))

  def test_data_set_that_is_reshuffled_at_each_pass(self):
    # Episode e has e transitions, with the observations 10 e, 10 e + 1, ...
    episodes = [
        contract.make_steps(
            range(10 * count, 11 * count + 1), range(count), terminal=True
        )
        for count in range(9)
    ]
    data = golden.nested(episodes).shuffle(9)
    flat = tf.function(windows.FlatRows.of)(data)
    lengths = flat.lengths.numpy()
    self.assertCountEqual(lengths, range(9))
    self.assertAllEqual(
        flat.rows['observation'],
        [10 * count + t for count in lengths for t in range(count)],
    )

  def test_rows_of_one_episode_and_lists_of_arrays(self):
    rows = windows.transition_rows(contract.A)
    self.assertAllEqual(windows.FlatRows.of(rows).lengths, [5])
    flat = windows.FlatRows.of(rows, lengths=[2, 3])
    self.assertAllEqual(flat.lengths, [2, 3])
    self.assertIs(windows.FlatRows.of(flat), flat)
    flat = windows.FlatRows.of([[1, 2, 3], np.zeros([3, 2])], lengths=[3])
    self.assertEqual([leaf.shape for leaf in flat.rows], [[3], [3, 2]])


class ConcatenatedFramesTest(tf.test.TestCase):

  def test_frames_along_each_axis_equal_loop(self):
    images = np.arange(5 * 2 * 3 * 2, dtype=np.uint8).reshape(5, 2, 3, 2)
    steps = {
        **contract.A,
        'observation': {'image': images[:4], 'v': (images[:4],)},
    }
    steps = {
        key: value if key == 'observation' else np.asarray(value)[:4]
        for key, value in steps.items()
    }
    steps['is_last'] = np.arange(4) == 3
    for axis in -3, -2, -1, 0, 1, 2:
      for before in 'repeat', 'zeros':
        expected = []
        for t in range(4):
          frames = [
              images[max(s, 0)] * (s >= 0 or before == 'repeat')
              for s in range(t - 2, t + 1)
          ]
          expected.append(np.concatenate(frames, axis))
        in_map = tf.data.Dataset.from_tensors(steps).map(
            lambda steps: windows.stack_and_chunk(
                steps, 3, before=before, frame_axis=axis
            )
        )
        shape = list(images.shape[1:])
        shape[axis] *= 3
        spec = in_map.element_spec['observation']['image']
        self.assertEqual(spec.shape[1:], shape)
        for result in in_map:
          observation = result['observation']
          self.assertAllEqual(observation['image'], expected)
          self.assertAllEqual(observation['v'][0], expected)
          self.assertAllEqual(
              result['observation_mask'],
              [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]],
          )

  def test_next_observations_of_rows(self):
    rows = windows.transition_rows(
        {**contract.A, 'observation': np.arange(6.0)[:, None]}
    )
    result = windows.stack_and_chunk(rows, 2, frame_axis=0).columns
    self.assertAllEqual(
        result['observation'], [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]]
    )
    self.assertAllEqual(
        result['next_observation'], [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    )

  def test_invalid_frame_arguments_raise(self):
    for arguments, message in (
        ({'num_actions': 2, 'frame_axis': 0}, 'needs num_frames'),
        ({'num_frames': 2, 'frame_axis': -1}, 'observation has 0 axes'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        windows.stack_and_chunk(contract.A, **arguments)


if __name__ == '__main__':
  tf.test.main()
