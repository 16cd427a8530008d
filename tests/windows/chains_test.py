"""Tests of functions on rows that build on each other.

The worked arrays are those of an episode of 6 transitions that terminates.
"""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import windows
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import transitions
from rlds2reverb.windows import unrolling
from tests import contract
from tests import golden

_STEPS = {
    **contract.make_steps(range(7), [1, 2, 3, 4, 5, 6], terminal=True),
    'state': np.float32([[100 + t] for t in range(7)]),
}
_FRAMES = {'frames': windows.ViewRequirement('observation', '-1:0')}


def _n_step(episode):
  return windows.n_step_transitions(episode, 2, 0.5)


def _view(episode):
  return windows.apply_views(episode, _FRAMES)


def _unroll(episode, stride_length=3):
  return windows.unroll(
      episode,
      windows_lib.Windows(3, stride=stride_length, end='repeat_last'),
      state='state',
  )


class R2d2Test(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*golden.FORMS)
  def test_worked_arrays_in_a_data_set(self, form):
    data = golden.FORMS[form]([_STEPS])
    rows = data.map(lambda e: windows.transition_rows(e['steps']))
    self.assertIsInstance(rows.element_spec, transitions.TransitionRows)
    n_step = rows.map(_n_step)
    self.assertIsInstance(n_step.element_spec, transitions.NStepRows)
    views = n_step.map(_view)
    self.assertIsInstance(views.element_spec, transitions.NStepRows)
    batches = views.map(_unroll).unbatch().batch(2, drop_remainder=True)
    chunks = batches.get_single_element()
    self.assertIsInstance(chunks, unrolling.Chunks)
    for name, expected in {
        'reward': [[2, 3.5, 5], [6.5, 8, 6]],
        'next_observation': [[2, 3, 4], [5, 6, 6]],
        'discount': [[0.25, 0.25, 0.25], [0.25, 0, 0]],
        'is_last': [[0, 0, 0], [0, 1, 1]],
        'is_terminal': [[0, 0, 0], [0, 1, 1]],
        'steps': [[2, 2, 2], [2, 2, 1]],
        'frames': [[[0, 0], [0, 1], [1, 2]], [[2, 3], [3, 4], [4, 5]]],
        'frames_mask': [[[0, 1], [1, 1], [1, 1]], [[1, 1], [1, 1], [1, 1]]],
    }.items():
      self.assertAllEqual(chunks.columns[name], expected, name)
    self.assertAllEqual(chunks.mask, np.ones([2, 3]))
    self.assertAllEqual(chunks.initial_state, [[0], [103]])

    split = batches.map(lambda chunks: windows.split_burn_in(chunks, 1))
    parts = split.get_single_element()
    self.assertAllEqual(parts.burn_in_observation, [[0], [3]])
    self.assertAllEqual(parts.main_observation, [[1, 2], [4, 5]])
    self.assertAllEqual(parts.reward, [[3.5, 5], [8, 6]])
    self.assertAllEqual(parts.columns['discount'], [[0.25, 0.25], [0, 0]])
    self.assertAllEqual(parts.columns['next_observation'], [[3, 4], [6, 6]])
    self.assertAllEqual(
        parts.columns['frames'], [[[0, 1], [1, 2]], [[3, 4], [4, 5]]]
    )
    self.assertAllEqual(parts.mask, [[True, True], [True, True]])
    self.assertAllEqual(parts.initial_state, [[0], [103]])

  def test_overlapping_chunks_with_targets(self):
    chunks = windows.unroll(
        _n_step(_STEPS),
        windows_lib.Windows(4, stride=2, end='repeat_last'),
        state='state',
    )
    parts = windows.split_burn_in(chunks, burn_in=2, n_step=1)
    self.assertAllEqual(parts.burn_in_observation, [[0, 1, 2], [2, 3, 4]])
    self.assertAllEqual(parts.main_observation, [[2], [4]])
    self.assertAllEqual(parts.target_observation, [[3], [5]])
    self.assertAllEqual(parts.reward, [[5], [8]])
    self.assertAllEqual(parts.initial_state, [[0], [102]])

  def test_no_reward_of_a_padded_row_goes_unmarked(self):
    chunks = windows.unroll(
        _STEPS, windows_lib.Windows(4, stride=4, end='zero_pad'), state='state'
    )
    parts = windows.split_burn_in(chunks, burn_in=1)
    self.assertAllEqual(parts.reward, [[2, 3, 4], [6, 0, 0]])
    self.assertAllEqual(parts.mask, [[1, 1, 1], [1, 0, 0]])

  def test_time_major(self):
    batch = windows.split_burn_in(_unroll(_n_step(_STEPS)), 1)
    swapped = windows.split_burn_in(
        _unroll(_n_step(_STEPS)).swap_time(), 1, time_major=True
    )
    self.assertAllEqual(swapped.reward, tf.transpose(batch.reward))
    self.assertAllEqual(swapped.mask, tf.transpose(batch.mask))
    self.assertAllEqual(swapped.initial_state, batch.initial_state)


