"""Holds normalisation, and its inverse, to formulas in numpy."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import normalization as arrays
from rlds2reverb.statistics import compute
from rlds2reverb.transforms import normalization
from tests import call_modes
from tests import golden

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

  def test_transform_equals_formula_and_is_inverted(self):
    offset, mask = [0.5, -1.0, 0.0, 1.0], [True, True, True, False]
    for dtype, tiny in (np.float16, 1), (np.float32, 1), (np.float64, 1e-50):
      x = np.random.default_rng(2).normal(size=[2, 4]).astype(dtype)
      # A scale that the dtype cannot divide by counts as 1.
      scale, divisor = [2.0, 0.0, 1e-50, 2.0], np.array([2, 1, tiny, 2])
      plain = (x - offset) / divisor
      for bounds in (None, None), (-0.5, None), (-0.5, 0.75):
        normalize = _FIELD('a/arm', offset, scale, *bounds, mask)
        clipped = plain.clip(*bounds) if any(bounds) else plain
        expected = np.where(mask, clipped, x)
        steps = {'a': {'arm': x, 'open': 1}, 'b': 2}
        for change in normalize.transform, tf.function(normalize.transform):
          actual = change(steps)
          self.assertAllClose(actual['a']['arm'], expected, 1e-2, 1e-2)
          self.assertEqual(actual['a']['arm'].dtype, dtype)
        back = normalize.invert(actual)
        back_in = np.where(clipped == plain, back['a']['arm'], x)
        self.assertAllClose(back_in, x, 1e-2, 1e-2)
        self.assertEqual([back['a']['open'], back['b']], [1, 2])
    self.assertEqual(normalize.invert({'reward': 1}), {'reward': 1})

  @parameterized.parameters(
      (0.0, 4.0),
      (np.int8([-128]), np.int8([127])),
      (np.uint8([100]), np.uint8([200])),
  )
  def test_bounds(self, low, high):
    normalize = _FIELD.between('x', low, high)
    ends = np.float32([np.ravel(low)[0], np.ravel(high)[0]])[:, None]
    units = np.float32([[-1], [1]])
    beyond = ends + [[-9], [9]]
    for x in ends, beyond:
      self.assertAllClose(normalize.transform({'x': x})['x'], units)
    self.assertAllClose(normalize.invert({'x': units})['x'], ends)

  @parameterized.parameters(
      (lambda: _FIELD.between('x', [-np.inf, 0.0], 1.0), 'x must be finite'),
      (lambda: _FIELD.between('x', np.nan, 1.0), 'bounds of x must be finite'),
  )
  def test_invalid_bounds_raise(self, make, message):
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
  def test_normalization_equals_octo_and_openvla(self, kind):
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
    for episode in _episodes():
      action = episode['action']
      actual = normalize.transform(episode)['action'].numpy()
      expected = (action - low) / (span + 1e-8) - shift
      if shift:
        expected = expected.clip(-1, 1)
      # A number that never varies becomes 0, and all come back.
      expected[:, 1] = 0
      if mask is not None:
        expected[:, 3] = action[:, 3]
      self.assertEqual(actual.dtype, np.float32)
      self.assertAllClose(actual, expected, 1e-5, 1e-5)
      back = normalize.invert({'action': actual})['action']
      inside = (np.abs(actual) < 1) | (shift == 0)
      back, action = (np.where(inside, one, 0) for one in (back, action))
      self.assertAllClose(back, action)

  def test_quantile_levels_without_clipping(self):
    normalize = normalization.normalize_by_statistics(
        self.statistics, 'action', 'quantiles', levels=(0.1, 0.9), clip=False
    )
    rows = np.concatenate([e['action'][:-1] for e in _episodes()])
    low, high = np.quantile(rows[:, 0], [0.1, 0.9])
    actual = normalize.transform({'action': rows})['action'][:, 0]
    expected = (rows[:, 0] - low) / (high - low) * 2 - 1
    self.assertAllClose(actual, expected, 1e-5, 1e-5)

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

  def test_missing_statistics_raise(self):
    steps = {**call_modes.FIVE, 'action': np.arange(6)[:, None]}
    integers = golden.stacked([steps])
    single = golden.stacked([golden.SINGLE_TERMINAL])
    nothing = golden.stacked([call_modes.FIVE]).filter(lambda episode: False)
    for data, field, message in (
        (integers, 'action', r'Only floats .* action \(int64\). Cast'),
        (single, 'reward', 'reward cannot .* 1 episodes with 0 trans'),
        (nothing, 'observation', 'observation cannot .* 0 episodes'),
    ):
      found = compute.compute_statistics(data, [field], quantiles=[0.01, 0.99])
      for kind in arrays.KINDS:
        with self.assertRaisesRegex(ValueError, message):
          normalization.normalize_by_statistics(found, field, kind)
    with self.assertRaisesRegex(ValueError, 'no statistics of image'):
      normalization.normalize_by_statistics(self.statistics, 'image')
    with self.assertRaisesRegex(ValueError, 'quantile 0.2 was not computed'):
      normalization.normalize_by_statistics(
          self.statistics, 'action', 'quantiles', levels=(0.2, 0.9)
      )


if __name__ == '__main__':
  tf.test.main()
