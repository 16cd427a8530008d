"""Tests of decoding, resizing and converting images late."""

import functools
import os
import zlib

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import video_frames
from rlds2reverb.transforms import images

_DATA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    'data',
    'lerobot',
    'v3.0',
)
_TOP, _WRIST = (
    os.path.join(
        _DATA, f'videos/observation.images.{camera}/chunk-000/file-000.mp4'
    )
    for camera in ('top', 'wrist')
)


def _random_images(*shape, dtype=np.uint8):
  rng = np.random.default_rng(0)
  return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def _encode(array):
  flat = array.reshape(-1, *array.shape[-3:])
  encoded = np.array([tf.io.encode_png(i).numpy() for i in flat], object)
  return encoded.reshape(array.shape[:-3])


def _resize(image, height, width):
  """With antialias, pixel by pixel: the tent is as wide as the scale."""

  def weights(old, new):
    scale = old / new
    width = max(scale, 1)
    matrix = np.zeros([new, old])
    for row in range(new):
      center = (row + 0.5) * scale - 0.5
      for column in range(old):
        matrix[row, column] = max(0, 1 - abs(column - center) / width)
      matrix[row] /= matrix[row].sum()
    return matrix

  rows = weights(image.shape[0], height)
  columns = weights(image.shape[1], width)
  return np.einsum('yh,hwc,xw->yxc', rows, image.astype(np.float64), columns)


class DecodeImagesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters((), (2, 3), (0,))
  def test_leading_dimensions(self, *leading):
    decoded = _random_images(*leading, 5, 4, 3)
    encoded = tf.constant(_encode(decoded), tf.string)
    decode = functools.partial(
        images.decode_images, fields=['observation/image'], size=(5, 4)
    )
    frame = {'observation': {'image': encoded, 'text': encoded}}
    data = tf.data.Dataset.from_tensors(frame).map(decode)
    actual = data.get_single_element()['observation']
    self.assertAllEqual(actual['image'], decoded)
    self.assertAllEqual(actual['text'], encoded)
    spec = data.element_spec['observation']['image']
    self.assertEqual(spec, tf.TensorSpec([*leading, 5, 4, 3], tf.uint8))

  def test_images_of_many_sizes(self):
    small, large = _random_images(3, 2, 3), _random_images(9, 7, 3)
    jpeg = tf.io.encode_jpeg(np.full([8, 8, 3], 100, np.uint8))
    encoded = [_encode(small)[()], b'', _encode(large)[()], jpeg]
    nest = {'x': tf.stack(encoded)}
    actual = images.decode_images(nest, ['x'], size=(4, 5))['x']
    self.assertEqual(actual.shape, [4, 4, 5, 3])
    self.assertAllClose(actual[3], np.full([4, 5, 3], 100), atol=2)
    # A black image for the empty string of a padded window.
    self.assertAllEqual(actual[1], np.zeros([4, 5, 3]))
    for index, image in ((0, small), (2, large)):
      self.assertAllClose(
          actual[index], _resize(image, 4, 5), rtol=0, atol=0.51
      )

  def test_images_decoded_already_and_depth_of_16_bits(self):
    decoded = _random_images(2, 3, 8, 8, 1)
    depth = _random_images(3, 6, 5, 1, dtype=np.uint16)
    decode = functools.partial(images.decode_images, fields=['x'], channels=1)
    actual = decode({'x': decoded}, size=(4, 4), to_float=True)['x']
    self.assertEqual(actual.shape, [2, 3, 4, 4, 1])
    expected = _resize(decoded[1, 2], 4, 4) / 255
    self.assertAllClose(actual[1, 2], expected, atol=0.51 / 255)
    decode = functools.partial(decode, size=(6, 5), dtype=tf.uint16)
    self.assertAllEqual(decode({'x': _encode(depth)})['x'], depth)
    actual = decode({'x': _encode(depth)}, to_float=True)['x']
    self.assertAllClose(actual, depth / 65535)
    kept = decode({'x': depth / 4}, to_float=True)['x']
    self.assertAllEqual(kept, np.float32(depth / 4))

  @parameterized.parameters(
      (['imag'], {}, 'Did you mean image'),
      ('image', {}, r"Write \['image'\]"),
      (['state'], {}, 'state must be encoded images'),
      (['image'], {}, 'Unknown image file format'),
      (['rgb'], dict(method='bicubic'), 'method must be one of'),
  )
  def test_invalid_images_and_options_raise(self, fields, options, message):
    nest = {'image': tf.constant(['no image']), 'state': tf.zeros([4])}
    nest['rgb'] = tf.zeros([4, 4, 3])
    with self.assertRaisesRegex(
        (ValueError, tf.errors.InvalidArgumentError), message
    ):
      images.decode_images(nest, fields, size=(2, 2), **options)


