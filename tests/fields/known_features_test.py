"""Tests of the features of data sets that are not there."""

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb import transforms  # noqa: F401
from rlds2reverb.fields import configs
from rlds2reverb.fields import known_features


class KnownFeaturesTest(parameterized.TestCase):

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
    # mt_opt/sd has single images.
    known = known_features.known_features('mt_opt')
    self.assertEqual(list(known), ['mt_opt/rlds'])
    self.assertEqual(known_features.known_features('mine.gin'), {})
    known = known_features.known_features('robomimic')
    self.assertLen(known, 4 + 8 + 10)
    spec = known_features.episode_spec(known['robomimic_mg/can_mg_low_dim'])
    step = spec['steps'].element_spec
    self.assertEqual(step['discount'], tf.TensorSpec([], tf.int32))
    self.assertEqual(
        step['observation']['object'], tf.TensorSpec([14], tf.float64)
    )

  def _check(self, config, **changes):
    """Checks the kinds of data like `bridge`'s, with some fields changed."""
    step = {
        'observation': {
            'image': tf.TensorSpec([64, 64, 3], tf.uint8),
            'state': tf.TensorSpec([9], tf.float64),
        },
        'action': tf.TensorSpec([8], tf.float32),
        'reward': tf.TensorSpec([], tf.float32),
        'is_last': tf.TensorSpec([], tf.bool),
        **changes,
    }
    mapping = configs.load_mapping(config)
    return known_features.check_kinds(config, mapping, step)

  def test_other_sizes_and_keys_are_of_one_kind(self):
    self.assertTrue(self._check('bridge'))

  @parameterized.parameters(
      ([], tf.int64, r'float32 \(7,\), but here it is int64 \(\)$'),
      ([7], tf.int32, r'float32 \(7,\), but here it is int32 \(7,\)$'),
      ([1, 7], tf.float32, r'.*but here it is float32 \(1, 7\)$'),
  )
  def test_of_another_kind(self, shape, dtype, message):
    with self.assertRaisesRegex(ValueError, f'action: {message}'):
      self._check('bridge', action=tf.TensorSpec(shape, dtype))

  def test_fields_of_another_kind(self):
    arm, png = tf.TensorSpec([7], tf.float32), tf.TensorSpec([], tf.string)
    for changes, message in (
        ({'action': {'arm': arm}}, r"action: .*it is a nest of \['arm'\]$"),
        (
            {'observation': {'image': png}},
            r'observation/image: uint8 \(256, 256, 3\), but here .* string',
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self._check('bridge', **changes)

  def test_one_of_many_is_enough(self):
    # Some of robomimic's data sets have images, and some have none.
    for changes in ({}, {'observation': {'object': tf.TensorSpec([3], float)}}):
      self.assertTrue(self._check('robomimic', **changes))

  def test_for_any_kind(self):
    self.assertFalse(
        self._check('recorded_gym', action=tf.TensorSpec([2, 2], tf.uint8))
    )


if __name__ == '__main__':
  absltest.main()
