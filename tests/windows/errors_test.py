"""What functions on transitions refuse, and what they say."""

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
_stack = windows.stack_and_chunk
_n_step, _to_go = windows.n_step_transitions, windows.reward_to_go
_advantages = windows.advantages
_own = lambda name: {**_B, name: _B['reward']}
# The first words of the error, in a regular expression, and the call.
_VALUE_ERRORS = [
    # Steps and rows.
    ('must be a dict of fields, but', lambda: _rows(tf.range(3))),
    (
        'words/a must be a dense tensor, but is RaggedTensor',
        lambda: _rows({**_A, 'words': {'a': tf.ragged.range(tf.range(6))}}),
    ),
    (
        "'next_observation' already.*RenameFields",
        lambda: _rows(_own('next_observation')),
    ),
    *(
        (
            f'{field} must be one number',
            lambda f=field, c=column: _rows({**_A, f: c}),
        )
        for field, column in (
            ('is_first', _WORDS),
            ('discount', _WORDS),
            ('discount', _A['is_last']),
            ('is_last', np.zeros([6, 2])),
        )
    ),
    # Returns.
    ('n_step must be a positive', lambda: _n_step(_A, 0)),
    ('gamma must lie in', lambda: _n_step(_A, 1, 1.5)),
    ('gamma must lie in', lambda: _to_go(_A, -1)),
    ('gamma must lie in', lambda: _to_go(_A, np.nan)),
    ('gamma must lie in', lambda: _to_go(_A, tf.constant(1.5))),
    ('gamma must be one number', lambda: _to_go(_A, [0.5, 0.5])),
    ('gamma must be one number', lambda: _to_go(_A, None)),
    ('gamma must be one number', lambda: _to_go(_A, 'half')),
    ('lambda_ must lie in', lambda: _advantages(_A, [0.0] * 6, 1, 2)),
    ('no field discount', lambda: _to_go(_without('discount'))),
    ('reward/a must be', lambda: _n_step({**_A, 'reward': {'a': _WORDS}}, 2)),
    ('have one dimension', lambda: _advantages(_B, [[0.0] * 4])),
    (
        'one number a step',
        lambda: _advantages({**_B, 'reward': np.ones([4, 2])}, [0.0] * 4),
    ),
    # Chunks.
    ('must be Windows', lambda: windows.unroll(_A, 2)),
    (
        "cannot be 'cross'",
        lambda: windows.unroll(_A, windows_lib.Windows(2, end='cross')),
    ),
    (
        'Did you mean observation',
        lambda: windows.unroll(_A, _CUT, state='observaton'),
    ),
    ('takes the Chunks.*dict', lambda: windows.split_burn_in({}, 1)),
    ('takes the Chunks.*Rows', lambda: windows.split_burn_in(_rows(_A), 1)),
    ('at least 6 rows', lambda: _burn_in(2, 2)),
    ('at least 6 rows', lambda: _burn_in(5)),
    ('burn_in must be an integer of 0', lambda: _burn_in(-1)),
    ('burn_in must be an integer of 0', lambda: _burn_in(1.5)),
    ('n_step must be a positive', lambda: _burn_in(1, 0)),
    (
        'action/0 has 4 rows, and the mask has 5',
        lambda: _burn_in(
            1, observation=tf.zeros([1, 5]), action=(tf.zeros([1, 4]),)
        ),
    ),
    (
        'Did you mean observatio',
        lambda: _burn_in(1, observatio=tf.zeros([1, 5])),
    ),
    # Many trajectories.
    ('given are: none', lambda: _Flat(tf.range(3))),
    ('TransitionRows of one episode', lambda: _Flat(_A)),
    (
        'are: lengths, is_last',
        lambda: _Flat(tf.range(1), lengths=[1], is_last=[True]),
    ),
    ('is_last must be one bool', lambda: _Flat([1], is_last=[1])),
    ('is_last must be one bool', lambda: _Flat([1], is_last=[[True]])),
    ('one or two dimensions', lambda: _Flat([1], episode_ids=1)),
    (
        'episode_ids has 5, rows has 5, states/h has 4',
        lambda: _Flat(
            tf.range(5), episode_ids=[1] * 5, states={'h': tf.zeros([4, 2])}
        ),
    ),
    ('lengths must be integers', lambda: _Flat([1, 2], lengths=[2.0])),
    ('lengths must be integers', lambda: _Flat([1, 2], lengths=[[2]])),
    (
        'rows/a has 2.*rows/b has 3',
        lambda: _Flat({'a': [1, 2], 'b': [1, 2, 3]}, lengths=[2]),
    ),
    ('needs a first dimension', lambda: _Flat({'a': 1}, lengths=[1])),
    ('must have a field', lambda: _Flat({}, lengths=[0])),
    ('max_length must be a', lambda: windows.chop_into_sequences(_rows(_A), 0)),
    # Fragments.
    ('fragment_length must be a positive', lambda: _fragments(0)),
    ('mean truncate_episodes', lambda: _fragments(2, 'truncate_episode')),
    ('Did you mean action', lambda: _fragments(2, agent_steps='actoin')),
    ('count_steps_by must be', lambda: _fragments(4, count_steps_by='agents')),
    (
        'counted by is_present',
        lambda: _fragments(4, count_steps_by='agent_steps'),
    ),
    (
        'does not count them',
        lambda: _fragments(4, count_steps_by='env_steps', agent_steps='action'),
    ),
    (
        'TransitionRows do not say',
        lambda: windows.convert_rlds_to_fragments(
            _rows_of_agents(), 4, count_steps_by='agent_steps'
        ),
    ),
    (
        'must return TransitionRows',
        lambda: _fragments(2, fragment_fn=lambda rows: rows.columns),
    ),
    (
        "a dict with 'steps', but is",
        lambda: windows.convert_rlds_to_fragments(_fragments(2), 2),
    ),
    *(
        (f"'{name}' already", lambda n=name: _fragments(3, steps=_own(n)))
        for name in ('t', 'episode', 'next_observation')
    ),
    # Horizons.
    ('horizon must be a positive', lambda: _horizon(_A, 0)),
    ('horizon must be a positive', lambda: _horizon(_A, 0, soft=True)),
    ('no field is_last', lambda: _horizon(_without('is_last'), 2)),
    # Slices.
    ('num_slices must be a positive', lambda: _slices((0, 2), 7)),
    ('slice_length must be a positive', lambda: _slices((1, 0), 7)),
    ('mean window', lambda: _slices((1, 2), 7, weighting='windows')),
    ('mean ragged', lambda: _slices((1, 2), 7, fill='raged')),
    *(
        ('span must be two numbers', lambda s=span: _slices((1, 2), 7, span=s))
        for span in ((0, 2), (-1, 0), (0.5, 0))
    ),
    ('seed must be an integer or two', lambda: _slices((1, 2), (0.5, 1))),
    ('num_steps must be', lambda: windows.draw_steps(_A, 0, 5)),
    # Views.
    *(
        ('a range such as', lambda s=shift: _view(shift=s))
        for shift in ('3', '-3:x', '1:2:3:4', [], [1.5], [True])
    ),
    ('backwards', lambda: _view(shift='2:0')),
    ('backwards', lambda: _view(shift='0:2:0')),
    ('Did you mean reward', lambda: _view(data_col='rewards')),
    ('batch_repeat_value', lambda: _view(batch_repeat_value=0)),
    ('batch_repeat_value', lambda: _view(batch_repeat_value=1.5)),
    ('is float64', lambda: _view(space=tf.TensorSpec([], tf.float64))),
    (r'float32 \(2,\)', lambda: _view(space=tf.TensorSpec([2], tf.float32))),
    ('has the fields', lambda: _view(space={'a': tf.TensorSpec([])})),
    (
        'Did you mean rllib',
        lambda: windows.compute_views(_B, {'reward': _View()}, fill='rlib'),
    ),
    (
        'Use compute_views',
        lambda: windows.apply_views(
            _B, {'x': _View('reward', batch_repeat_value=2)}
        ),
    ),
    ("field 'reward'", lambda: windows.apply_views(_B, {'reward': _View()})),
    # Frames and chunks of actions.
    ('num_frames must be a positive integer', lambda: _stack(_A, 0)),
    ('num_actions must be a pos', lambda: _stack(_A, num_actions=1.5)),
    ('Did you mean repeat', lambda: _stack(_A, 2, before='repeats')),
    ('fill must be .* or a number', lambda: _stack(_A, 2, 2, None)),
    ('fill must be .* or a number', lambda: _stack(_A, 2, before=[1, 2])),
    ('no field observation', lambda: _stack(_without('observation'), 2)),
    ('no field action', lambda: _stack(_without('action'), num_actions=2)),
    ('no field goal_step', lambda: _stack(_B, 2, 2, goal_step='goal_step')),
    ('mask_rule must be one of', lambda: _stack(_B, 2, 2, mask_rule='theirs')),
    ("names must be one of.*'m'", lambda: _stack(_B, 2, names={'m': 'x'})),
    *(
        ('both of them for goal_step', lambda k=kwargs: _stack(_B, **k))
        for kwargs in (
            {},
            {'num_frames': 2, 'goal_step': 'reward'},
            {'num_actions': 2, 'mask_rule': 'octo'},
        )
    ),
    ('before n_step_transitions', lambda: _stack(_n_step(_A, 2), 2)),
    ('before n_step_transitions', lambda: _to_go(_n_step(_A, 2))),
    # Agents.
    (
        'Did you mean left',
        lambda: presence.flags({'is_present': {'left': 1}}, 'lft'),
    ),
    ('must be a dict', lambda: presence.flags({'is_present': [True]}, 'left')),
    (
        'no field observation/c',
        lambda: windows.compute_views(
            agent_episodes.COME_AND_GO, {'observation': _View(agent='c')}
        ),
    ),
]
_LATER = tf.errors.InvalidArgumentError
_ERRORS_OF_DATA = [
    ('one value a step', lambda: _advantages(_B, [1.0, 2.0, 3.0])),
    (
        'value: 7',
        lambda: windows.unroll(
            _rows(_A)._replace(
                columns={**_rows(_A).columns, 'value': tf.range(7)}
            ),
            _CUT,
        ),
    ),
    ('must not be negative', lambda: _Flat([1, 2], lengths=[4, -2])),
    ('must add up to the rows', lambda: _Flat([1, 2], lengths=[1])),
    ('not enough slices to draw', lambda: _slices((2, 4), 7)),
    ('not enough slices', lambda: _slices((2, 4), 7, weighting='window')),
    ('not enough slices', lambda: _slices((2, 3), 7, replacement=False)),
    *(
        (
            'must lie in its episode',
            lambda a=start, b=stop: windows.compute_views(
                _B, {'reward': _View()}, start=a, stop=b
            ),
        )
        for start, stop in ((2, 1), (-1, 2), (0, 4))
    ),
]
# Those that are only known while a graph runs.
_CHOP = tf.TensorSpec([None], tf.int64)
_IN_A_GRAPH = [
    (
        'gamma must lie in',
        lambda gamma: _to_go(_B, gamma).columns['reward_to_go'],
        [tf.TensorSpec([])],
        [0.5],
        [-0.5],
    ),
    (
        r'(?s)episode_ids.*3.*rows.*5',
        lambda rows, ids: _Flat(rows, episode_ids=ids).lengths,
        [_CHOP, _CHOP],
        [range(5), [1, 1, 2, 2, 2]],
        [range(5), [1, 1, 2]],
    ),
    (
        r'(?s)rows/a.*3.*rows/b.*2',
        lambda a, b: _Flat({'a': a, 'b': b}, lengths=[2]).lengths,
        [_CHOP, _CHOP],
        [range(2), range(2)],
        [range(3), range(2)],
    ),
]


