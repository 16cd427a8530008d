"""Tests of unrolling episodes, and of burn-in."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import transitions
from rlds2reverb.windows import unrolling
from tests import contract

_ENDS = ('drop', 'repeat_last', 'overlap', 'zero_pad')

_SIX = contract.make_steps(range(7), [1, 2, 3, 4, 5, 6], terminal=False)


def _expected(steps, length, end):
  """Returns the chunks as lists of rows, their masks and first rows."""
  rows = contract.transitions(steps)
  chunks, masks, firsts = [], [], []
  for first in range(0, len(rows), length):
    chunk = rows[first : first + length]
    missing = length - len(chunk)
    mask = [True] * len(chunk) + [False] * missing
    if missing:
      if end == 'drop':
        break
      if end == 'overlap' and len(rows) >= length:
        first = len(rows) - length
        chunk, mask = rows[first:], [True] * length
      elif end == 'repeat_last':
        chunk = chunk + [chunk[-1]] * missing
      else:
        zero = {**contract.zero_like(rows[0]), 'is_last': np.bool_(True)}
        chunk = chunk + [zero] * missing
    chunks.append(chunk)
    masks.append(mask)
    firsts.append(first)
  return chunks, masks, firsts


def _unroll(steps, length, end='repeat_last', *, stride_length=None, **kwargs):
  windows = windows_lib.Windows(length, stride_length or length, end)
  return unrolling.unroll(steps, windows, **kwargs)


class UnrollTest(parameterized.TestCase, tf.test.TestCase):

  def _rewards(self, steps, length, end):
    chunks = _unroll(steps, length, end)
    return (
        chunks.columns['reward'].numpy().tolist(),
        chunks.mask.numpy().tolist(),
    )

  def test_no_end(self):
    for end in _ENDS:
      rewards, mask = self._rewards(_SIX, 3, end)
      self.assertEqual(rewards, [[1, 2, 3], [4, 5, 6]])
      self.assertEqual(mask, [[True] * 3] * 2)

  @parameterized.parameters(
      ('repeat_last', [[1, 2, 3, 4], [5, 6, 6, 6]], [1, 1, 0, 0]),
      ('overlap', [[1, 2, 3, 4], [3, 4, 5, 6]], [1, 1, 1, 1]),
      ('drop', [[1, 2, 3, 4]], None),
      ('zero_pad', [[1, 2, 3, 4], [5, 6, 0, 0]], [1, 1, 0, 0]),
      ('pad', [[1, 2, 3, 4]], None),
      ('tile', [[1, 2, 3, 4], [5, 6, 0, 0]], [1, 1, 0, 0]),
  )
  def test_ends(self, end, expected, last_mask):
    rewards, mask = self._rewards(_SIX, 4, end)
    self.assertEqual(rewards, expected)
    self.assertEqual(mask[0], [True] * 4)
    if last_mask:
      self.assertEqual(mask[1], list(map(bool, last_mask)))

  def test_zero_rows_are_last_and_have_no_discount(self):
    chunks = _unroll(_SIX, 4, 'zero_pad')
    self.assertAllEqual(chunks.columns['is_last'][1], [False, True, True, True])
    self.assertAllEqual(chunks.columns['discount'][1], [1, 1, 0, 0])

  @parameterized.parameters(
      ('repeat_last', [1, 1, 1, 1]),
      ('overlap', [1, 0, 0, 0]),
      ('zero_pad', [1, 0, 0, 0]),
      ('pad', [1, 0, 0, 0]),
      ('tile', [1, 0, 0, 0]),
  )
  def test_one_transition(self, end, expected):
    steps = contract.make_steps([0, 1], [1], terminal=True)
    rewards, mask = self._rewards(steps, 4, end)
    self.assertEqual(rewards, [expected])
    self.assertEqual(mask, [[True, False, False, False]])
    self.assertEqual(self._rewards(steps, 4, 'drop')[0], [])

  @parameterized.parameters(*_ENDS)
  def test_edges_against_a_loop(self, end):
    length = 4

    def check(steps, result):
      chunks, masks, firsts = _expected(steps, length, end)
      columns, mask, states = result
      contract.assert_rows(self, columns, [contract.stack(c) for c in chunks])
      self.assertAllEqual(mask, np.reshape(masks, [-1, length]))
      contract.assert_rows(
          self,
          states,
          [
              chunk[0]['state']
              if first
              else contract.zero_like(chunk[0]['state'])
              for first, chunk in zip(firsts, chunks)
          ],
      )

    spec = contract.check_everywhere(
        self,
        lambda steps: _unroll(steps, length, end, state='state'),
        contract.edge_episodes(length),
        check,
    )
    self.assertEqual(
        spec.columns['observation']['camera'],
        tf.TensorSpec([None, length, 2, 1], tf.uint8),
    )
    self.assertEqual(
        spec.initial_state['c'][0], tf.TensorSpec([None, 1], tf.float32)
    )

  def test_fields_of_any_name_are_columns(self):
    own = {**_SIX, 'mask': _SIX['reward'], 'initial_state': _SIX['reward']}
    chunks = _unroll(own, 4, state='observation')
    for name in ('mask', 'initial_state'):
      self.assertAllEqual(chunks.columns[name], [[1, 2, 3, 4], [5, 6, 6, 6]])
    self.assertAllEqual(chunks.mask, [[1, 1, 1, 1], [1, 1, 0, 0]])
    self.assertAllEqual(chunks.initial_state, [0, 4])

  @parameterized.parameters(
      (4, 2, 'drop', [[1, 2, 3, 4], [3, 4, 5, 6]]),
      (4, 2, 'repeat_last', [[1, 2, 3, 4], [3, 4, 5, 6]]),
      (3, 2, 'drop', [[1, 2, 3], [3, 4, 5]]),
      (3, 2, 'repeat_last', [[1, 2, 3], [3, 4, 5], [5, 6, 6]]),
      (3, 2, 'zero_pad', [[1, 2, 3], [3, 4, 5], [5, 6, 0]]),
      (3, 2, 'overlap', [[1, 2, 3], [3, 4, 5], [4, 5, 6]]),
      (2, 4, 'repeat_last', [[1, 2], [5, 6]]),
      (1, 5, 'zero_pad', [[1], [6]]),
      (2, 5, 'zero_pad', [[1, 2], [6, 0]]),
      (2, 5, 'overlap', [[1, 2], [5, 6]]),
      (4, 2, 'tile', [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 0, 0]]),
      (7, 2, 'pad', [[1, 2, 3, 4, 5, 6, 0]]),
  )
  def test_strides(self, length, stride, end, expected):
    chunks = _unroll(_SIX, length, end, stride_length=stride)
    self.assertAllEqual(chunks.columns['reward'], expected)

  @parameterized.product(end=_ENDS, stride=[1, 3])
  def test_strides_against_a_loop(self, end, stride):
    for count in range(9):
      steps = contract.make_steps(
          range(count + 1), range(1, count + 1), terminal=True
      )
      starts = list(range(0, count - 3, stride))
      following = len(starts) * stride
      covered = starts[-1] + 4 if starts else 0
      if end != 'drop' and covered < count and following < count:
        starts.append(max(count - 4, 0) if end == 'overlap' else following)
      expected = [
          [
              t + 1 if t < count else count * (end == 'repeat_last')
              for t in range(start, start + 4)
          ]
          for start in starts
      ]
      chunks = _unroll(steps, 4, end, stride_length=stride)
      self.assertAllEqual(
          chunks.columns['reward'], np.reshape(expected, [-1, 4])
      )
      self.assertAllEqual(
          chunks.mask,
          [[t < count for t in range(s, s + 4)] for s in starts]
          or np.zeros([0, 4]),
      )

  def test_time_major(self):
    chunks = _unroll(_SIX, 4, state='observation')
    swapped = _unroll(_SIX, 4, state='observation', time_major=True)
    self.assertAllEqual(
        swapped.columns['reward'], [[1, 5], [2, 6], [3, 6], [4, 6]]
    )
    self.assertAllEqual(swapped.initial_state, [0, 4])
    tf.nest.map_structure(self.assertAllEqual, swapped.swap_time(), chunks)

  def test_the_state_of_rows_that_begin_in_mid_episode(self):
    rows = transitions.transition_rows(_SIX)
    later = tf.nest.map_structure(lambda leaf: leaf[2:], rows)
    chunks = _unroll(later, 2, state='observation')
    self.assertAllEqual(chunks.initial_state, [2, 4])

  def test_observation_without_fields(self):
    chunks = _unroll({**_SIX, 'observation': {}}, 4)
    self.assertAllEqual(chunks.columns['reward'], [[1, 2, 3, 4], [5, 6, 6, 6]])
    self.assertEqual(chunks.columns['next_observation'], {})

  def test_a_length_that_is_not_known_when_the_pipeline_is_built(self):
    with self.assertRaisesRegex(
        ValueError, 'length of windows must be .*when the pipeline is built'
    ):
      tf.data.Dataset.range(1, 3).map(lambda length: _unroll(_SIX, length))
    with self.assertRaisesRegex(ValueError, 'length of windows must be'):
      _unroll(_SIX, tf.constant(3))
    chunks = _unroll(_SIX, np.int64(3))
    self.assertAllEqual(chunks.columns['reward'], [[1, 2, 3], [4, 5, 6]])

  def test_bad_arguments(self):
    windows = windows_lib.Windows(2)
    for message, arguments in (
        ('must be Windows', (2,)),
        ("cannot be 'cross'", (windows_lib.Windows(2, end='cross'),)),
    ):
      with self.assertRaisesRegex(ValueError, message):
        unrolling.unroll(_SIX, *arguments)
    with self.assertRaisesRegex(ValueError, 'Did you mean observation'):
      unrolling.unroll(_SIX, windows, state='observaton')


class BurnInTest(parameterized.TestCase, tf.test.TestCase):

  def _sequences(self, length, time_major=False):
    value = np.stack([np.arange(length), 100 + np.arange(length)])
    value = value.T if time_major else value
    columns = {
        'observation': {'a': tf.constant(value)},
        'action': (tf.constant(value),),
        'reward': tf.constant(value, tf.float32),
        'is_terminal': tf.constant(value == 0),
        'weight': tf.constant(value),
        'mine': {'deep': tf.constant(value)},
    }
    return unrolling.Chunks(
        columns, tf.constant(value != 2), {'h': tf.constant([7, 8])}
    )

  @parameterized.parameters(False, True)
  def test_n_step(self, time_major):
    parts = unrolling.split_burn_in(
        self._sequences(6, time_major), 2, 2, time_major=time_major
    )
    row = lambda part: (part[:, 0] if time_major else part[0]).numpy().tolist()
    self.assertEqual(row(parts.burn_in_observation['a']), [0, 1, 2, 3])
    self.assertEqual(row(parts.main_observation['a']), [2, 3])
    self.assertEqual(row(parts.target_observation['a']), [4, 5])
    self.assertEqual(row(parts.action[0]), [2, 3])
    self.assertEqual(row(parts.reward), [2, 3])
    self.assertEqual(row(parts.is_terminal), [False] * 4)
    self.assertEqual(row(parts.weight), [2, 3, 4, 5])
    self.assertEqual(row(parts.columns['mine']['deep']), [2, 3])
    self.assertEqual(list(parts.columns), ['mine'])
    self.assertEqual(row(parts.mask), [False, True])
    self.assertAllEqual(parts.initial_state['h'], [7, 8])

  def test_a_longer_main_part(self):
    parts = unrolling.split_burn_in(self._sequences(9), 2, 2)
    self.assertAllEqual(parts.main_observation['a'][0], [2, 3, 4, 5, 6])
    self.assertAllEqual(parts.target_observation['a'][0], [4, 5, 6, 7, 8])

  def test_without_n_step(self):
    parts = unrolling.split_burn_in(self._sequences(3), 2)
    self.assertAllEqual(parts.burn_in_observation['a'], [[0, 1], [100, 101]])
    self.assertAllEqual(parts.main_observation['a'], [[2], [102]])
    self.assertAllEqual(parts.action[0], [[2], [102]])
    self.assertEqual(parts.target_observation, ())

  def test_on_chunks_of_an_episode_in_a_data_set(self):
    def split(steps):
      return unrolling.split_burn_in(_unroll(steps, 5, 'drop'), 1, 2)

    def check(steps, parts):
      rows = contract.transitions(steps)
      for chunk in range(len(rows) // 5):
        main = rows[5 * chunk + 1 : 5 * chunk + 3]
        contract.assert_equal(
            self,
            tf.nest.map_structure(lambda leaf: leaf[chunk], parts.action),  # pylint: disable=cell-var-from-loop
            contract.stack([row['action'] for row in main]),
        )

    spec = contract.check_everywhere(
        self, split, contract.edge_episodes(5), check
    )
    self.assertEqual(
        spec.target_observation['camera'],
        tf.TensorSpec([None, 2, 2, 1], tf.uint8),
    )
    self.assertEqual(spec.weight, ())

  def test_bad_arguments(self):
    for message, arguments in (
        ('at least 6 rows', (2, 2)),
        ('at least 6 rows', (5,)),
        ('burn_in must be an integer of 0 or more', (-1,)),
        ('burn_in must be an integer of 0 or more', (1.5,)),
        ('n_step must be a positive integer', (1, 0)),
    ):
      with self.assertRaisesRegex(ValueError, message):
        unrolling.split_burn_in(self._sequences(5), *arguments)
    ones = lambda length: tf.ones([1, length], tf.bool)
    for message, columns in (
        ('no field', {'observation': {}, 'action': {}}),
        (
            'action/0.* 4',
            {'observation': tf.zeros([1, 5]), 'action': (tf.zeros([1, 4]),)},
        ),
        ('Did you mean observatio', {'observatio': tf.zeros([1, 5])}),
    ):
      with self.assertRaisesRegex(ValueError, message):
        unrolling.split_burn_in(unrolling.Chunks(columns, ones(5)), 1)

  def test_another_type(self):
    for sequences in (
        self._sequences(5).columns,
        transitions.transition_rows(_SIX),
        tf.zeros([2, 5]),
    ):
      with self.assertRaisesRegex(
          ValueError, f'takes the Chunks.*{type(sequences).__name__}'
      ):
        unrolling.split_burn_in(sequences, 1)

  def test_one_chunk(self):
    one = tf.nest.map_structure(lambda leaf: leaf[1], self._sequences(6))
    parts = unrolling.split_burn_in(one, 2, 2)
    self.assertAllEqual(parts.main_observation['a'], [102, 103])
    self.assertAllEqual(parts.target_observation['a'], [104, 105])
    self.assertAllEqual(parts.columns['mine']['deep'], [102, 103])
    self.assertEqual(parts.initial_state['h'], 8)


if __name__ == '__main__':
  tf.test.main()
