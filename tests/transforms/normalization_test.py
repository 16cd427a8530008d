"""Holds normalisation, and its inverse, to formulas in numpy."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import normalization as arrays
from rlds2reverb.statistics import compute
from rlds2reverb.transforms import normalization
from tests import golden
from tests import ways

_FIELD = normalization.NormalizeField
_MASK = np.array([True, True, True, False])


def _episodes():
  """Returns episodes of actions of which one number never varies."""
  rng = np.random.default_rng(1)
  episodes = []
  for length in (30, 2, 100):
    action = rng.normal(3.0, 2.0, (length, 4)).astype(np.float32)
    action[:, 1] = 5
    action[:, 3] = rng.integers(0, 2, length)  # the gripper
    episode = golden.make_episode([1.0] * length, terminal=True)
    episodes.append({**episode, 'action': action})
  return episodes


class NormalizeFieldTest(tf.test.TestCase, parameterized.TestCase):

  def test_worked_numbers(self):
    normalize = _FIELD('action', [0.5, -0.5], [2.0, 0.0], high=2.0)
    action = normalize.transform(ways.FIVE)['action']
    expected = [[0, 0.5, 1, 1.5, 2, 2], [0, 1, 2, 2, 2, 2]]
    self.assertAllEqual(action, np.transpose(expected))
    self.assertEqual(action.dtype, tf.float64)

  def test_inverse_of_what_a_policy_gives(self):
    normalize = _FIELD.between('action/arm', [-2.0, 0.0], [2.0, 10.0])
    for leading in (), (3,), (2, 3):
      arm = np.broadcast_to(np.float32([1, -1]), [*leading, 2])
      action = normalize.invert({'action': {'arm': arm, 'open': 1}})['action']
      self.assertAllEqual(action['arm'], np.broadcast_to([2, 0], arm.shape))
      self.assertEqual(action['open'], 1)
      self.assertEqual(action['arm'].dtype, tf.float32)
      again = normalize.transform({'action': action})['action']['arm']
      self.assertAllEqual(again, arm)
    self.assertEqual(normalize.invert({'reward': 1}), {'reward': 1})

  @parameterized.parameters(
      (0.0, 4.0),
      (np.int8([-128]), np.int8([127])),
      (np.uint8([100]), np.uint8([200])),
      (100, 200),
  )
  def test_bounds(self, low, high):
    normalize = _FIELD.between('x', low, high)
    ends = np.float32([np.ravel(low)[0], np.ravel(high)[0]])[:, None]
    units = np.float32([[-1], [1]])
    self.assertAllClose(normalize.transform({'x': ends})['x'], units)
    beyond = ends + [[-9], [9]]
    self.assertAllClose(normalize.transform({'x': beyond})['x'], units)
    self.assertAllClose(normalize.invert({'x': units})['x'], ends)

  @parameterized.parameters(0.0, 1e-50, 1e-40)
  def test_a_scale_that_cannot_be_divided_by(self, scale):
    normalize = _FIELD('x', offset=1.0, scale=scale)
    steps = {'x': tf.constant([1.0, 3.0])}
    for change in normalize.transform, tf.function(normalize.transform):
      self.assertAllEqual(change(steps)['x'], [0, 2])
    found = normalize.invert({'x': tf.constant([0.0, 2.0])})['x']
    self.assertAllEqual(found, [1, 3])

  @parameterized.parameters(
      (lambda: _FIELD.between('x', [-np.inf, 0.0], 1.0), 'x must be finite'),
      (lambda: _FIELD.between('x', np.nan, 1.0), 'bounds of x must be finite'),
      (
          lambda: _FIELD('x', mask=[True, False]).transform(
              {'x': tf.zeros([3])}
          ),
          r'shape \(3,\), which .* \(2,\)',
      ),
      (
          lambda: golden.stacked([golden.COMPLETE]).map(_FIELD('action')),
          'action is int64. Only floats',
      ),
  )
  def test_errors(self, make, message):
    with self.assertRaisesRegex(ValueError, message):
      make()


class FromStatisticsTest(tf.test.TestCase, parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.statistics = compute.compute_statistics(
        golden.stacked(_episodes()), quantiles=[0.01, 0.1, 0.9, 0.99]
    )

  @parameterized.parameters(*arrays.KINDS)
  def test_as_octo_and_openvla(self, kind):
    mask = None if kind == arrays.BOUNDS else _MASK
    x = np.concatenate([e['action'][:-1] for e in _episodes()])
    x = x.astype(np.float64)
    if kind == arrays.MEAN_STD:
      low, span, shift = x.mean(0), x.std(0), 0
    else:
      levels = (0.01, 0.99) if kind == arrays.QUANTILES else (0, 1)
      low, high = np.quantile(x, levels, axis=0)
      span, shift = (high - low) / 2, 1
    normalize = normalization.normalize_by_statistics(
        self.statistics, 'action', kind, mask=mask
    )
    run = dict(ways.WITH_BATCHES)['batched']
    for made, episode in zip(run(normalize, _episodes()), _episodes()):
      action, found = episode['action'], made['steps']['action']
      expected = (action - low) / (span + 1e-8) - shift
      if shift:
        expected = expected.clip(-1, 1)
      # A number that never varies becomes 0, and all come back.
      expected[:, 1] = 0
      if mask is not None:
        expected[:, 3] = action[:, 3]
      self.assertEqual(found.dtype, np.float32)
      self.assertAllClose(found, expected, 1e-5, 1e-5)
      back = normalize.invert({'action': found})['action']
      inside = (np.abs(found) < 1) | (shift == 0)
      back, action = (np.where(inside, one, 0) for one in (back, action))
      self.assertAllClose(back, action)

  def test_levels_and_no_clip(self):
    normalize = normalization.normalize_by_statistics(
        self.statistics, 'action', 'quantiles', levels=(0.1, 0.9), clip=False
    )
    rows = np.concatenate([e['action'][:-1] for e in _episodes()])
    low, high = np.quantile(rows[:, 0], [0.1, 0.9])
    found = normalize.transform({'action': rows})['action'][:, 0]
    expected = (rows[:, 0] - low) / (high - low) * 2 - 1
    self.assertAllClose(found, expected, 1e-5, 1e-5)

  def test_nested_floats_only(self):
    episodes = golden.random_episodes(
        np.random.default_rng(0), 3, nested_fields=True
    )
    found = compute.compute_statistics(golden.stacked(episodes))
    with self.assertLogs('absl', 'WARNING') as logs:
      normalize = normalization.normalize_by_statistics(found, 'observation')
    self.assertLen(logs.output, 1)
    self.assertIn('not floats: observation/', logs.output[0])
    names = ['camera/pose/0', 'camera/pose/1/joint', 'state/1']
    self.assertEqual(
        [part.field for part in normalize.transforms],
        [f'observation/{name}' for name in names],
    )

  def test_what_there_is_not(self):
    steps = {**ways.FIVE, 'action': np.arange(6)[:, None]}
    integers = golden.stacked([steps])
    single = golden.stacked([golden.SINGLE_TERMINAL])
    nothing = golden.stacked([ways.FIVE]).filter(lambda episode: False)
    for data, field, message in (
        (integers, 'action', r'Only floats .* action \(int64\). Cast'),
        (single, 'reward', 'reward cannot .* 1 episodes, with 0 trans'),
        (nothing, 'observation', 'observation cannot .* 0 episodes'),
        (single, 'image', 'no statistics of image'),
    ):
      found = compute.compute_statistics(data, quantiles=[0.01, 0.99])
      for kind in arrays.KINDS:
        with self.assertRaisesRegex(ValueError, message):
          normalization.normalize_by_statistics(found, field, kind)
    with self.assertRaisesRegex(ValueError, 'quantile 0.2 was not computed'):
      normalization.normalize_by_statistics(
          self.statistics, 'action', 'quantiles', levels=(0.2, 0.9)
      )


if __name__ == '__main__':
  tf.test.main()
