"""Tests of TorchRL's episode data format."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import ted
from tests import contract
from tests import golden
from tests import ways

_FORMS = ('transitions', 'flat', 'nested')
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


def _with_metadata(episodes, form=golden.stacked):
  """Returns a data set in which the episodes have fields of their own."""
  return (
      form(episodes)
      .enumerate()
      .map(
          lambda index, episode: {
              **episode,
              'episode_id': index,
              'source': {'file': tf.strings.as_string(index)},
          }
      )
  )


def _random_episodes():
  rng = np.random.default_rng(0)
  episodes = [
      contract.random_steps(rng, transitions)
      for transitions in (0, 3, 1, 0, 0, 6)
  ]
  empty = tf.nest.map_structure(lambda leaf: leaf[:0], episodes[0])
  unfinished = {**episodes[1], 'is_last': np.zeros(4, bool)}
  unfinished['is_terminal'] = np.zeros(4, bool)
  return [*episodes[:4], empty, *episodes[4:], unfinished, empty]


def _assert_episodes_equal(test, actual, expected):
  actual = list(actual.as_numpy_iterator())
  expected = list(expected.as_numpy_iterator())
  test.assertLen(actual, len(expected))
  for one, other in zip(actual, expected):
    contract.assert_equal(test, one, other)


class ToTedTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_transitions(self, run):
    found, other = run(ted.to_ted, [contract.A, contract.B])
    data = found.data
    self.assertAllEqual(data['observation'], [0, 1, 2, 3, 4])
    self.assertAllEqual(data['next']['observation'], [1, 2, 3, 4, 5])
    self.assertAllEqual(data['action'], [1, 2, 3, 4, 5])
    self.assertAllEqual(data['next']['reward'], [1, 2, 3, 4, 5])
    for key in 'done', 'terminated', 'truncated':
      self.assertFalse(data[key].any())
    end = [False] * 4 + [True]
    self.assertAllEqual(data['next']['done'], end)
    self.assertAllEqual(data['next']['terminated'], end)
    self.assertFalse(data['next']['truncated'].any())
    self.assertNotIn('reward', data)
    self.assertAllEqual(other.data['next']['truncated'], [0, 0, 1])
    self.assertFalse(other.data['next']['terminated'].any())

  @parameterized.named_parameters(*ways.ALL)
  def test_an_unfinished_tail_stays_unfinished(self, run):
    found = run(ted.to_ted, [_UNFINISHED])[0].data['next']
    self.assertFalse(found['done'].any() or found['truncated'].any())

  @parameterized.named_parameters(*ways.ALL)
  def test_there_and_back(self, run):
    def go(episode):
      return {form: ted.from_ted(ted.to_ted(episode, form)) for form in _FORMS}

    for steps, found in zip(_random_episodes(), run(go, _random_episodes())):
      for form in _FORMS:
        with self.subTest(form):
          contract.assert_equal(self, found[form]['steps'], steps)


class JoinTest(parameterized.TestCase, tf.test.TestCase):

  def test_as_torchrl_flattens(self):
    data = golden.stacked([contract.A, contract.B])
    found = ted.join_ted(data)
    for key, expected in _FLAT.items():
      self.assertAllEqual(found.data[key], expected)
    self.assertAllEqual(found.num_steps, [6, 4])

  def test_nested(self):
    data = golden.nested([contract.A, contract.B])
    found = ted.join_ted(data, 'nested').data
    self.assertAllEqual(
        found['observation'],
        tf.ragged.constant([[0, 1, 2, 3, 4, 5], [10, 11, 12, 13]]),
    )
    self.assertAllEqual(
        found['reward'], tf.ragged.constant([[1, 2, 3, 4, 5], [10, 20, 30]])
    )

  @parameterized.product(form=_FORMS, layout=(golden.stacked, golden.nested))
  def test_there_and_back(self, form, layout):
    data = _with_metadata(_random_episodes(), layout)
    back = ted.split_ted(ted.join_ted(data, form))
    _assert_episodes_equal(self, back, _with_metadata(_random_episodes()))

  @parameterized.parameters(*_FORMS)
  def test_a_nest_alone_has_zeros_in_the_last_step(self, form):
    episodes = [contract.A, contract.B, _UNFINISHED]
    data = ted.join_ted(golden.stacked(episodes), form).data
    found = list(ted.split_ted(data, form).as_numpy_iterator())
    self.assertLen(found, 3)
    for steps, episode in zip(episodes, found):
      expected = {**steps}
      for key in 'action', 'reward':
        expected[key] = np.append(steps[key][:-1], steps[key][-1:] * 0)
      contract.assert_equal(self, episode['steps'], expected)

  def test_in_a_graph(self):
    data = golden.stacked([contract.A, contract.B])
    joined = tf.function(lambda: ted.join_ted(data))()
    self.assertAllEqual(joined.data['reward'], _FLAT['reward'])
    back = tf.data.Dataset.from_tensors(joined).flat_map(ted.split_ted)
    _assert_episodes_equal(self, back, data)

  def test_no_episodes(self):
    data = golden.stacked([contract.A]).take(0)
    found = ted.join_ted(data)
    self.assertEqual(found.data['observation'].shape, [0])
    self.assertEmpty(list(ted.split_ted(found)))


class FromTedTest(tf.test.TestCase):

  def test_a_nest_of_torchrls_own(self):
    found = ted.from_ted(
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
    )['steps']
    self.assertAllEqual(found['pixels'], [[1], [2], [5]])
    self.assertAllEqual(found['action'], [3, 4, 0])
    self.assertAllEqual(found['reward'], [[1], [2], [0]])
    self.assertAllEqual(found['is_first'], [1, 0, 0])
    self.assertAllEqual(found['is_last'], [0, 0, 1])
    self.assertAllEqual(found['is_terminal'], [0, 0, 1])

  def test_without_next(self):
    data = ted.join_ted(golden.stacked([contract.A])).data
    with self.assertRaisesRegex(ValueError, 'in \'next\', but has .*"flat"'):
      ted.from_ted(data)
    with self.assertRaisesRegex(ValueError, 'where episodes end'):
      ted.from_ted({'observation': [1], 'next': {'observation': [2]}})
    with self.assertRaisesRegex(ValueError, "form 'flat', but form is 'nest"):
      ted.from_ted(data, 'nested')
    with self.assertRaisesRegex(ValueError, 'must be a dict'):
      ted.from_ted([1])

  def test_next_that_is_not_what_follows(self):
    data = ted.to_ted({'steps': contract.A}).data
    data['next']['observation'] = tf.constant([1.0, 2, 9, 4, 5])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, r'observation of a transition[^\d]*3'
    ):
      ted.from_ted(data)

  def test_several_episodes(self):
    joined = ted.join_ted(golden.stacked([contract.A, contract.B]))
    for given in (joined,), (joined.data, 'flat'):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'There must be one episode'
      ):
        ted.from_ted(*given)


class BadEpisodesTest(tf.test.TestCase):

  def test_flags(self):
    for name, sentence in (
        ('terminal_before_last', golden.TERMINAL_NOT_LAST),
        ('first_last_mid_last', golden.STEPS_AFTER_LAST),
    ):
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, sentence):
        ted.to_ted({'steps': golden.INVALID_CASES[name].episode})

  def test_fields(self):
    with self.assertRaisesRegex(ValueError, "RenameFields.*'done'"):
      ted.to_ted({'steps': {**contract.A, 'done': contract.A['is_last']}})
    with self.assertRaisesRegex(ValueError, 'no field is_last'):
      ted.to_ted({'steps': {'is_terminal': np.array([True])}})
    with self.assertRaisesRegex(ValueError, "dict with 'steps'"):
      ted.to_ted(contract.A)
    with self.assertRaisesRegex(ValueError, 'form must be one of'):
      ted.to_ted({'steps': contract.A}, 'flatt')


if __name__ == '__main__':
  tf.test.main()
