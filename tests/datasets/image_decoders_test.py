"""Tests of decoding images, all of one size."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import image_decoders

_OPEN = tfds.features.Image(shape=(None, None, 3))
_FIXED = tfds.features.Image(shape=(2, 2, 3))
_SKIP = tfds.decode.SkipDecoding()


def _png(height, width, value):
  image = np.full((height, width, 3), value, np.uint8)
  return tf.io.encode_png(image).numpy()


def _decoder():
  feature = tfds.features.FeaturesDict({'image': _OPEN, 'x': np.int64})
  decoders = image_decoders.decoders_of_one_size(feature, None, ('steps',))
  decoder = decoders['image']
  decoder.setup(feature=_OPEN)
  return decoder


class ImageDecodersTest(tf.test.TestCase):

  def test_which_images(self):
    feature = tfds.features.FeaturesDict(
        {
            'open': _OPEN,
            'fixed': _FIXED,
            'x': np.int64,
            'nest': {'open': _OPEN, 'skipped': _OPEN},
        }
    )
    found = image_decoders.decoders_of_one_size(
        feature, {'nest': {'skipped': _SKIP}}, ('steps',)
    )
    self.assertEqual(set(found), {'open', 'nest'})
    self.assertEqual(set(found['nest']), {'open', 'skipped'})
    self.assertIs(found['nest']['skipped'], _SKIP)
    self.assertIsNone(
        image_decoders.decoders_of_one_size(
            tfds.features.FeaturesDict({'fixed': _FIXED}), None, ()
        )
    )

  def test_one_size(self):
    encoded = tf.constant([_png(4, 5, value) for value in (1, 2)])
    found = _decoder().decode_batch_example(encoded)
    expected = np.stack([np.full((4, 5, 3), value) for value in (1, 2)])
    self.assertAllEqual(found, expected)

  def test_no_images(self):
    decode = tf.function(
        _decoder().decode_batch_example,
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    found = decode(tf.constant([], tf.string))
    self.assertEqual(found.shape, [0, 0, 0, 3])
    self.assertEqual(found.dtype, tf.uint8)

  def test_several_sizes(self):
    encoded = tf.constant([_png(4, 5, 1), _png(5, 4, 1)])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'images steps/image must all have one'
    ):
      _decoder().decode_batch_example(encoded)


if __name__ == '__main__':
  tf.test.main()
