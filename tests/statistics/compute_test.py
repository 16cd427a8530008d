"""Tests of statistics against those that numpy computes of all data."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import data_sets
from rlds2reverb.statistics import compute
from tests import golden
from tests import ways

_LEVELS = [0.0, 0.2, 0.5, 1.0]


def _column(episodes, get, transitions):
  rows = []
  for episode in episodes:
    for step in range(golden.length_of(episode) - transitions):
      rows.append(get(episode)[step])
  return np.array(rows, np.float64)


class StatisticsTest(tf.test.TestCase, parameterized.TestCase):

  def _assert_field(self, found, rows, levels=()):
    self.assertAllClose(found.mean, rows.mean(0), 1e-12, 1e-12)
    self.assertAllClose(found.std, rows.std(0), 1e-12, 1e-12)
    self.assertAllEqual(found.min, rows.min(0))
    self.assertAllEqual(found.max, rows.max(0))
    self.assertAllEqual(found.count, np.full(rows.shape[1:], len(rows)))
    self.assertAllEqual(found.not_finite, np.zeros(rows.shape[1:]))
    for level in levels:
      self.assertAllClose(
          found.quantile(level), np.quantile(rows, level, axis=0)
      )
      self.assertEqual(found.quantile(level).shape, rows.shape[1:])

  @parameterized.named_parameters(*golden.FORMS_AND_BATCHES.items())
  def test_worked_episodes(self, form):
    found = compute.compute_statistics(form([ways.FIVE, ways.THREE]))
    self.assertEqual(
        (found.num_episodes, found.num_steps, found.num_transitions),
        (2, 10, 8),
    )
    self.assertEqual((found.num_terminal, found.num_truncated), (1, 1))
    self._assert_field(found.returns, np.array([15.0, 60.0]), [0.5])
    self._assert_field(found.lengths, np.array([5.0, 3.0]), [0.5])
    self._assert_field(
        found.fields['reward'], np.array([1.0, 2, 3, 4, 5, 10, 20, 30])
    )
    # All ten observations count, but not the last action of an episode.
    self.assertEqual(found.fields['observation'].max, 13)
    self.assertAllEqual(found.fields['action'].max, [12.5, 11.5])
    self.assertEqual(found.fields['observation'].dtype, 'float32')
    self.assertCountEqual(
        found.fields, ['observation', 'action', 'reward', 'discount']
    )

  @parameterized.named_parameters(*golden.FORMS_AND_BATCHES.items())
  def test_random_nested_episodes(self, form):
    episodes = golden.random_episodes(
        np.random.default_rng(0), 9, nested_fields=True
    )
    found = compute.compute_statistics(form(episodes), quantiles=_LEVELS)
    fields = {
        'observation/camera/rgb': lambda e: e['observation']['camera']['rgb'],
        'observation/camera/pose/0': (
            lambda e: e['observation']['camera']['pose'][0]
        ),
        'observation/camera/pose/1/joint': (
            lambda e: e['observation']['camera']['pose'][1]['joint']
        ),
        'observation/state/0': lambda e: e['observation']['state'][0],
        'observation/state/1': lambda e: e['observation']['state'][1],
        'action/0/gripper': lambda e: e['action'][0]['gripper'],
        'action/2': lambda e: e['action'][2],
        'reward': lambda e: e['reward'],
        'discount': lambda e: e['discount'],
    }
    self.assertCountEqual(found.fields, fields)
    for name, get in fields.items():
      with self.subTest(name):
        rows = _column(episodes, get, not name.startswith('observation'))
        self._assert_field(found.fields[name], rows, _LEVELS)
    self.assertEqual(
        found.num_terminal, sum(e['is_terminal'][-1] for e in episodes)
    )
    self.assertEqual(found.num_truncated, 9 - found.num_terminal)
    returns = [e['reward'][:-1].sum() for e in episodes]
    self._assert_field(found.returns, np.array(returns), _LEVELS)

  def test_many_blocks(self):
    # More rows than a block has, whose mean is far greater than they vary: in
    # float32, or by the sum of squares, nothing of the deviation is left.
    rng = np.random.default_rng(0)
    count = 3 * 4096 + 5
    value = (1e6 + rng.normal(size=count)).astype(np.float32)
    episode = {
        **ways.make(np.zeros(count), np.zeros(count - 1), terminal=False),
        'observation': value,
    }
    pieces = [
        tf.nest.map_structure(lambda leaf: leaf[start : start + 1000], episode)
        for start in range(0, count, 1000)
    ]
    found = compute.compute_statistics(
        golden.stacked(pieces), ['observation'], sample_size=1000
    )
    self.assertEqual(list(found.fields), ['observation'])
    rows = value.astype(np.float64)
    self._assert_field(found.fields['observation'], rows)
    # Four standard errors, in rank.
    for level, number in found.fields['observation'].quantiles.items():
      rank = (rows < number).mean()
      error = np.sqrt(level * (1 - level) / 1000)
      self.assertBetween(rank, level - 4 * error, level + 4 * error)

  def test_not_finite(self):
    episode = dict(
        ways.FIVE, observation=np.float32([1, np.nan, np.inf, 3, 5, 3])
    )
    episode['action'] = np.full([6, 1], np.nan)
    found = compute.compute_statistics(golden.stacked([episode])).fields
    self.assertEqual(found['observation'].mean, 3)
    self.assertEqual(found['observation'].max, 5)
    self.assertEqual(found['observation'].quantile(0.5), 3)
    self.assertEqual(found['observation'].count, 4)
    self.assertEqual(found['observation'].not_finite, 2)
    self.assertAllEqual(found['action'].mean, [np.nan])
    self.assertAllEqual(found['action'].quantile(0.5), [np.nan])
    self.assertAllEqual(found['action'].not_finite, [5])

  def test_images_and_strings_are_not_looked_at(self):
    episode = dict(
        ways.FIVE,
        observation={
            'image': np.zeros([6, 64, 64, 3], np.uint8),
            'png': np.array([b'no image'] * 6, object),
            'state': np.arange(6.0),
        },
    )
    found = compute.compute_statistics(golden.nested([episode]))
    self.assertContainsSubset(['observation/state'], found.fields)
    self.assertNotIn('observation/image', found.fields)
    self.assertNotIn('observation/png', found.fields)
    named = compute.compute_statistics(
        golden.nested([episode]), ['observation/image']
    )
    self.assertEqual(named.fields['observation/image'].mean.shape, (64, 64, 3))
    with self.assertRaisesRegex(ValueError, 'observation/png must have'):
      compute.compute_statistics(golden.nested([episode]), ['observation'])

  def test_fields_of_unknown_shape_are_left_out(self):
    found = compute.compute_statistics(
        golden.with_unused_fields(golden.nested([golden.COMPLETE]))
    )
    self.assertNotIn('points', found.fields)
    self.assertEqual(found.num_steps, 4)

  def test_one_episode_of_one_step_and_one_of_none(self):
    none = tf.nest.map_structure(lambda leaf: leaf[:0], golden.COMPLETE)
    found = compute.compute_statistics(
        golden.nested([none, golden.SINGLE_TERMINAL])
    )
    self.assertEqual((found.num_episodes, found.num_steps), (1, 1))
    self.assertEqual((found.num_transitions, found.num_terminal), (0, 1))
    self.assertEqual(found.returns.mean, 0)
    self.assertAllEqual(found.fields['reward'].mean, np.nan)
    self.assertAllEqual(found.fields['observation'].std, [0, 0])

  @parameterized.parameters(1, 4, 100)
  def test_batches_give_the_same_to_the_last_bit(self, batch_size):
    episodes = golden.random_episodes(
        np.random.default_rng(0), 20, max_length=50
    )
    none = tf.nest.map_structure(lambda leaf: leaf[:0], episodes[0])
    episodes = [none, none, *episodes, none]
    episodes[5] = tf.nest.map_structure(np.copy, episodes[5])
    episodes[5]['observation'][0] = np.nan
    episodes[5]['reward'][-1] = np.nan  # It has no meaning.
    data = golden.batched(episodes, batch_size=batch_size)
    # The sample holds neither all steps nor all episodes.
    expected, found = (
        compute.compute_statistics(one, sample_size=15)
        for one in (data.map(lambda episode: episode), data)
    )
    self.assertEqual(found, expected)
    self.assertEqual(found.num_episodes, 20)
    rows = np.concatenate([one['reward'][:-1] for one in episodes])
    self._assert_field(found.fields['reward'], rows.astype(np.float64))
    returns = [
        one['reward'][:-1].astype(np.float64).sum() for one in episodes[2:-1]
    ]
    self.assertAllClose(found.returns.mean, np.mean(returns), 1e-12, 1e-12)
    self.assertAllClose(found.returns.std, np.std(returns), 1e-12, 1e-12)
    self.assertAllEqual(found.fields['observation'].not_finite, [1, 1, 1])

  def test_batches_are_read_where_there_are_any(self):
    data = data_sets.Episodes(
        golden.stacked([ways.FIVE]),
        data_sets.batches_of(golden.batched([ways.THREE])),
    )
    self.assertEqual(compute.compute_statistics(data).num_transitions, 3)

  def test_no_episodes(self):
    nothing = {name: leaf[:0] for name, leaf in ways.FIVE.items()}
    for episodes in [], [nothing, nothing]:
      spec = golden.stacked_spec(ways.FIVE)
      found = compute.compute_statistics(golden.batched(episodes, spec))
      self.assertEqual((found.num_episodes, found.num_steps), (0, 0))
      self.assertAllEqual(found.fields['action'].mean, [np.nan] * 2)

  @parameterized.parameters('action', 'is_last', 'unused')
  def test_an_episode_of_unequal_lengths(self, field):
    wrong = {**ways.THREE, 'unused': np.zeros(4)}
    wrong[field] = wrong[field][:1]
    data = golden.batched([{**ways.FIVE, 'unused': np.zeros(6)}, wrong])
    messages = []
    for one in data, data.map(lambda episode: episode):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          rf'must have a row for every step.*{field}:\] \[1\]',
      ) as e:
        compute.compute_statistics(one, ['observation'])
      messages.append(str(e.exception).split('assertion failed')[1])
    self.assertEqual(*(one.split('\n')[0] for one in messages))

  def test_bad_arguments(self):
    rlds_data = golden.stacked([golden.COMPLETE])
    with self.assertRaisesRegex(ValueError, 'Did you mean observation'):
      compute.compute_statistics(rlds_data, ['observations'])
    with self.assertRaisesRegex(ValueError, r"Write \['reward'\]"):
      compute.compute_statistics(rlds_data, 'reward')
    with self.assertRaisesRegex(ValueError, r'quantiles in \[0, 1\]'):
      compute.compute_statistics(rlds_data, quantiles=[1.5])
    with self.assertRaisesRegex(ValueError, 'sample_size must be positive'):
      compute.compute_statistics(rlds_data, sample_size=0)


if __name__ == '__main__':
  tf.test.main()
