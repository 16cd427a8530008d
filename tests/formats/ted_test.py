"""Tests of TorchRL's episode data format."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import ted
from tests import contract
from tests import golden
from tests.formats import expected

_UNFINISHED = {**contract.B, 'is_last': np.zeros(4, bool)}
# As TorchRL 0.14.1 gives the episodes A and B, by its TED2Flat.
_FLAT = {
    'observation': [0, 1, 2, 3, 4, 5, 10, 11, 12, 13],
    'action': [1, 2, 3, 4, 5, 1, 2, 3],
    'reward': [1, 2, 3, 4, 5, 10, 20, 30],
    'done': [0, 0, 0, 0, 1, 0, 0, 1],
    'terminated': [0, 0, 0, 0, 1, 0, 0, 0],
    'truncated': [0, 0, 0, 0, 0, 0, 0, 1],
}
_AB = [contract.A, contract.B]


class ToTedTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(golden.stacked, golden.nested)
  def test_transitions(self, layout):
    found = ted.to_ted(layout(_AB))
    root, after = found, found['next']
    self.assertAllEqual(root['observation'], [0, 1, 2, 3, 4, 10, 11, 12])
    self.assertAllEqual(after['observation'], [1, 2, 3, 4, 5, 11, 12, 13])
    self.assertAllEqual(root['action'], _FLAT['action'])
    self.assertAllEqual(after['reward'], _FLAT['reward'])
    self.assertAllEqual(root['is_init'], [1, 0, 0, 0, 0, 1, 0, 0])
    self.assertNotIn('reward', root)
    self.assertNotIn('action', after)
    for key in ted.END_KEYS:
      self.assertAllEqual(root[key], np.zeros(8, bool))
      self.assertAllEqual(after[key], _FLAT[key])
      self.assertEqual(after[key].dtype, bool)
    self.assertEqual(root['observation'].dtype, contract.A['observation'].dtype)

  def test_flat_ted_equals_torchrl(self):
    actual = ted.to_ted(golden.stacked(_AB), flat=True)
    for key, column in _FLAT.items():
      self.assertAllEqual(actual[key], column)

  def test_additional_transition_fields(self):
    steps = {**contract.A, 'noise': {'arm': np.arange(6)}}
    actual = ted.to_ted(
        golden.stacked([steps]),
        flat=True,
        transition_fields=['noise', 'reward'],
    )
    self.assertAllEqual(actual['noise']['arm'], [0, 1, 2, 3, 4])
    self.assertLen(actual['action'], 6)

  @parameterized.parameters(False, True)
  def test_ted_round_trip_keeps_episodes(self, flat):
    nan = {**contract.A, 'observation': np.full(6, np.nan, 'f4')}
    episodes = [contract.A, contract.B, nan, _UNFINISHED]
    data = ted.to_ted(golden.stacked(episodes), flat=flat)
    actual = list(ted.from_ted(data).as_numpy_iterator())
    self.assertEqual(
        [episode['episode_id'] for episode in actual], [0, 1, 2, 3]
    )
    for steps, episode in zip(episodes, actual):
      wanted = {**steps}
      for key in 'action', 'reward':
        wanted[key] = np.append(steps[key][:-1], steps[key][-1:] * 0)
      golden.assert_frames_equal(self, [episode['steps']], [wanted])


class FromTedTest(tf.test.TestCase):

  def test_nest_without_episode_columns_of_torchrl(self):
    (episode,) = ted.from_ted(
        {
            'pixels': np.array([[1.0], [2.0]]),
            'action': np.array([3, 4]),
            'next': {
                'pixels': np.array([[2.0], [5.0]]),
                'reward': np.array([[1.0], [2.0]]),
                'done': np.array([[False], [True]]),
                'terminated': np.array([[False], [True]]),
            },
        }
    )
    pixels, action = np.array([[1.0], [2.0], [5.0]]), np.array([3, 4])
    wanted = expected.steps(pixels, action, np.array([1.0, 2.0]), terminal=True)
    wanted['pixels'] = wanted.pop('observation')
    golden.assert_frames_equal(self, [episode['steps']], [wanted])

  def test_invalid_ted_raises(self):
    done = [True, True]
    expected.assert_refused(
        self,
        ted.from_ted,
        (
            {'observation': [1], 'next': {'observation': [2]}},
            'which mark the ends of episodes',
        ),
        ([1], 'must be a dict'),
        ({'observation': [1, 2], 'done': [done]}, 'flags have the shape'),
        (
            {'observation': [1] * 4, 'extra': [1], 'done': done},
            'extra .* 1 rows, .* 2 or 4',
        ),
    )

  def test_inconsistent_next_observation_raises(self):
    data = ted.to_ted(golden.stacked([contract.A]))
    data['next']['observation'][2] = 9
    with self.assertRaisesRegex(ValueError, r'observation of a .*rows \[3\]'):
      ted.from_ted(data)


class BadEpisodesTest(tf.test.TestCase):

  def test_flags(self):
    for name, sentence in (
        ('terminal_before_last', golden.TERMINAL_NOT_LAST),
        ('first_last_mid_last', 'Last step of an episode must end it'),
    ):
      episode = golden.INVALID_CASES[name].episode
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, sentence):
        ted.to_ted(golden.stacked([episode]))

  def test_fields(self):
    expected.assert_refused(
        self,
        ted.to_ted,
        (
            golden.stacked([{**contract.A, 'done': np.zeros(6, bool)}]),
            "RenameFields.*'done'",
        ),
        (
            tf.data.Dataset.from_tensors({'steps': {'is_terminal': [True]}}),
            'no field is_last',
        ),
        (tf.data.Dataset.from_tensors(contract.A), "dict with 'steps'"),
        (golden.stacked([golden.SINGLE_TERMINAL]), 'There is no transition'),
    )


if __name__ == '__main__':
  tf.test.main()
