"""Tests of frame stacking and action chunking."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.trajectories import conversion
from rlds2reverb.windows import stacking
from rlds2reverb.windows import transitions
from tests import contract


def _stack(episode, num_frames, fill='repeat', **kwargs):
  return stacking.stack_and_chunk(episode, num_frames, before=fill, **kwargs)


def _chunk(episode, num_actions, fill='zeros', **kwargs):
  return stacking.stack_and_chunk(
      episode, num_actions=num_actions, fill=fill, **kwargs
  )


class StackObservationsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(('repeat', 10), ('zeros', 0), (-1, -1))
  def test_fills(self, fill, first):
    steps = _stack(contract.B, 3, fill)
    self.assertAllEqual(
        steps['observation'],
        [[first, first, 10], [first, 10, 11], [10, 11, 12], [11, 12, 13]],
    )
    self.assertAllEqual(
        steps['observation_mask'],
        [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]],
    )
    self.assertAllEqual(steps['reward'], contract.B['reward'])

  def test_edges_against_a_loop(self):
    num_frames = 3

    def check(steps, result):
      frames, mask = [], []
      for t in range(len(steps['reward'])):
        window = range(t - num_frames + 1, t + 1)
        frames.append(
            contract.stack(
                [
                    tf.nest.map_structure(
                        lambda leaf: leaf[max(at, 0)], steps['observation']  # pylint: disable=cell-var-from-loop
                    )
                    for at in window
                ]
            )
        )
        mask.append([at >= 0 for at in window])
      contract.assert_rows(self, result['observation'], frames)
      self.assertAllEqual(result['observation_mask'], mask)
      contract.assert_equal(self, result['action'], steps['action'])

    spec = contract.check_everywhere(
        self,
        lambda steps: _stack(steps, num_frames),
        contract.edge_episodes(num_frames),
        check,
    )
    self.assertEqual(
        spec['observation']['camera'],
        tf.TensorSpec([None, num_frames, 2, 1], tf.uint8),
    )

  def test_each_episode_begins_anew_on_the_way_to_trajectories(self):
    data = tf.data.Dataset.from_tensors({'steps': contract.B}).repeat(2)
    frames = conversion.convert_rlds_to_trajectories(
        data.map(lambda episode: {'steps': _stack(episode['steps'], 2)})
    )
    once = [[10, 10], [10, 11], [11, 12], [12, 13]]
    self.assertAllEqual([f.observation for f in frames], once * 2)


class ChunkActionsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(('zeros', 0), ('repeat', 3), (-1, -1))
  def test_fills(self, fill, e):
    steps = _chunk(contract.B, 3, fill)
    self.assertAllEqual(
        steps['action'], [[1, 2, 3], [2, 3, e], [3, e, e], [e, e, e]]
    )
    self.assertAllEqual(
        steps['action_mask'],
        [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]],
    )

  def test_edges_against_a_loop(self):
    num_actions = 3

    def check(steps, result):
      actions = [row['action'] for row in contract.transitions(steps)]
      count = len(actions)
      zero = contract.zero_like(
          tf.nest.map_structure(lambda leaf: leaf[0], steps['action'])
      )
      chunks = [
          [
              actions[at] if at < count else zero
              for at in range(t, t + num_actions)
          ]
          for t in range(count + 1)
      ]
      contract.assert_rows(
          self, result['action'], [contract.stack(chunk) for chunk in chunks]
      )
      self.assertAllEqual(
          result['action_mask'],
          np.arange(count + 1)[:, None] + np.arange(num_actions) < count,
      )

    spec = contract.check_everywhere(
        self,
        lambda steps: _chunk(steps, num_actions),
        contract.edge_episodes(num_actions),
        check,
    )
    self.assertEqual(
        spec['action'][1], tf.TensorSpec([None, num_actions, 2], tf.float32)
    )


class StackAndChunkTest(parameterized.TestCase, tf.test.TestCase):

  def test_worked_arrays(self):
    steps = stacking.stack_and_chunk(contract.B, 2, 2)
    self.assertAllEqual(
        steps['observation'], [[10, 10], [10, 11], [11, 12], [12, 13]]
    )
    # The actions are 1, 2 and 3.
    self.assertAllEqual(
        steps['action'],
        [
            [[1, 2], [1, 2]],
            [[1, 2], [2, 3]],
            [[2, 3], [3, 3]],
            [[3, 3], [3, 3]],
        ],
    )
    self.assertAllEqual(
        steps['action_mask'],
        [
            [[0, 0], [1, 1]],
            [[1, 1], [1, 1]],
            [[1, 1], [1, 0]],
            [[1, 0], [0, 0]],
        ],
    )

  def test_goal(self):
    goals = np.array([1, 3, 2, 3])
    steps = stacking.stack_and_chunk(
        {**contract.B, 'goal_step': goals}, 2, 2, goal_step='goal_step'
    )
    self.assertAllEqual(
        steps['action_mask'],
        [
            [[0, 0], [1, 0]],  # a1 is that of the goal itself
            [[1, 1], [1, 1]],
            [[1, 0], [0, 0]],
            [[1, 0], [0, 0]],
        ],
    )

  def test_as_octo(self):
    # What `chunk_act_obs` of Octo (241fb351) makes of actions 10 to 14 with
    # window_size=2, action_horizon=3, with TensorFlow 2.15.1: the actions and
    # the mask, which is the same for these goals and without any.
    action = [
        [[10, 11, 12], [10, 11, 12]],
        [[10, 11, 12], [11, 12, 13]],
        [[11, 12, 13], [12, 13, 14]],
        [[12, 13, 14], [13, 14, 14]],
        [[13, 14, 14], [14, 14, 14]],
    ]
    mask = np.ones([5, 2, 3], bool)
    mask[4, 1, 2] = False
    steps = {
        'observation': np.arange(5),
        'action': np.arange(10, 15),
        'has_action': np.ones(5, bool),
        'goal_step': np.array([2, 4, 3, 4, 4]),
    }
    for goal_step in 'goal_step', None:
      found = stacking.stack_and_chunk(
          steps, 2, 3, goal_step=goal_step, mask_rule='octo'
      )
      self.assertAllEqual(found['action'], action)
      self.assertAllEqual(found['action_mask'], mask)
      self.assertAllEqual(
          found['observation_mask'], [[0, 1], [1, 1], [1, 1], [1, 1], [1, 1]]
      )
    steps['goal_step'] = np.arange(5)  # each step is its own goal
    found = stacking.stack_and_chunk(
        steps, 2, 4, goal_step='goal_step', mask_rule='octo'
    )
    self.assertAllEqual(
        found['action_mask'], [[[1, 1, 1, 0], [1, 1, 0, 0]]] * 5
    )
    with self.assertRaisesRegex(ValueError, 'mask_rule must be one of'):
      stacking.stack_and_chunk(steps, 2, 3, mask_rule='theirs')

  def test_edges_against_loops_of_octo(self):
    num_frames, num_actions = 3, 2

    def check(steps, result):
      actions = [row['action'] for row in contract.transitions(steps)]
      count = len(actions)
      if not count:
        self.assertAllEqual(
            result['action_mask'], np.zeros([1, num_frames, num_actions])
        )
        return
      # Octo's history of chunks, with the last action repeated.
      expected = [
          [
              [
                  actions[min(max(frame, 0) + ahead, count - 1)]
                  for ahead in range(num_actions)
              ]
              for frame in range(t - num_frames + 1, t + 1)
          ]
          for t in range(count + 1)
      ]
      contract.assert_rows(
          self,
          result['action'],
          [
              contract.stack([contract.stack(chunk) for chunk in chunks])
              for chunks in expected
          ],
      )
      frames = np.arange(count + 1)[:, None] + np.arange(1 - num_frames, 1)
      index = frames[..., None] + np.arange(num_actions)
      self.assertAllEqual(
          result['action_mask'], (frames[..., None] >= 0) & (index < count)
      )
      self.assertAllEqual(result['observation_mask'], frames >= 0)

    spec = contract.check_everywhere(
        self,
        lambda steps: stacking.stack_and_chunk(steps, num_frames, num_actions),
        contract.edge_episodes(num_frames),
        check,
    )
    self.assertEqual(
        spec['action'][1],
        tf.TensorSpec([None, num_frames, num_actions, 2], tf.float32),
    )

  def test_rows_are_those_of_the_steps(self):
    rows = transitions.transition_rows(contract.B)
    columns = stacking.stack_and_chunk(rows, 2, 2).columns
    steps = stacking.stack_and_chunk(contract.B, 2, 2)
    for name in ('observation', 'action', 'action_mask', 'observation_mask'):
      self.assertAllEqual(columns[name], steps[name][:-1])

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, 'no field goal_step'):
      stacking.stack_and_chunk(contract.B, 2, 2, goal_step='goal_step')
    with self.assertRaisesRegex(ValueError, "names must be one of.*'mask'"):
      stacking.stack_and_chunk(contract.B, 2, 2, names={'mask': 'is_real'})
    for arguments in (
        {},
        {'num_frames': 2, 'goal_step': 'reward'},
        {'num_actions': 2, 'mask_rule': 'octo'},
    ):
      with self.assertRaisesRegex(ValueError, 'both of them for goal_step'):
        stacking.stack_and_chunk(contract.B, **arguments)
    named = stacking.stack_and_chunk(
        contract.B, 2, 2, names={'action_mask': 'is_real'}
    )
    self.assertAllEqual(named['is_real'][0], [[0, 0], [1, 1]])


class AddedColumnsTest(tf.test.TestCase):

  def test_fields_of_the_names_that_are_added(self):
    for function, mask in (
        (_stack, 'observation_mask'),
        (_chunk, 'action_mask'),
    ):
      own = {**contract.B, mask: contract.B['reward']}
      with self.assertRaisesRegex(
          ValueError, f'field {mask!r} already.*RenameFields'
      ):
        function(own, 2)
      named = function(own, 2, names={mask: 'is_real'})
      self.assertAllEqual(named[mask], contract.B['reward'])
      self.assertAllEqual(named['is_real'], function(contract.B, 2)[mask])


class FillTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ('uint8', -1),
      ('uint8', 300),
      ('uint8', 0.5),
      ('uint8', np.nan),
      ('int32', 2**31),
      ('int64', 2**70),
      ('int64', np.inf),
      ('bool', 2),
      ('bool', 0.5),
      ('float16', 1e5),
      ('float32', 1e39),
  )
  def test_a_number_that_a_field_cannot_hold(self, dtype, fill):
    leaf, holds_all = np.zeros([4, 2], dtype), np.zeros([4])
    episode = {
        **contract.B,
        'observation': {'a': holds_all, 'b': (leaf,)},
        'action': (holds_all, {'c': leaf}),
    }
    for function, path in (
        (_stack, 'observation/b/0'),
        (_chunk, 'action/1/c'),
    ):
      message = f'{path} is {dtype}, which cannot hold .*fill'
      with self.assertRaisesRegex(ValueError, message):
        function(episode, 2, fill)
      with self.assertRaisesRegex(ValueError, message):
        tf.data.Dataset.from_tensors(episode).map(
            lambda steps: function(steps, 2, fill)  # pylint: disable=cell-var-from-loop
        )

  @parameterized.parameters(
      ('uint8', 255),
      ('uint8', 7.0),
      ('int64', 2**40 + 1),
      ('bool', True),
      ('bool', 1),
      ('float16', -np.inf),
      ('float32', 0.1),
      ('float64', 1e300),
      ('float32', np.nan),
      ('float32', np.float64(0.5)),
      ('int8', np.int64(-3)),
  )
  def test_a_number_that_a_field_can_hold(self, dtype, fill):
    episode = {**contract.B, 'observation': np.zeros([4], dtype)}
    stacked = _stack(episode, 2, fill)['observation']
    self.assertEqual(stacked.dtype.name, dtype)
    np.testing.assert_array_equal(
        stacked[0], np.array([fill, 0], dtype), strict=True
    )

  def test_strings_are_filled_with_empty_ones(self):
    episode = {**contract.B, 'observation': np.array(['a', 'b', 'c', 'd'])}
    stacked = _stack(episode, 2, -1)['observation']
    self.assertAllEqual(stacked[0], [b'', b'a'])


class BadArgumentsTest(tf.test.TestCase):

  def test_all(self):
    for function in (_stack, _chunk):
      for message, steps, arguments in (
          ('must be a positive integer', contract.A, (0,)),
          ('must be a positive integer', contract.A, (1.5,)),
          ('Did you mean repeat', contract.A, (2, 'repeats')),
          ('fill must be .* or a number', contract.A, (2, None)),
          ('fill must be .* or a number', contract.A, (2, [1, 2])),
          ('no field [ao]', {'reward': contract.A['reward']}, (2,)),
      ):
        with self.assertRaisesRegex(ValueError, message):
          function(steps, *arguments)


if __name__ == '__main__':
  tf.test.main()