_ADDED = {
    'n_step': _n_step,
    'reward_to_go': lambda e: windows.reward_to_go(e, 0.5),
    'advantages': lambda e: windows.advantages(e, tf.range(7.0), 0.5),
    'views': _view,
    'unroll': _unroll,
    'stack': lambda e: windows.stack_and_chunk(e, 2),
    'chunk_actions': lambda e: windows.stack_and_chunk(
        e, num_actions=2, fill='zeros'
    ),
    'compute_views': lambda e: windows.compute_views(e, _FRAMES, stop=2),
}


class FromStepsOrRowsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(_ADDED.items())
  def test_gives_the_same(self, function):
    rows = windows.transition_rows(_STEPS)
    from_rows, from_steps = function(rows), function(_STEPS)
    if isinstance(from_steps, dict):
      # Steps in, steps out: the conversion to rows follows.
      from_steps = windows.transition_rows(from_steps)
    self.assertEqual(type(from_rows), type(from_steps))
    tf.nest.map_structure(self.assertAllEqual, from_rows, from_steps)
    # What was given is as it was.
    tf.nest.map_structure(
        self.assertAllEqual, rows, windows.transition_rows(_STEPS)
    )

  def test_all_columns_in_one_chain(self):
    rows = windows.transition_rows(_STEPS)
    for function in (
        _ADDED['reward_to_go'],
        _ADDED['advantages'],
        _ADDED['stack'],
        _ADDED['chunk_actions'],
        _n_step,
    ):
      rows = function(rows)
    chunks = _unroll(rows).columns
    self.assertAllEqual(
        chunks['next_observation'],
        [[[1, 2], [2, 3], [3, 4]], [[4, 5], [5, 6], [5, 6]]],
    )
    self.assertAllEqual(
        chunks['action'], [[[1, 2], [2, 3], [3, 4]], [[4, 5], [5, 6], [6, 0]]]
    )
    self.assertAllEqual(chunks['reward'], [[2, 3.5, 5], [6.5, 8, 6]])
    self.assertAllClose(
        chunks['td_lambda_return'] - chunks['advantage'],
        [[0, 1, 2], [3, 4, 5]],
    )

  def test_rows_of_many_episodes(self):
    data = golden.stacked([contract.A, contract.B]).map(
        lambda e: windows.n_step_transitions(e['steps'], 3, 0.5)
    )
    joined = windows.FlatRows.of(data)
    rows = joined.rows
    self.assertAllEqual(rows['reward'], [2.75, 4.5, 6.25, 6.5, 5, 27.5, 35, 30])
    drawn = windows.sample_slices(joined, (2, 3), 7)
    for ends in (
        {'is_last': [False] * 4 + [True] + [False] * 3},
        {'episode_ids': [0] * 5 + [1] * 3},
    ):
      tf.nest.map_structure(
          self.assertAllEqual,
          windows.sample_slices(windows.FlatRows.of(rows, **ends), (2, 3), 7),
          drawn,
      )
    padded = windows.chop_into_sequences(joined, time_major=True)
    self.assertAllEqual(padded.rows['reward'][:, 1], [27.5, 35, 30, 0, 0])
    self.assertAllEqual(padded.mask[:, 1], [True, True, True, False, False])
    one = windows.chop_into_sequences(windows.transition_rows(contract.A))
    self.assertAllEqual(one.rows['reward'], [[1, 2, 3, 4, 5]])


class WrongKindsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(_ADDED.items())
  def test_are_refused_by_their_type(self, function):
    rows = _view(windows.transition_rows(_STEPS))
    for wrong, message in (
        (rows.columns, "'next_observation' already.*TransitionRows"),
        (rows._asdict(), "'next_observation' already.*TransitionRows"),
        (_unroll(rows), 'It is a Chunks'),
        (_unroll(rows).columns, "'next_observation' already"),
        (windows.compute_views(rows, _FRAMES), 'It is a Views'),
        (windows.chop_into_sequences(rows, 2), 'It is a ChoppedSequences'),
        (windows.sample_slices(rows, (1, 2), 7), 'It is a Slices'),
        (tf.range(7), 'It is a .*Tensor'),
        ([_STEPS], 'It is a list'),
        ({'steps': _STEPS}, 'whole episode.*its steps are needed'),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        function(wrong)

  def test_columns_of_different_lengths(self):
    rows = windows.transition_rows(_STEPS)
    rows = rows._replace(columns={**rows.columns, 'value': tf.range(7)})
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'value: 7'):
      windows.unroll(rows, windows_lib.Windows(2, stride=2, end='repeat_last'))

  def test_views_that_are_no_columns(self):
    view = windows.ViewRequirement('reward', -1, batch_repeat_value=2)
    with self.assertRaisesRegex(ValueError, 'Use compute_views'):
      windows.apply_views(_STEPS, {'last': view})
    own = windows.ViewRequirement('reward', -1)
    with self.assertRaisesRegex(ValueError, "field 'reward' already"):
      windows.apply_views(_STEPS, {'reward': own})
    named = windows.apply_views(
        _STEPS, {'last': own}, names={'last_mask': 'is_real'}
    )
    self.assertAllEqual(named.columns['is_real'], [0, 1, 1, 1, 1, 1])

  def test_frames_are_stacked_before_n_step_transitions(self):
    with self.assertRaisesRegex(ValueError, 'before n_step_transitions'):
      windows.stack_and_chunk(_n_step(_STEPS), 2)


if __name__ == '__main__':
  tf.test.main()
