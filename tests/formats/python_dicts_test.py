"""Tests for python_dicts and python_episodes."""

import itertools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import formats
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.formats import python_dicts
from tests.formats import expected


def _collected(num_transitions, base, *, terminal):
  """Returns an episode as a loop around an environment collects it."""
  values = base + np.arange(num_transitions + 1, dtype=np.float32)
  return {
      'observation': values[:, np.newaxis] * np.ones(3, np.float32),
      'action': 10 * values[:-1],
      'reward': 100.0 * np.arange(num_transitions),
      'is_terminal': terminal,
  }


_A = _collected(5, 0, terminal=True)
_B = _collected(3, 10, terminal=False)


class PythonEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  def test_steps(self):
    wanted = [
        expected.steps(
            one['observation'],
            one['action'],
            one['reward'],
            terminal=one['is_terminal'],
        )
        for one in (_A, _B)
    ]
    for episodes in [_A, _B], (_A, _B), lambda: iter([_A, _B]):
      rlds_data = python_dicts.from_episodes(episodes)
      for _ in range(2):
        expected.assert_read(self, rlds_data, wanted)

  def test_lists_of_rows_nests_text_and_infos(self):
    episode = {
        'observation': [
            {'text': f'step {step}', 'pose': (np.full(2, step), step)}
            for step in range(3)
        ],
        'action': [(0, b'a\0'), (1, b'')],
        'is_terminal': np.True_,
        'infos': [{'speed': 1.5}, {'speed': 2.5}],
        'state': np.arange(3),
        'absent': None,
    }
    wanted = expected.steps(
        {
            'text': np.array(['step 0', 'step 1', 'step 2']),
            'pose': (np.array([[0, 0], [1, 1], [2, 2]]), np.arange(3)),
        },
        (np.array([0, 1]), np.array([b'a\0', b''], object)),
        terminal=True,
        infos={'speed': np.array([1.5, 2.5])},
        state=np.arange(3),
    )
    expected.assert_read(self, python_dicts.from_episodes([episode]), [wanted])

  def test_function_is_read_lazily_and_in_order(self):
    created = []

    def collect():
      for index in itertools.count():
        created.append(index)
        yield _collected(10_000, index, terminal=False)

    rlds_data = python_dicts.from_episodes(collect)
    self.assertEqual(created, [0])
    created.clear()
    actual = [int(episode['episode_id']) for episode in rlds_data.take(40)]
    self.assertEqual(actual, [*range(40)])
    # 4 MB are 13 episodes, and some batches are read ahead.
    self.assertLess(len(created), 200)

  def test_short_episodes_share_batches_and_large_ones_do_not(self):
    large = _collected(400_000, 0, terminal=True)
    alone = _collected(0, 7, terminal=False)
    rlds_data = python_dicts.from_episodes([_A, alone, large, _B])
    self.assertEqual(rlds_data.cardinality(), 4)
    actual = list(episode_dataset.batches_of(rlds_data).as_numpy_iterator())
    self.assertEqual(
        [
            (b.row_splits.tolist(), b.fields['episode_id'].tolist())
            for b in actual
        ],
        [([0, 6, 7], [0, 1]), ([0, 400_001], [2]), ([0, 4], [3])],
    )
    self.assertAllEqual(actual[0].steps['observation'][6], [7, 7, 7])
    self.assertAllEqual(actual[0].steps['action'][6], 0)

  def test_source_arrays_are_not_modified(self):
    episode = _collected(1000, 0, terminal=True)
    copies = {key: np.copy(value) for key, value in episode.items()}
    rlds_data = python_dicts.from_episodes([episode])
    for actual in rlds_data.map(
        lambda episode: tf.nest.map_structure(
            lambda leaf: leaf + tf.cast(1, leaf.dtype),
            episode['steps']['observation'],
        )
    ):
      self.assertAllEqual(actual, copies['observation'] + 1)
    for key, value in copies.items():
      self.assertAllEqual(episode[key], value)

  def test_invalid_episodes_raise(self):
    longer = {**_A, 'action': np.zeros(6), 'reward': np.zeros(6)}
    for episodes, message in (
        (_A, 'iterable of dicts, or a function .*are a dict'),
        ('/data/a.hdf5', 'iterable of dicts, .*are a str'),
        (iter([_A]), 'only once. Pass a list, or the function that creates it'),
        (3, 'iterable of dicts, or a function .*are a int'),
        ([], 'There is no episode'),
        ([3], 'Episode 0, a int, has no observation'),
        ([{'obs': 1}], r"no observation and no action, but \['obs"),
        ([longer], '0 has 6 rows of observation, but 6 of actions: expected 7'),
        ([{**_A, 'infos': np.zeros(3)}], 'infos of episode 0 has 3 row'),
        ([{**_A, 'is_last': 1}], 'is_last, which is computed from'),
        ([{**_A, 'is_terminal': np.zeros(5)}], 'is_terminal must be one'),
        ([{**_A, 'x': [object()] * 5}], 'x has dtype object, so its values'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        python_dicts.from_episodes(episodes)

  @parameterized.parameters(
      ({'action': np.zeros(5, int)}, 'action of episode 1 are int64'),
      ({'observation': np.zeros((6, 2))}, r'float64 \(2,\), but in episode 0'),
      ({'more': np.zeros(5)}, "'more'.*, but episode 0 has"),
      ({'reward': np.zeros(4)}, 'Episode 1 has 4 rows of reward'),
  )
  def test_errors_while_iterating(self, changes, message):
    rlds_data = python_dicts.from_episodes([_A, {**_A, **changes}])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, message
    ) as raised:
      list(rlds_data)
    # A sentence, and nothing of TensorFlow's.
    self.assertRegex(
        str(raised.exception), r'^[A-Z][^:]* .*\. Found at episode 1\.$'
    )
    self.assertNotIn('{{', str(raised.exception))
    self.assertNotIn('\\', str(raised.exception))

  def test_missing_last_observation_needs_an_option(self):
    def collect():
      for length in 3, 2:
        yield {
            'observation': np.arange(length, dtype=np.float32)[:, None],
            'action': 1 + np.arange(length),
            'is_terminal': length == 2,
        }

    for data in collect, list(collect()):
      with self.assertRaisesRegex(
          ValueError,
          "Episode 0 has 3 rows of observation, .*last_observation='missing'",
      ):
        formats.load(data)
      first, second = (
          episode['steps']
          for episode in formats.load(data, last_observation='missing')
      )
      self.assertEqual(first['observation'].numpy().ravel().tolist(), [0, 1, 2])
      self.assertEqual(first['action'].numpy().tolist(), [1, 2, 3])
      self.assertEqual(
          second['observation'].numpy().ravel().tolist(), [0, 1, 0]
      )
      self.assertEqual(second['action'].numpy().tolist(), [1, 2, 0])
      self.assertEqual(
          second['is_terminal'].numpy().tolist(), [False, False, True]
      )
    with self.assertRaisesRegex(ValueError, "last_observation .*'missing'"):
      formats.load(collect, last_observation='mising')


if __name__ == '__main__':
  tf.test.main()
