"""Tests of scaling rewards."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.transforms import rewards
from tests import golden
from tests import ways


class RewardTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_scale_then_shift_then_clip(self, run):
    transform = rewards.ScaleReward(0.5, 1.0, minimum=2.0, maximum=10.0)
    results = [e['steps'] for e in run(transform, [ways.FIVE, ways.THREE])]
    self.assertAllEqual(results[0]['reward'], [2, 2, 2.5, 3, 3.5, 10])
    self.assertAllEqual(results[1]['reward'], [6, 10, 10, 10])
    for steps, episode in zip(results, [ways.FIVE, ways.THREE]):
      self.assertEqual(steps['reward'].dtype, np.float32)
      golden.assert_frames_equal(
          self, [{**steps, 'reward': 0}], [{**episode, 'reward': 0}]
      )

  @parameterized.parameters(np.float16, np.float32, np.float64)
  def test_dtype_and_inverse(self, dtype):
    transform = rewards.ScaleReward(4.0, -3.0)
    reward = tf.constant(np.arange(5), dtype)
    scaled = transform.transform({'reward': reward})['reward']
    self.assertAllEqual(scaled, 4 * np.arange(5) - 3)
    self.assertEqual(scaled.dtype, reward.dtype)
    inverse = transform.invert({'reward': scaled})['reward']
    self.assertAllEqual(inverse, reward)
    self.assertEqual(inverse.dtype, reward.dtype)
    self.assertEqual(transform.invert({'action': 1}), {'action': 1})

  def test_integer_reward(self):
    reward = {'reward': tf.constant([[-7], [0], [7]], tf.int32)}
    clipped = rewards.ScaleReward(minimum=-1, maximum=1).transform(reward)
    self.assertAllEqual(clipped['reward'], [[-1], [0], [1]])
    self.assertEqual(clipped['reward'].dtype, tf.int32)
    with self.assertRaisesRegex(ValueError, 'reward is int32.*Cast'):
      rewards.ScaleReward(0.5).transform(reward)

  @parameterized.parameters(tf.int8, tf.uint8, tf.int32)
  def test_integer_reward_out_of_its_range(self, dtype):
    reward = tf.constant([0, 1, dtype.max], dtype)
    double = rewards.ScaleReward(2)
    clipped = rewards.ScaleReward(2, minimum=0, maximum=dtype.max)
    for wrap in (lambda fn: fn, tf.function):
      self.assertAllEqual(
          wrap(double.transform)({'reward': reward[:2]})['reward'], [0, 2]
      )
      self.assertAllEqual(
          wrap(clipped.transform)({'reward': reward})['reward'],
          [0, 2, dtype.max],
      )
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          f'(?s)reward must fit {dtype.name}.*{2 * dtype.max}',
      ):
        wrap(double.transform)({'reward': reward})
      # The reward of a last step has no meaning, whatever it is.
      for is_last in ([False, False, True], [[False], [False], [True]]):
        scaled = wrap(double.transform)({'reward': reward, 'is_last': is_last})
        self.assertAllEqual(scaled['reward'][:2], [0, 2])

  def test_strings_are_no_reward(self):
    with self.assertRaisesRegex(ValueError, 'reward must be numbers, but is'):
      rewards.ScaleReward(2.0).transform({'reward': tf.constant(['a'])})


if __name__ == '__main__':
  tf.test.main()
