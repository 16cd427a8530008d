"""Tests of normalising fields, and of undoing it."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import normalization as arrays
from rlds2reverb.statistics import compute
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import fields
from rlds2reverb.transforms import normalization
from tests import golden
from tests import ways


def _episodes():
  episodes = golden.random_episodes(np.random.default_rng(2), 6)
  for episode in episodes:
    episode['observation'][:, 1] = 7  # never varies
  return episodes


class NormalizeFieldTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_BATCHES)
  def test_worked_numbers(self, run):
    normalize = normalization.NormalizeField(
        'action', offset=[0.5, -0.5], scale=[2.0, 0.0], high=2.0
    )
    steps = run(normalize, [ways.FIVE])[0]['steps']
    self.assertAllEqual(steps['action'][:, 0], [0, 0.5, 1, 1.5, 2, 2])
    self.assertAllEqual(steps['action'][:, 1], [0, 1, 2, 2, 2, 2])
    self.assertEqual(steps['action'].dtype, np.float64)

  @parameterized.parameters((), (3,), (2, 3))
  def test_inverse_of_what_a_policy_gives(self, *leading):
    normalize = normalization.NormalizeField.between(
        'action/arm', [-2.0, 0.0], [2.0, 10.0]
    )
    arm = np.broadcast_to(np.float32([1, -1]), [*leading, 2])
    action = normalize.invert({'action': {'arm': arm, 'open': 1}})['action']
    self.assertAllEqual(action['arm'], np.broadcast_to([2, 0], [*leading, 2]))
    self.assertEqual(action['open'], 1)
    self.assertEqual(action['arm'].dtype, tf.float32)
    again = normalize.transform({'action': action})['action']['arm']
    self.assertAllEqual(again, arm)
    self.assertEqual(normalize.invert({'reward': 1}), {'reward': 1})

  def test_clip_of_bounds(self):
    normalize = normalization.NormalizeField.between('x', 0.0, 4.0, clip=True)
    steps = normalize.transform({'x': tf.constant([-9.0, 1.0, 9.0])})
    self.assertAllEqual(steps['x'], [-1, -0.5, 1])

  def test_bounds_of_small_integers(self):
    for low, high in (
        (np.int8([-128]), np.int8([127])),
        (np.uint8([100]), np.uint8([200])),
        (100, 200),
    ):
      normalize = normalization.NormalizeField.between('x', low, high)
      ends = np.float32([np.ravel(low)[0], np.ravel(high)[0]])[:, None]
      units = np.float32([[-1], [1]])
      self.assertAllClose(normalize.transform({'x': ends})['x'], units)
      self.assertAllClose(normalize.invert({'x': units})['x'], ends)

  @parameterized.parameters(-np.inf, np.nan)
  def test_bounds_that_are_not_finite(self, low):
    with self.assertRaisesRegex(ValueError, 'bounds of action must be finite'):
      normalization.NormalizeField.between('action', [low, 0.0], [1.0, 1.0])

  @parameterized.parameters(0.0, 1e-50, 1e-40)
  def test_a_scale_that_cannot_be_divided_by(self, scale):
    normalize = normalization.NormalizeField('x', offset=1.0, scale=scale)
    steps = {'x': tf.constant([1.0, 3.0])}
    for result in (
        normalize.transform(steps)['x'],
        tf.function(normalize.transform)(steps)['x'],
    ):
      self.assertAllEqual(result, [0, 2])
    self.assertAllEqual(
        normalize.invert({'x': tf.constant([0.0, 2.0])})['x'], [1, 3]
    )

  def test_equal_where_the_numbers_are(self):
    def make(offset=(1.0, 2.0), field='x'):
      return normalization.NormalizeField(field, offset=np.array(offset))

    self.assertEqual(make(), make())
    self.assertEqual(make([1, np.nan]), make([1, np.nan]))
    self.assertEqual(make(), normalization.NormalizeField('x', [1.0, 2.0]))
    self.assertEqual(hash(make()), hash(make()))
    for other in (
        make([1, 3]),
        make([1, 2, 3]),
        make(field='y'),
        fields.ClipField('x'),
    ):
      self.assertNotEqual(make(), other)
    self.assertLen({make(), make(), make([1, 3])}, 2)
    compose = [applying.Compose([make(), make([2, 2])]) for _ in range(2)]
    self.assertEqual(*compose)
    self.assertLen(set(compose), 1)
    self.assertNotEqual(compose[0], applying.Compose([make()]))

  def test_integers_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'action is int64. Only floats'):
      golden.stacked([golden.COMPLETE]).map(
          normalization.NormalizeField('action')
      )


class MaskTest(tf.test.TestCase, parameterized.TestCase):
  """Against the formulas of Octo and OpenVLA, in numpy."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    rng = np.random.default_rng(1)
    cls.episodes = []
    for length in (30, 2, 100):
      episode = golden.make_episode([1.0] * length, terminal=True)
      action = rng.normal(3.0, 2.0, (length, 4)).astype(np.float32)
      action[:, 1] = 5  # never varies
      action[:, 3] = rng.integers(0, 2, length)  # the gripper
      cls.episodes.append({**episode, 'action': action})
    cls.statistics = compute.compute_statistics(
        golden.stacked(cls.episodes), ['action'], quantiles=[0.01, 0.99]
    )
    cls.actions = np.concatenate(
        [e['action'][:-1] for e in cls.episodes]
    ).astype(np.float64)
    cls.mask = np.array([True, True, True, False])

  def _check(self, run, normalize, expected, *, is_clipped=False):
    for result, episode in zip(run(normalize, self.episodes), self.episodes):
      action = episode['action']
      found = result['steps']['action']
      self.assertEqual(found.dtype, np.float32)
      self.assertAllClose(found, expected(action), 1e-5, 1e-5)
      self.assertAllEqual(found[:, 3], action[:, 3])
      back = normalize.invert({'action': found})['action']
      inside = np.abs(found) < 1 if is_clipped else found == found
      self.assertAllClose(
          np.where(inside, back, 0), np.where(inside, action, 0)
      )

  @parameterized.named_parameters(*ways.WITH_BATCHES)
  def test_octos_normal(self, run):
    mean, std = self.actions.mean(0), self.actions.std(0)
    self._check(
        run,
        normalization.normalize_by_statistics(
            self.statistics, 'action', mask=self.mask
        ),
        lambda x: np.where(self.mask, (x - mean) / (std + 1e-8), x),
    )

  @parameterized.named_parameters(*ways.WITH_BATCHES)
  def test_openvlas_bounds_q99(self, run):
    low, high = np.quantile(self.actions, [0.01, 0.99], axis=0)

    def expected(x):
      scaled = np.clip(2 * (x - low) / (high - low + 1e-8) - 1, -1, 1)
      constant = self.actions.min(0) == self.actions.max(0)
      return np.where(constant, 0, np.where(self.mask, scaled, x))

    self._check(
        run,
        normalization.normalize_by_statistics(
            self.statistics, 'action', 'quantiles', mask=self.mask
        ),
        expected,
        is_clipped=True,
    )

  def test_bounds_of_one_leaf(self):
    normalize = normalization.NormalizeField.between(
        'x', 0.0, 4.0, mask=[True, False]
    )
    x = tf.constant([[1.0, 9.0]])
    self.assertAllEqual(normalize.transform({'x': x})['x'], [[-0.5, 9]])
    self.assertAllEqual(normalize.invert({'x': x})['x'], [[4, 9]])

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, 'mask of x must be bools.*0, 1'):
      normalization.NormalizeField('x', mask=[0, 1])
    with self.assertRaisesRegex(ValueError, r'shape \(3,\), which .* \(2,\)'):
      normalization.NormalizeField('x', mask=[True, False]).transform(
          {'x': tf.zeros([3])}
      )


