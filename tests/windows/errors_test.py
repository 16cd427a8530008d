"""Tests of the errors of functions on transitions."""

import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import windows
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import presence
from tests import contract
from tests import golden
from tests.agents import episodes as agent_episodes

_A, _B = contract.A, contract.B
_WORDS = np.array([b'1'] * 6, object)
_CUT = windows_lib.Windows(2)
_View = windows.ViewRequirement
_Flat = windows.FlatRows.of
_rows = windows.transition_rows


def _without(name):
  return {field: leaf for field, leaf in _A.items() if field != name}


def _fragments(*args, steps=None, **kwargs):
  data = golden.stacked([_A if steps is None else steps])
  return windows.convert_rlds_to_fragments(data, *args, **kwargs)


def _rows_of_agents():
  return golden.stacked([agent_episodes.COME_AND_GO]).map(
      lambda episode: _rows(episode['steps'])
  )


def _burn_in(*args, **columns):
  if not columns:
    columns = {'observation': tf.zeros([1, 5]), 'action': tf.zeros([1, 5])}
  chunks = windows.unrolling.Chunks(columns, tf.ones([1, 5], tf.bool))
  return windows.split_burn_in(chunks, *args)


def _view(**kwargs):
  view = _View(**{'data_col': 'reward', **kwargs})
  return windows.compute_views(_B, {'view': view})


_slices = functools.partial(windows.sample_slices, _rows(_B))
_horizon = lambda steps, n, **kwargs: windows.apply_horizon(
    golden.stacked([steps]), n, **kwargs
)
_stack, _unroll = windows.stack_and_chunk, windows.unroll
_compute, _apply = windows.compute_views, windows.apply_views
_to_fragments = windows.convert_rlds_to_fragments
_n_step, _to_go = windows.n_step_transitions, windows.reward_to_go
_advantages = windows.advantages
_own = lambda name: {**_B, name: _B['reward']}
_LATER = tf.errors.InvalidArgumentError
# Those that are only known while a graph runs.
_CHOP = tf.TensorSpec([None], tf.int64)
_IN_A_GRAPH = [
    (
        'gamma must lie in',
        lambda gamma: _to_go(_B, gamma).columns['reward_to_go'],
        [tf.TensorSpec([])],
        [0.0],
        [-0.5],
    ),
    (
        r'(?s)episode_ids.*3.*rows.*5',
        lambda rows, ids: _Flat(rows, episode_ids=ids).lengths,
        [_CHOP, _CHOP],
        [range(5), [1, 1, 2, 2, 2]],
        [range(5), [1, 1, 2]],
    ),
]


