from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import resizing
from rlds2reverb.random_access import images
from tests.random_access import data


def _resized(image, size, method):
  resized = tf.image.resize(image, size, method, antialias=True)
  return tf.saturate_cast(tf.round(resized), image.dtype).numpy()


class ImagesTest(parameterized.TestCase, tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self.rng = np.random.default_rng(0)

  @parameterized.parameters(
      ('lanczos3', (64, 48), (17, 90), 3),
      ('lanczos3', (1, 300), (1, 37), 1),
      ('bilinear', (7, 5), (3, 11), 3),
      ('bilinear', (120, 160), (112, 112), 1),
  )
  def test_resizing_equals_tensorflow(self, method, before, after, channels):
    image = self.rng.integers(0, 256, (*before, channels)).astype(np.uint8)
    expected = _resized(image, after, method)
    actual = resizing.resize(image, after, method)
    self.assertEqual(actual.dtype, np.uint8)
    difference = np.abs(actual.astype(int) - expected)
    self.assertLessEqual(difference.max(), 1)
    # Only where it lies in the middle between two.
    self.assertLess((difference > 0).mean(), 0.02)

  @parameterized.parameters(dict(quality=50), dict(chroma_downsampling=False))
  def test_jpegs_equal_tensorflow(self, **kwargs):
    image = data.image(self.rng, 31, 45)
    encoded = tf.io.encode_jpeg(image, **kwargs).numpy()
    for channels in 1, 3:
      expected = tf.io.decode_jpeg(
          encoded, channels, dct_method='INTEGER_ACCURATE'
      )
      actual = images.decode(encoded, images.ImageFormat((31, 45), channels))
      self.assertAllEqual(actual, expected)
    # By default TensorFlow decodes them faster and less exactly.
    self.assertAllClose(actual, tf.io.decode_image(encoded, 3), atol=12, rtol=0)

  @parameterized.parameters(1, 4)
  def test_pngs_equal_tensorflow(self, channels):
    image = self.rng.integers(0, 256, (9, 8, channels)).astype(np.uint8)
    encoded = tf.io.encode_png(image).numpy()
    for size in (9, 8), (4, 4):
      actual = images.decode(encoded, images.ImageFormat(size, channels))
      expected = image if size == (9, 8) else _resized(image, size, 'lanczos3')
      self.assertAllClose(actual, expected, atol=size != (9, 8), rtol=0)
    if channels != 1:
      actual = images.decode(encoded, images.ImageFormat((9, 8), 3))
      self.assertAllEqual(actual, tf.io.decode_image(encoded, 3))

  def test_depth(self):
    image = self.rng.integers(0, 1 << 16, (9, 8, 1)).astype(np.uint16)
    encoded = tf.io.encode_png(image).numpy()
    deep = images.ImageFormat((9, 8), 1, dtype='uint16')
    self.assertAllEqual(images.decode(encoded, deep), image)
    small = images.ImageFormat((5, 5), 1, dtype='uint16')
    expected = _resized(image, (5, 5), 'lanczos3').astype(int)
    self.assertAllClose(images.decode(encoded, small), expected, atol=1, rtol=0)
    for channels in 1, 3:
      self.assertAllEqual(
          images.decode(encoded, images.ImageFormat((9, 8), channels)),
          tf.io.decode_png(encoded, channels),
      )
    with self.assertRaisesRegex(ValueError, 'not of 16 bits'):
      images.decode(data.jpeg(data.image(self.rng, 4, 4)), deep)

  def test_invalid_images_and_formats_raise(self):
    image_format = images.ImageFormat((2, 3))
    self.assertAllEqual(images.decode(b'', image_format), np.zeros([2, 3, 3]))
    encoded = data.jpeg(data.image(self.rng, 40, 40))
    for invalid in b'text', encoded[: len(encoded) // 2]:
      with self.assertRaisesRegex(ValueError, 'cannot be decoded'):
        images.decode(invalid, image_format)
    with self.assertRaisesRegex(ValueError, 'must be one of'):
      images.ImageFormat((2, 3), method='nearest')


if __name__ == '__main__':
  tf.test.main()