class FromStatisticsTest(tf.test.TestCase, parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.episodes = _episodes()
    cls.statistics = compute.compute_statistics(
        golden.stacked(cls.episodes), quantiles=[0.1, 0.9]
    )

  @parameterized.named_parameters(*ways.WITH_BATCHES)
  def test_mean_and_deviation(self, run):
    normalize = normalization.normalize_by_statistics(
        self.statistics, 'observation'
    )
    results = run(normalize, self.episodes)
    rows = np.concatenate([e['observation'] for e in self.episodes])
    mean, std = rows.mean(0), rows.std(0)
    std[1] = 1
    for result, episode in zip(results, self.episodes):
      steps = result['steps']
      self.assertAllClose(
          steps['observation'], (episode['observation'] - mean) / std, 1e-5
      )
      self.assertAllEqual(steps['observation'][:, 1], 0 * episode['reward'])
      self.assertAllClose(
          normalize.invert({'observation': steps['observation']})[
              'observation'
          ],
          episode['observation'],
      )
      self.assertAllEqual(steps['action'], episode['action'])

  @parameterized.parameters(True, False)
  def test_quantiles(self, clip):
    normalize = normalization.normalize_by_statistics(
        self.statistics, 'action', 'quantiles', levels=(0.1, 0.9), clip=clip
    )
    rows = np.concatenate([e['action'][:-1] for e in self.episodes])
    low, high = np.quantile(rows, [0.1, 0.9], axis=0)
    for episode in self.episodes:
      expected = (episode['action'] - low) / (high - low) * 2 - 1
      if clip:
        expected = np.clip(expected, -1, 1)
      self.assertAllClose(
          normalize.transform(episode)['action'], expected, 1e-5
      )

  def test_minimum_and_maximum_are_quantiles(self):
    normalize = normalization.normalize_by_statistics(
        self.statistics, 'action', 'bounds'
    )
    actions = [
        normalize.transform(e)['action'][:-1].numpy() for e in self.episodes
    ]
    self.assertAllClose(np.concatenate(actions).max(0), [1, 1])
    self.assertAllClose(np.concatenate(actions).min(0), [-1, -1])

  def test_nested_floats_only(self):
    episodes = golden.random_episodes(
        np.random.default_rng(0), 3, nested_fields=True
    )
    found = compute.compute_statistics(golden.stacked(episodes))
    with self.assertLogs('absl', 'WARNING') as logs:
      normalize = normalization.normalize_by_statistics(found, 'observation')
    self.assertLen(logs.output, 1)
    self.assertIn('not floats: observation/', logs.output[0])
    self.assertIsInstance(normalize, applying.Compose)
    self.assertEqual(
        [part.field for part in normalize.transforms],
        [
            'observation/camera/pose/0',
            'observation/camera/pose/1/joint',
            'observation/state/1',
        ],
    )
    dataset = golden.stacked(episodes).map(normalize)
    result = next(dataset.as_numpy_iterator())['steps']['observation']
    self.assertAllEqual(
        result['state'][0], episodes[0]['observation']['state'][0]
    )

  def test_only_integers(self):
    episodes = [{**ways.FIVE, 'action': np.arange(6)[:, None]}]
    found = compute.compute_statistics(golden.stacked(episodes))
    for kind in arrays.KINDS:
      with self.assertRaisesRegex(
          ValueError, r'Only floats .* action \(int64\). Cast'
      ):
        normalization.normalize_by_statistics(found, 'action', kind)

  def test_what_there_is_not(self):
    with self.assertRaisesRegex(ValueError, 'no statistics of image'):
      normalization.normalize_by_statistics(self.statistics, 'image')
    with self.assertRaisesRegex(ValueError, r'quantile 0.01 was not computed'):
      normalization.normalize_by_statistics(
          self.statistics, 'action', 'quantiles'
      )

  def test_statistics_of_nothing(self):
    one_step = compute.compute_statistics(
        golden.stacked([golden.SINGLE_TERMINAL])
    )
    none = compute.compute_statistics(
        golden.stacked([ways.FIVE]).filter(lambda episode: False)
    )
    # It has an observation.
    normalization.normalize_by_statistics(one_step, 'observation')
    for statistics, field, message in (
        (one_step, 'reward', 'reward cannot .* 1 episodes, with 0 trans'),
        (none, 'observation', 'observation cannot .* 0 episodes'),
    ):
      for kind in arrays.KINDS:
        with self.assertRaisesRegex(ValueError, message):
          normalization.normalize_by_statistics(statistics, field, kind)


if __name__ == '__main__':
  tf.test.main()
