"""Tests of the features of data sets that are not there."""

from absl.testing import absltest
import tensorflow as tf

from rlds2reverb.fields import known_features


class KnownFeaturesTest(absltest.TestCase):

  def test_in_a_file_and_of_builders(self):
    # mt_opt/sd has single images.
    for config, name, count, keys, spec in (
        ('kuka', 'kuka', 1, ('success',), tf.TensorSpec([], tf.bool)),
        (
            'kuka',
            'kuka',
            1,
            ('steps', 'action', 'terminate_episode'),
            tf.TensorSpec([3], tf.int32),
        ),
        (
            'mt_opt',
            'mt_opt/rlds',
            1,
            ('steps', 'is_last'),
            tf.TensorSpec([], tf.bool),
        ),
        (
            'robomimic',
            'robomimic_mg/can_mg_low_dim',
            4 + 8 + 10,
            ('steps', 'observation', 'object'),
            tf.TensorSpec([14], tf.float64),
        ),
    ):
      known = known_features.known_features(config)
      self.assertLen(known, count)
      found = known[name].get_tensor_spec()
      for key in keys:
        found = found[key]
      self.assertEqual(found, spec)
    self.assertEqual(known_features.known_features('mine.gin'), {})


if __name__ == '__main__':
  absltest.main()
