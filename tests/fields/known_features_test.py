"""Tests of the features of data sets that are not there."""

from absl.testing import absltest
import tensorflow as tf

from rlds2reverb.fields import known_features


class KnownFeaturesTest(absltest.TestCase):

  def test_in_a_file_and_of_builders(self):
    for config, name, count, flag in (
        ('kuka', 'kuka', 1, 'is_last'),
        ('mt_opt', 'mt_opt/rlds', 1, 'is_last'),  # mt_opt/sd has single images.
        ('robomimic', 'robomimic_mg/can_mg_low_dim', 4 + 8 + 10, 'is_terminal'),
    ):
      known = known_features.known_features(config)
      self.assertLen(known, count)
      found = known[name].get_tensor_spec()['steps'][flag]
      self.assertEqual(found, tf.TensorSpec([], tf.bool))
    self.assertEqual(known_features.known_features('mine.gin'), {})


if __name__ == '__main__':
  absltest.main()