class ErrorsTest(parameterized.TestCase, tf.test.TestCase):

  def test_invalid_arguments_raise(self):
    no = functools.partial(self.assertRaisesRegex, ValueError)
    # Steps and rows.
    no('must be a dict of fields, but', _rows, tf.range(3))
    no(
        'words/a must be a dense tensor, but is RaggedTensor',
        _rows,
        {**_A, 'words': {'a': tf.ragged.range(tf.range(6))}},
    )
    no("'next_observation'", _rows, _own('next_observation'))
    for field, column in (
        ('is_first', _WORDS),
        ('discount', _A['is_last']),
        ('is_last', np.zeros([6, 2])),
    ):
      no(f'{field} must be one number', _rows, {**_A, field: column})
    # Returns.
    no('n_step must be a positive', _n_step, _A, 0)
    no('gamma must lie in', _n_step, _A, 1, 1.5)
    no('gamma must lie in', _to_go, _A, -1)
    no('gamma must lie in', _to_go, _A, np.nan)
    no('gamma must be one number', _to_go, _A, [0.5, 0.5])
    no('gamma must be one number', _to_go, _A, None)
    no('lambda_ must lie in', _advantages, _A, [0.0] * 6, 1, 2)
    no('no field discount', _to_go, _without('discount'))
    no('reward/a must be', _n_step, {**_A, 'reward': {'a': _WORDS}}, 2)
    no('have one dimension', _advantages, _B, [[0.0] * 4])
    no(
        'one number a step',
        _advantages,
        {**_B, 'reward': np.ones([4, 2])},
        [0.0] * 4,
    )
    # Chunks.
    no('must be Windows', _unroll, _A, 2)
    no("cannot be 'cross'", _unroll, _A, windows_lib.Windows(2, end='cross'))
    no('Did you mean observation', _unroll, _A, _CUT, state='observaton')
    no('takes the Chunks.*dict', windows.split_burn_in, {}, 1)
    no('takes the Chunks.*Rows', windows.split_burn_in, _rows(_A), 1)
    no('at least 6 rows', _burn_in, 2, 2)
    no('burn_in must be an integer from 0', _burn_in, -1)
    no('n_step must be a positive', _burn_in, 1, 0)
    no(
        'action/0 has 4 rows, and the mask has 5',
        _burn_in,
        1,
        observation=tf.zeros([1, 5]),
        action=(tf.zeros([1, 4]),),
    )
    no('Did you mean observatio', _burn_in, 1, observatio=tf.zeros([1, 5]))
    # Many trajectories.
    no('given are: none', _Flat, tf.range(3))
    no('TransitionRows of one episode', _Flat, _A)
    no('are: lengths, is_last', _Flat, tf.range(1), lengths=[1], is_last=[True])
    no('is_last must be one bool', _Flat, [1], is_last=[1])
    no('is_last must be one bool', _Flat, [1], is_last=[[True]])
    no('one or two dimensions', _Flat, [1], episode_ids=1)
    no(
        'episode_ids has 5, rows has 5, states/h has 4',
        _Flat,
        tf.range(5),
        episode_ids=[1] * 5,
        states={'h': tf.zeros([4, 2])},
    )
    no('lengths must be integers', _Flat, [1, 2], lengths=[2.0])
    no('lengths must be integers', _Flat, [1, 2], lengths=[[2]])
    no(
        'rows/a has 2.*rows/b has 3',
        _Flat,
        {'a': [1, 2], 'b': [1, 2, 3]},
        lengths=[2],
    )
    no('needs a first dimension', _Flat, {'a': 1}, lengths=[1])
    no('must have a field', _Flat, {}, lengths=[0])
    no('max_length must be a', windows.chop_into_sequences, _rows(_A), 0)
    # Fragments.
    no('fragment_length must be a positive', _fragments, 0)
    no('mean truncate_episodes', _fragments, 2, 'truncate_episode')
    no('Did you mean action', _fragments, 2, agent_steps='actoin')
    no('count_steps_by must be', _fragments, 4, count_steps_by='agents')
    no('counted by is_present', _fragments, 4, count_steps_by='agent_steps')
    no(
        'does not count them',
        _fragments,
        4,
        count_steps_by='env_steps',
        agent_steps='action',
    )
    no(
        'TransitionRows do not contain',
        _to_fragments,
        _rows_of_agents(),
        4,
        count_steps_by='agent_steps',
    )
    no(
        'must return TransitionRows',
        _fragments,
        2,
        fragment_fn=lambda rows: rows.columns,
    )
    no("a dict with 'steps', but is", _to_fragments, _fragments(2), 2)
    for name in ('t', 'episode', 'next_observation'):
      no(f"'{name}' already", _fragments, 3, steps=_own(name))
    # Horizons.
    no('horizon must be a positive', _horizon, _A, 0)
    no('no field is_last', _horizon, _without('is_last'), 2)
    # Slices.
    no('num_slices must be a positive', _slices, (0, 2), 7)
    no('slice_length must be a positive', _slices, (1, 0), 7)
    no('mean window', _slices, (1, 2), 7, weighting='windows')
    no('mean ragged', _slices, (1, 2), 7, fill='raged')
    for span in ((0, 2), (-1, 0), (0.5, 0)):
      no('span must be two numbers', _slices, (1, 2), 7, span=span)
    no('seed must be an integer or two', _slices, (1, 2), (0.5, 1))
    no('num_steps must be', windows.draw_steps, _A, 0, 5)
    # Views.
    for shift in ('3', '-3:x', '1:2:3:4', [], [1.5], [True]):
      no('a range such as', _view, shift=shift)
    no('range is empty', _view, shift='2:0')
    no('Did you mean reward', _view, data_col='rewards')
    no('batch_repeat_value', _view, batch_repeat_value=0)
    no('is float64', _view, space=tf.TensorSpec([], tf.float64))
    no(r'float32 \(2,\)', _view, space=tf.TensorSpec([2], tf.float32))
    no('has the fields', _view, space={'a': tf.TensorSpec([])})
    no('Did you mean rllib', _compute, _B, {'reward': _View()}, fill='rlib')
    no(
        'Use compute_views',
        _apply,
        _B,
        {'x': _View('reward', batch_repeat_value=2)},
    )
    no("field 'reward'", _apply, _B, {'reward': _View()})
    # Frames and chunks of actions.
    no('num_frames must be a positive integer', _stack, _A, 0)
    no('num_actions must be a pos', _stack, _A, num_actions=1.5)
    no('Did you mean repeat', _stack, _A, 2, before='repeats')
    no('fill must be .* or a number', _stack, _A, 2, 2, None)
    no('fill must be .* or a number', _stack, _A, 2, before=[1, 2])
    no('no field observation', _stack, _without('observation'), 2)
    no('no field action', _stack, _without('action'), num_actions=2)
    no('no field goal_step', _stack, _B, 2, 2, goal_step='goal_step')
    no('mask_rule must be one of', _stack, _B, 2, 2, mask_rule='theirs')
    no("names must be one of.*'m'", _stack, _B, 2, names={'m': 'x'})
    for kwargs in (
        {},
        {'num_frames': 2, 'goal_step': 'reward'},
        {'num_actions': 2, 'mask_rule': 'octo'},
    ):
      no('both of them for goal_step', _stack, _B, **kwargs)
    no('before n_step_transitions', _stack, _n_step(_A, 2), 2)
    no('before n_step_transitions', _to_go, _n_step(_A, 2))
    # Agents.
    no('Did you mean left', presence.flags, {'is_present': {'left': 1}}, 'lft')
    no('must be a dict', presence.flags, {'is_present': [True]}, 'left')
    no(
        'no field observation/c',
        _compute,
        agent_episodes.COME_AND_GO,
        {'observation': _View(agent='c')},
    )

  def test_invalid_data_raises_in_the_graph(self):
    no = functools.partial(self.assertRaisesRegex, _LATER)
    no('one value a step', _advantages, _B, [1.0, 2.0, 3.0])
    no(
        'value: 7',
        _unroll,
        _rows(_A)._replace(columns={**_rows(_A).columns, 'value': tf.range(7)}),
        _CUT,
    )
    no('must not be negative', _Flat, [1, 2], lengths=[4, -2])
    no('must add up to the rows', _Flat, [1, 2], lengths=[1])
    no('not enough slices to draw', _slices, (2, 4), 7)
    no('not enough slices', _slices, (2, 4), 7, weighting='window')
    no('not enough slices', _slices, (2, 3), 7, replacement=False)
    for start, stop in ((2, 1), (-1, 2), (0, 4)):
      no(
          'must lie in its episode',
          _compute,
          _B,
          {'reward': _View()},
          start=start,
          stop=stop,
      )

  @parameterized.parameters(*_IN_A_GRAPH)
  def test_in_a_graph(self, message, function, signature, right, invalid):
    in_graph = tf.function(function, signature, autograph=False)
    in_graph(*map(tf.cast, right, [spec.dtype for spec in signature]))
    with self.assertRaisesRegex(_LATER, message):
      in_graph(*map(tf.cast, invalid, [spec.dtype for spec in signature]))

  @parameterized.parameters(
      lambda given: _n_step(given, 2, 0.5),
      lambda given: _to_go(given, 0.5),
      lambda given: _advantages(given, tf.range(6.0), 0.5),
      lambda given: windows.apply_views(given, {'x': _View('reward', -1)}),
      lambda given: windows.unroll(given, _CUT),
      lambda given: _stack(given, 2, 3, 'zeros'),
  )
  def test_steps_or_rows_and_no_other_kinds(self, function):
    rows = _rows(_A)
    given = tf.nest.map_structure(tf.identity, rows)
    from_rows, from_steps = function(rows), function(_A)
    tf.nest.map_structure(self.assertAllEqual, rows, given)
    if isinstance(from_steps, dict):  # Steps in, steps out.
      from_steps = _rows(from_steps)
    self.assertEqual(type(from_rows), type(from_steps))
    tf.nest.map_structure(self.assertAllEqual, from_rows, from_steps)
    for invalid, message in (
        (rows.columns, "'next_observation' already.*TransitionRows"),
        (rows._asdict(), "'next_observation' already.*TransitionRows"),
        (windows.unroll(rows, _CUT), 'It is a Chunks'),
        (windows.sample_slices(rows, (1, 2), 7), 'It is a Slices'),
        (tf.range(7), 'It is a .*Tensor'),
        ([_A], 'It is a list'),
        ({'steps': _A}, 'is an episode.*its steps are needed'),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        function(invalid)

  @parameterized.parameters(
      ('reward_to_go', lambda steps, **names: _to_go(steps, 0.5, **names)),
      ('advantage', lambda x, **names: _advantages(x, [0.0] * 4, **names)),
      ('steps', lambda steps, **names: _n_step(steps, 1, **names)),
      ('observation_mask', lambda x, **names: _stack(_rows(x), 2, **names)),
      (
          'x_mask',
          lambda steps, **names: _apply(steps, {'x': _View('reward')}, **names),
      ),
  )
  def test_existing_field_is_not_replaced(self, name, function):
    with self.assertRaisesRegex(ValueError, f"field '{name}' already.*Rename"):
      function(_own(name))
    named = function(_own(name), names={name: 'other'}).columns
    self.assertAllEqual(named[name], [10, 20, 30])
    self.assertAllEqual(named['other'], function(_B).columns[name])

  @parameterized.parameters(
      ('uint8', -1),
      ('uint8', 300),
      ('uint8', 0.5),
      ('int64', np.inf),
      ('bool', 2),
      ('float32', 1e39),
  )
  def test_a_number_that_a_field_cannot_hold(self, dtype, fill):
    leaf, holds_all = np.zeros([4, 2], dtype), np.zeros([4])
    message = f'/c is {dtype}, which cannot hold .*fill'
    steps = {**_B, 'observation': {'a': holds_all, 'c': leaf}}
    with self.assertRaisesRegex(ValueError, f'observation{message}'):
      _stack(steps, 2, before=fill)
    steps = {**_B, 'action': (holds_all, {'c': leaf})}
    with self.assertRaisesRegex(ValueError, f'action/1{message}'):
      tf.data.Dataset.from_tensors(steps).map(
          lambda steps: _stack(steps, num_actions=2, fill=fill)
      )

  @parameterized.parameters(
      ('uint8', 255),
      ('int64', 2**40 + 1),
      ('bool', True),
      ('float16', -np.inf),
      ('complex64', 0.5),
  )
  def test_a_number_that_a_field_can_hold(self, dtype, fill):
    steps = {**_B, 'observation': np.zeros([4], dtype)}
    np.testing.assert_array_equal(
        _stack(steps, 2, before=fill)['observation'][0],
        np.array([fill, 0], dtype),
        strict=True,
    )


if __name__ == '__main__':
  tf.test.main()