class ErrorsTest(parameterized.TestCase, tf.test.TestCase):

  def test_arguments(self):
    for message, call in _VALUE_ERRORS:
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        call()

  def test_data(self):
    for message, call in _ERRORS_OF_DATA:
      with self.subTest(message), self.assertRaisesRegex(_LATER, message):
        call()

  @parameterized.parameters(*_IN_A_GRAPH)
  def test_in_a_graph(self, message, function, signature, right, wrong):
    in_graph = tf.function(function, signature, autograph=False)
    in_graph(*map(tf.cast, right, [spec.dtype for spec in signature]))
    with self.assertRaisesRegex(_LATER, message):
      in_graph(*map(tf.cast, wrong, [spec.dtype for spec in signature]))

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
    from_rows, from_steps = function(rows), function(_A)
    if isinstance(from_steps, dict):  # Steps in, steps out.
      from_steps = _rows(from_steps)
    self.assertEqual(type(from_rows), type(from_steps))
    tf.nest.map_structure(self.assertAllEqual, from_rows, from_steps)
    for wrong, message in (
        (rows.columns, "'next_observation' already.*TransitionRows"),
        (rows._asdict(), "'next_observation' already.*TransitionRows"),
        (windows.unroll(rows, _CUT), 'It is a Chunks'),
        (windows.sample_slices(rows, (1, 2), 7), 'It is a Slices'),
        (tf.range(7), 'It is a .*Tensor'),
        ([_A], 'It is a list'),
        ({'steps': _A}, 'whole episode.*its steps are needed'),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        function(wrong)

  @parameterized.parameters(
      ('reward_to_go', lambda steps, **names: _to_go(steps, 0.5, **names)),
      ('advantage', lambda x, **names: _advantages(x, [0.0] * 4, **names)),
      ('steps', lambda steps, **names: _n_step(steps, 1, **names)),
      ('observation_mask', lambda x, **names: _stack(_rows(x), 2, **names)),
      (
          'x_mask',
          lambda steps, **names: windows.apply_views(
              steps, {'x': _View('reward')}, **names
          ),
      ),
  )
  def test_what_is_added_replaces_nothing(self, name, function):
    with self.assertRaisesRegex(ValueError, f"field '{name}' already.*Rename"):
      function(_own(name))
    named = function(_own(name), names={name: 'other'}).columns
    self.assertAllEqual(named[name], [10, 20, 30])
    self.assertAllEqual(named['other'], function(_B).columns[name])

  @parameterized.parameters(
      ('uint8', -1),
      ('uint8', 300),
      ('uint8', 0.5),
      ('uint8', np.nan),
      ('int64', 2**70),
      ('int64', np.inf),
      ('bool', 2),
      ('bool', 0.5),
      ('float16', 1e5),
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
      ('uint8', 7.0),
      ('int64', 2**40 + 1),
      ('bool', True),
      ('float16', -np.inf),
      ('float32', 0.1),
      ('float64', 1e300),
      ('float32', np.nan),
      ('int8', np.int64(-3)),
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
