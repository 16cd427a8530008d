"""Tests of views."""

from absl.testing import parameterized
import gym
import numpy as np
import tensorflow as tf

from rlds2reverb.windows import views
from tests import contract
from tests import ways
from tests.agents import episodes as agent_episodes

_View = views.ViewRequirement
_THREE = contract.make_steps([5, 6, 7, 8], [1, 2, 3], terminal=False)
_EIGHT = contract.make_steps(range(9), range(1, 9), terminal=True)


def _view(steps, view, **kwargs):
  result = views.compute_views(steps, {'view': view}, **kwargs)
  return result.columns['view'].numpy().tolist()


class ContractTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ('reward', -1, [0, 1, 2]),
      ('action', 1, [2, 3, 0]),
      ('observation', 1, [6, 7, 8]),
      ('reward', '-2:-1', [[0, 0], [0, 1], [1, 2]]),
      ('reward', '0:2', [[1, 2, 3], [2, 3, 0], [3, 0, 0]]),
      ('reward', '-2:0:2', [[0, 1], [0, 2], [1, 3]]),
      ('reward', [0, -2], [[1, 0], [2, 0], [3, 1]]),
      ('reward', [-1], [0, 1, 2]),
      ('reward', '-1:-1', [0, 1, 2]),
      ('observation', '-2:0', [[5, 5, 5], [5, 5, 6], [5, 6, 7]]),
      ('observation', [1, 2], [[6, 7], [7, 8], [8, 0]]),
      ('is_last', 0, [False, False, True]),
      ('next_observation', 0, [6, 7, 8]),
  )
  def test_shifts(self, column, shift, expected):
    self.assertEqual(_view(_THREE, _View(column, shift)), expected)

  def test_a_long_range(self):
    result = views.compute_views(_THREE, {'reward': _View(shift='-50:-1')})
    self.assertEqual(result.columns['reward'].shape, [3, 50])
    self.assertAllEqual(result.columns['reward'][2, -2:], [1, 2])
    self.assertAllEqual(
        tf.reduce_sum(tf.cast(result.mask['reward'], tf.int32), 1), [0, 1, 2]
    )

  @parameterized.parameters(
      (
          'zeros',
          [[0, 5, 6], [5, 6, 7], [6, 7, 8]],
          [[0, 1, 2], [1, 2, 3], [2, 3, 0]],
      ),
      (
          'repeat',
          [[5, 5, 6], [5, 6, 7], [6, 7, 8]],
          [[1, 1, 2], [1, 2, 3], [2, 3, 3]],
      ),
      (
          'rllib',
          [[5, 5, 6], [5, 6, 7], [6, 7, 8]],
          [[0, 1, 2], [1, 2, 3], [2, 3, 0]],
      ),
  )
  def test_fills(self, fill, observations, rewards):
    shift = '-1:1'
    self.assertEqual(
        _view(_THREE, _View('observation', shift), fill=fill), observations
    )
    self.assertEqual(_view(_THREE, _View('reward', shift), fill=fill), rewards)

  def test_batch_repeat_value(self):
    self.assertEqual(
        _view(contract.A, _View('reward', -1, batch_repeat_value=2)), [0, 2, 4]
    )

  def test_fragment_in_mid_episode(self):
    fragment = {'start': 4, 'stop': 6}
    self.assertEqual(_view(_EIGHT, _View('action', 1), **fragment), [6, 0])
    self.assertEqual(_view(_EIGHT, _View('reward', -1), **fragment), [4, 5])
    self.assertEqual(_view(_EIGHT, _View('observation', 1), **fragment), [5, 6])

  def test_used_for_training(self):
    requirements = {
        'reward': _View(),
        'state': _View('observation', used_for_training=False),
    }
    self.assertEqual(
        list(views.compute_views(_THREE, requirements).columns), ['reward']
    )
    self.assertEqual(
        list(
            views.compute_views(
                _THREE, requirements, for_training=False
            ).columns
        ),
        ['reward', 'state'],
    )

  def test_space(self):
    for space in (
        tf.TensorSpec([], tf.float32),
        gym.spaces.Box(0, 1, (), np.float32),
    ):
      self.assertEqual(_view(_THREE, _View('reward', space=space)), [1, 2, 3])


class AgentsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_columns_of_another_agent(self, run):
    requirements = {
        'seen': _View('observation', '-1:1', agent='b'),
        'part': _View('state/x', agent='b'),
        'reward': _View(shift=1, agent='a'),
    }
    steps = {
        **agent_episodes.COME_AND_GO,
        'state': {agent: {'x': np.arange(5)} for agent in 'ab'},
    }
    (found,) = run(
        lambda episode: views.compute_views(episode['steps'], requirements),
        [steps],
    )
    # `b` comes at the second step; `a` leaves after the third.
    self.assertAllEqual(
        found.columns['seen'],
        [[0, 0, 11], [0, 11, 12], [11, 12, 13], [12, 13, 14]],
    )
    self.assertAllEqual(
        found.mask['seen'], [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    )
    self.assertAllEqual(found.columns['part'], [0, 1, 2, 3])
    self.assertAllEqual(found.columns['reward'], [2, 3, 0, 0])
    self.assertAllEqual(found.mask['reward'], [1, 1, 0, 0])

  def test_no_such_agent(self):
    with self.assertRaisesRegex(ValueError, 'no field observation/c'):
      _view(agent_episodes.COME_AND_GO, _View('observation', agent='c'))


class EdgesTest(tf.test.TestCase):

  def test_against_a_loop(self):
    requirements = {
        'observation': _View(shift=[1, -2, 0]),
        'camera': _View('observation/camera', -3, batch_repeat_value=2),
        'action': _View(shift='-1:2'),
        'state': _View('state', -1),
        'reward': _View(),
    }
    shifts = {
        'observation': [1, -2, 0],
        'camera': [-3],
        'action': [-1, 0, 1, 2],
        'state': [-1],
        'reward': [0],
    }

    def check(steps, result):
      rows = contract.transitions(steps)
      length = len(rows)
      for name, view in requirements.items():
        expected, mask = [], []
        for t in range(0, length, view.batch_repeat_value):
          values, mask_values = [], []
          for shift in shifts[name]:
            at = t + shift
            is_observation = name in ('observation', 'camera')
            inside = 0 <= at < length + is_observation
            if is_observation:
              value = tf.nest.map_structure(
                  lambda leaf: leaf[min(max(at, 0), length)],  # pylint: disable=cell-var-from-loop
                  steps['observation'],
              )
              value = value['camera'] if name == 'camera' else value
            else:
              value = rows[at if inside else 0][name]
            if not inside and not (is_observation and at < 0):
              value = contract.zero_like(value)
            values.append(value)
            mask_values.append(inside)
          squeeze = len(values) == 1
          expected.append(values[0] if squeeze else contract.stack(values))
          mask.append(mask_values[0] if squeeze else mask_values)
        contract.assert_rows(self, result.columns[name], expected)
        if mask:
          self.assertAllEqual(result.mask[name], mask)

    spec = contract.check_everywhere(
        self,
        lambda steps: views.compute_views(steps, requirements),
        contract.edge_episodes(3),
        check,
    )
    self.assertEqual(
        spec.columns['observation']['camera'],
        tf.TensorSpec([None, 3, 2, 1], tf.uint8),
    )
    self.assertEqual(spec.mask['action'], tf.TensorSpec([None, 4], tf.bool))
    self.assertEqual(spec.mask['state'], tf.TensorSpec([None], tf.bool))

  def test_fragments_join_to_what_the_episode_shows(self):
    # With views of the past alone, nothing is cut.
    steps = contract.random_steps(np.random.default_rng(1), 7)
    requirements = {
        'observation': _View(shift='-2:1'),
        'reward': _View(shift=-1),
    }
    whole = views.compute_views(steps, requirements)
    parts = [
        views.compute_views(steps, requirements, start=start, stop=stop)
        for start, stop in ((0, 3), (3, 3), (3, 7))
    ]
    tf.nest.map_structure(
        lambda one, *others: self.assertAllEqual(one, tf.concat(others, 0)),
        whole,
        *parts,
    )


class BadArgumentsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      ('a range such as', {'shift': '3'}),
      ('a range such as', {'shift': '-3:x'}),
      ('a range such as', {'shift': '1:2:3:4'}),
      ('a range such as', {'shift': []}),
      ('a range such as', {'shift': [1.5]}),
      ('backwards', {'shift': '2:0'}),
      ('backwards', {'shift': '0:2:0'}),
      ('Did you mean reward', {'data_col': 'rewards'}),
      ('batch_repeat_value', {'batch_repeat_value': 0}),
      ('batch_repeat_value', {'batch_repeat_value': 1.5}),
      ('is float64', {'space': tf.TensorSpec([], tf.float64)}),
      ('float32 \\(2,\\)', {'space': tf.TensorSpec([2], tf.float32)}),
      ('has the fields', {'space': {'a': tf.TensorSpec([], tf.float32)}}),
  )
  def test_views(self, message, arguments):
    view = _View(**{'data_col': 'reward', **arguments})
    with self.assertRaisesRegex(ValueError, message):
      views.compute_views(_THREE, {'view': view})

  def test_others(self):
    with self.assertRaisesRegex(ValueError, 'Did you mean rllib'):
      _view(_THREE, _View('reward'), fill='rlib')
    for start, stop in ((2, 1), (-1, 2), (0, 4)):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'must lie in its episode'
      ):
        _view(_THREE, _View('reward'), start=start, stop=stop)


if __name__ == '__main__':
  tf.test.main()
