"""Tests of decoding images, all of one size."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import image_decoders

_OPEN = tfds.features.Image(shape=(None, None, 3))
_FIXED = tfds.features.Image(shape=(2, 2, 3))
_SKIP = tfds.decode.SkipDecoding()


def _decoder():
  feature = tfds.features.FeaturesDict({'image': _OPEN, 'x': np.int64})
  decoders = image_decoders.decoders_of_one_size(feature, None, ('steps',))
  decoder = decoders['image']
  decoder.setup(feature=_OPEN)
  return decoder


class ImageDecodersTest(tf.test.TestCase):

  def test_no_images(self):
    decode = tf.function(
        _decoder().decode_batch_example,
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    found = decode(tf.constant([], tf.string))
    self.assertEqual(found.shape, [0, 0, 0, 3])
    self.assertEqual(found.dtype, tf.uint8)


if __name__ == '__main__':
  tf.test.main()