class ResizeImagesTest(tf.test.TestCase):

  def test_depth_as_octo(self):
    # As Octo's `decode_and_resize` (241fb351) does, by dlimp 0.0.1.
    rng = np.random.default_rng(1)
    depth = rng.random((37, 53)).astype(np.float32) * 3
    png = tf.io.encode_png((depth * 1000).astype(np.uint16)[..., None])
    nest = {'float': np.stack([depth] * 2), 'png': tf.stack([png, '', png])}
    decode_depth = functools.partial(
        images.decode_images, channels=0, dtype=tf.float32
    )
    for decode in decode_depth, tf.function(decode_depth):
      actual = decode(nest, ['float', 'png'], size=(16, 24))
      self.assertEqual(actual['float'].shape, [2, 16, 24])
      for one in actual['float'].numpy():
        self.assertEqual(zlib.crc32(one.tobytes()), 3197795067)
        self.assertAllClose(one[5, 7], 0.8258003)
      self.assertEqual(actual['png'].shape, [3, 16, 24])
      for one in actual['png'].numpy()[::2]:
        self.assertEqual(zlib.crc32(one.tobytes()), 1220698227)
        self.assertAllClose(one[5, 7], 0.012591163)
      self.assertAllEqual(actual['png'][1], np.zeros([16, 24]))
    last = decode_depth({'d': depth[..., None]}, ['d'], size=(16, 24))
    self.assertAllEqual(last['d'][..., 0], actual['float'][0])
    with self.assertRaisesRegex(
        ValueError, 'd must be encoded images or float'
    ):
      decode_depth({'d': tf.zeros([4, 4], tf.uint16)}, ['d'], size=(2, 2))


class VideosTest(tf.test.TestCase, parameterized.TestCase):

  def test_sizes_empty_strings_and_leading_dimensions(self):
    frames = video_frames.read_frames(_TOP, [0.0, 0.3])
    one, other = video_frames.to_references(_TOP, [0.0, 0.3])
    decode = functools.partial(images.decode_video_frames, fields=['a'])
    nest = {'a': tf.constant([[one, b''], [b'', other]])}
    actual = decode(nest, size=(32, 32))['a']
    for place, frame in enumerate(frames):
      expected = images.resize_images(tf.constant(frame), (32, 32))
      self.assertAllEqual(actual[place, place], expected)
    self.assertAllEqual(actual[0, 1], np.zeros((32, 32, 3)))
    # In a graph, many and in any order.
    many = tf.data.Dataset.from_tensors({'a': [other, b'', one, other]})
    (mapped,) = many.map(functools.partial(decode, size=(32, 32)))
    order = [actual[1, 1], actual[0, 1], actual[0, 0], actual[1, 1]]
    self.assertAllEqual(mapped['a'], order)
    self.assertEqual(mapped['a'].shape, [4, 32, 32, 3])

  @parameterized.parameters(
      ([0, 0], 'a must be references .*int32'),
      (['a.mp4'], "'a.mp4' is not a reference"),
      (['/nowhere/a.mp4#t=1'], 'There is no video file /nowhere/a.mp4'),
      ([f'{_TOP}#t=0', f'{_WRIST}#t=0'], 'must have the same size'),
      ([f'{_TOP}#t=99'], 'no frame within half a frame of 99.0000'),
  )
  def test_invalid_references_raise(self, references, message):
    nest = {'a': tf.constant(references)}
    with self.assertRaisesRegex(
        (ValueError, tf.errors.InvalidArgumentError), message
    ):
      images.decode_video_frames(nest, ['a'], size=(8, 8))


if __name__ == '__main__':
  tf.test.main()
