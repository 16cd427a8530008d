"""Tests of the pass over a data set, against numpy."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.jobs.descriptions import one_pass
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import compute
from tests import golden
from tests.jobs.descriptions import odd_data


def _stack(episodes, get, transitions=True):
  return np.concatenate(
      [
          get(episode)[: golden.length_of(episode) - transitions]
          for episode in episodes
      ]
  ).astype(np.float64)


class OnePassTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_numbers_are_those_of_numpy(self, form):
    # Enough episodes for several blocks, and short beside long ones.
    episodes = odd_data.clean(60) + [odd_data.make(7, 3000)]
    found = one_pass.read_once(form(episodes))
    self.assertEqual(found.num_read, 61)
    statistics = found.statistics
    action = _stack(episodes, lambda episode: episode['action'])
    self.assertAllClose(statistics.fields['action'].mean, action.mean(0), 1e-12)
    self.assertAllClose(statistics.fields['action'].std, action.std(0), 1e-12)
    self.assertAllEqual(statistics.fields['action'].max, action.max(0))
    position = _stack(
        episodes, lambda episode: episode['observation']['position'], False
    )
    self.assertAllEqual(
        statistics.fields['observation/position'].min, position.min(0)
    )
    self.assertEqual(statistics.num_steps, len(position))
    returns = np.array([episode['reward'][:-1].sum() for episode in episodes])
    self.assertAllClose(
        found.statistics.returns.quantile(0.25), np.quantile(returns, 0.25)
    )
    # Everything fits in the samples, in some order.
    self.assertAllClose(
        sorted(found.samples[accumulation_lib.RETURNS][0]), sorted(returns)
    )
    self.assertAllEqual(
        sorted(found.samples['action'][1]), sorted(action[:, 1])
    )
    self.assertAllClose(found.episodes['undiscounted_return'], returns)
    self.assertAllEqual(found.episodes['index'], np.arange(61))
    # The places of the least and the greatest numbers.
    for column, values in (
        (0, [episode['action'][:-1, 0] for episode in episodes]),
        (5, [episode['observation']['position'][:, 0] for episode in episodes]),
    ):
      for end, extreme in ((0, np.argmin), (1, np.argmax)):
        episode, step = found.extremes[end, column]
        self.assertEqual(step, extreme(values[episode]))
        self.assertEqual(
            values[episode][step],
            np.concatenate(values)[extreme(np.concatenate(values))],
        )

  def test_the_same_as_compute_statistics(self):
    data = golden.stacked(odd_data.clean(20))
    found = one_pass.read_once(data).statistics
    expected = compute.compute_statistics(data)
    self.assertEqual(found.num_terminal, expected.num_terminal)
    self.assertCountEqual(found.fields, expected.fields)
    for name, field in expected.fields.items():
      for key in ('mean', 'std', 'min', 'max', 'count'):
        self.assertAllClose(
            getattr(found.fields[name], key), getattr(field, key), 1e-12, 1e-12
        )

  def test_excerpts_are_rows_of_their_episodes(self):
    episodes = odd_data.clean(30) + [odd_data.make(7, 1000)]
    episodes[4]['observation']['position'][3, 1] = np.nan
    data = golden.stacked(episodes)
    findings = one_pass.read_once(data)
    found = findings.excerpts
    returns = np.array([episode['reward'][:-1].sum() for episode in episodes])
    best = np.argsort(returns)
    self.assertContainsSubset([*best[:3], *best[-3:], 30, 4], found)
    for index, excerpt in found.items():
      episode = episodes[index]
      length = golden.length_of(episode)
      self.assertEqual((excerpt.episode, excerpt.num_steps), (index, length))
      self.assertAllClose(excerpt.undiscounted_return, returns[index])
      self.assertEqual(excerpt.steps[[0, -1]].tolist(), [0, length - 1])
      self.assertGreaterEqual(len(excerpt.steps), min(length, 200))
      # The columns are in the order of the fields, the action's first.
      inside = excerpt.steps[:-1]
      self.assertAllEqual(excerpt.rows[:-1, :2], episode['action'][inside])
      self.assertAllEqual(excerpt.rows[-1, :2], [np.nan, np.nan])
    # The step of an extreme is there, though not all steps are.
    places = findings.extremes.reshape(-1, 2)
    self.assertIn(30, places[:, 0])
    self.assertLess(len(found[30].steps), 300)
    for episode, step in places:
      self.assertIn(step, found[episode].steps)
    again = one_pass.read_once(data).excerpts
    self.assertEqual(list(again), list(found))

  def test_a_length_that_is_known(self):
    episodes = [odd_data.make(index, 5) for index in range(3)]
    data = tf.data.Dataset.from_tensor_slices(
        {'steps': tf.nest.map_structure(lambda *all: np.stack(all), *episodes)}
    )
    found = one_pass.read_once(data).statistics
    self.assertEqual(found.num_steps, 15)
    self.assertAllEqual(
        found.fields['action'].max,
        _stack(episodes, lambda episode: episode['action']).max(0),
    )

  def test_lengths_that_differ(self):
    episode = odd_data.make(0)
    spec = {'steps': golden.stacked_spec(episode)}
    episode['action'] = episode['action'][:4]
    data = tf.data.Dataset.from_generator(
        lambda: iter([{'steps': episode}]), output_signature=spec
    )
    found = one_pass.read_once(data)
    self.assertEqual(found.checks.counts[0], 1)
    self.assertEqual(found.statistics.num_steps, 4)

  def test_arrays_of_the_user_stay_as_they_are(self):
    # TensorFlow may write into arrays that begin at a multiple of 64 bytes.
    def aligned(array):
      room = np.zeros(array.nbytes + 64, np.uint8)
      start = -room.ctypes.data % 64
      copy = room[start : start + array.nbytes].view(array.dtype)
      copy = copy.reshape(array.shape)
      copy[...] = array
      return copy

    episodes = odd_data.with_images()
    lent = [tf.nest.map_structure(aligned, episode) for episode in episodes]
    one_pass.read_once(golden.stacked(lent))
    for found, expected in zip(lent, episodes):
      tf.nest.map_structure(self.assertAllEqual, found, expected)

  def test_bad_arguments(self):
    data = golden.stacked([odd_data.make(0)])
    with self.assertRaisesRegex(ValueError, 'Did you mean action'):
      one_pass.read_once(data, bounds={'acton': one_pass.Bounds(0, 1, 'me')})
    with self.assertRaisesRegex(ValueError, 'observation cannot have bounds'):
      one_pass.read_once(
          data, bounds={'observation': one_pass.Bounds(0, 1, 'me')}
      )
    with self.assertRaisesRegex(ValueError, r'shape \(2,\), but low is'):
      one_pass.read_once(
          data, bounds={'action': one_pass.Bounds([0, 0, 0], 1, 'me')}
      )


if __name__ == '__main__':
  tf.test.main()
