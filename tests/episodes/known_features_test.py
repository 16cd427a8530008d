"""Tests of the features of data sets that are not there."""

from absl.testing import absltest
from rlds2reverb.episodes import known_features
import tensorflow as tf


class KnownFeaturesTest(absltest.TestCase):

  def test_in_a_file(self):
    known = known_features.known_features('kuka')
    self.assertEqual(list(known), ['kuka'])
    spec = known_features.episode_spec(known['kuka'])
    self.assertEqual(spec['success'], tf.TensorSpec([], tf.bool))
    step = spec['steps'].element_spec
    self.assertEqual(
        step['observation']['image'], tf.TensorSpec([512, 640, 3], tf.uint8)
    )
    self.assertEqual(
        step['action']['terminate_episode'], tf.TensorSpec([3], tf.int32)
    )

  def test_of_a_builder(self):
    known = known_features.known_features('robomimic')
    self.assertLen(known, 4 + 8 + 10)
    spec = known_features.episode_spec(known['robomimic_mg/can_mg_low_dim'])
    step = spec['steps'].element_spec
    self.assertEqual(step['discount'], tf.TensorSpec([], tf.int32))
    self.assertEqual(
        step['observation']['object'], tf.TensorSpec([14], tf.float64)
    )

  def test_only_episodes(self):
    # mt_opt/sd has single images.
    known = known_features.known_features('mt_opt')
    self.assertEqual(list(known), ['mt_opt/rlds'])

  def test_unknown(self):
    self.assertEqual(known_features.known_features('mine.gin'), {})


if __name__ == '__main__':
  absltest.main()
