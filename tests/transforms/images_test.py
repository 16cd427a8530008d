"""Tests of decoding, resizing and converting images late."""

import functools
import os
import zlib

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

import rlds2reverb
from rlds2reverb.formats import video_frames
from rlds2reverb.transforms import images
from tests import ways

_DATA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    'data',
    'lerobot',
    'v3.0',
)
_FIELD = 'observation/images/wrist'
_VIDEOS = 'videos/observation.images.{}/chunk-000/file-000.mp4'


def _random_images(*shape, dtype=np.uint8):
  rng = np.random.default_rng(0)
  return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def _encode(array):
  flat = array.reshape(-1, *array.shape[-3:])
  encoded = np.array([tf.io.encode_png(i).numpy() for i in flat], object)
  return encoded.reshape(array.shape[:-3])


def _tent(x):
  return max(0, 1 - abs(x))


def _lanczos(x):
  return np.sinc(x) * np.sinc(x / 3) if abs(x) < 3 else 0


def _resize(image, height, width, kernel=_tent):
  """With antialias, pixel by pixel: the kernel is as wide as the scale."""

  def weights(old, new):
    scale = old / new
    width = max(scale, 1)
    matrix = np.zeros([new, old])
    for row in range(new):
      center = (row + 0.5) * scale - 0.5
      for column in range(old):
        matrix[row, column] = kernel((column - center) / width)
      matrix[row] /= matrix[row].sum()
    return matrix

  rows = weights(image.shape[0], height)
  columns = weights(image.shape[1], width)
  return np.einsum('yh,hwc,xw->yxc', rows, image.astype(np.float64), columns)


class DecodeImagesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.ALL)
  def test_steps_of_episodes(self, run):
    decoded = _random_images(6, 5, 4, 3)
    episode = dict(
        ways.FIVE,
        observation={'image': _encode(decoded), 'text': _encode(decoded)},
    )

    def decode(e):
      steps = e['steps']
      if isinstance(steps, tf.data.Dataset):
        steps = steps.batch(10).get_single_element()
      return images.decode_images(steps, ['observation/image'], size=(5, 4))

    steps = run(decode, [episode])[0]
    self.assertAllEqual(steps['observation']['image'], decoded)
    self.assertEqual(steps['observation']['image'].dtype, np.uint8)
    self.assertAllEqual(
        steps['observation']['text'], episode['observation']['text']
    )

  @parameterized.parameters((), (2,), (2, 3), (0,))
  def test_leading_dimensions_of_a_trajectory(self, *leading):
    decoded = _random_images(*leading, 5, 4, 3)
    frame = trajectory.Trajectory(
        step_type=np.zeros(leading, np.int32),
        observation={'image': tf.constant(_encode(decoded), tf.string)},
        action=(),
        policy_info=(),
        next_step_type=np.zeros(leading, np.int32),
        reward=np.zeros(leading, np.float32),
        discount=np.ones(leading, np.float32),
    )
    dataset = tf.data.Dataset.from_tensors(frame).map(
        lambda frame: images.decode_images(
            frame, ['observation/image'], size=(5, 4), to_float=True
        )
    )
    self.assertEqual(
        dataset.element_spec.observation['image'],
        tf.TensorSpec([*leading, 5, 4, 3], tf.float32),
    )
    found = next(iter(dataset)).observation['image']
    self.assertAllClose(found, decoded / 255)

  def test_images_of_many_sizes(self):
    small, large = _random_images(3, 2, 3), _random_images(9, 7, 3)
    jpeg = tf.io.encode_jpeg(np.full([8, 8, 3], 100, np.uint8))
    encoded = [_encode(small)[()], b'', _encode(large)[()], jpeg]
    nest = {'x': tf.stack(encoded)}
    found = images.decode_images(nest, ['x'], size=(4, 5))['x']
    self.assertEqual(found.shape, [4, 4, 5, 3])
    self.assertAllClose(found[3], np.full([4, 5, 3], 100), atol=2)
    self.assertEqual(found.dtype, tf.uint8)
    # A black image for the empty string of a padded window.
    self.assertAllEqual(found[1], np.zeros([4, 5, 3]))
    for index, image in ((0, small), (2, large)):
      self.assertAllClose(found[index], _resize(image, 4, 5), rtol=0, atol=0.51)

  def test_images_decoded_already(self):
    decoded = _random_images(2, 3, 8, 8, 1)
    nest = images.decode_images(
        {'x': decoded}, ['x'], size=(4, 4), channels=1, to_float=True
    )
    self.assertEqual(nest['x'].shape, [2, 3, 4, 4, 1])
    self.assertAllClose(
        nest['x'][1, 2], _resize(decoded[1, 2], 4, 4) / 255, atol=0.51 / 255
    )

  def test_depth_of_16_bits(self):
    depth = _random_images(3, 6, 5, 1, dtype=np.uint16)
    found = images.decode_images(
        {'x': _encode(depth)}, ['x'], size=(6, 5), channels=1, dtype=tf.uint16
    )['x']
    self.assertAllEqual(found, depth)
    self.assertAllClose(images.images_to_float(found), depth / 65535)

  def test_errors(self):
    nest = {'image': tf.constant(['no image']), 'state': tf.zeros([4])}
    for fields, message in (
        (['imag'], 'Did you mean image'),
        ('image', r"Write \['image'\]"),
        (['state'], 'state must be encoded images'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        images.decode_images(nest, fields, size=(2, 2))
    with self.assertRaises(tf.errors.InvalidArgumentError):
      images.decode_images(nest, ['image'], size=(2, 2))
    with self.assertRaisesRegex(ValueError, 'method must be one of'):
      images.resize_images(tf.zeros([4, 4, 3]), (2, 2), 'bicubic')


class ResizeImagesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.product(
      dtype=[np.uint8, np.uint16, np.float32],
      method=[('bilinear', _tent), ('lanczos3', _lanczos)],
  )
  def test_against_a_loop(self, dtype, method):
    image = (_random_images(2, 9, 6, 3) / 2).astype(dtype)
    name, kernel = method
    rounding = 1e-3 if dtype == np.float32 else 0.51
    for size in ((4, 3), (9, 6), (12, 5)):
      for fn in (images.resize_images, tf.function(images.resize_images)):
        found = fn(tf.constant(image), size, name)
        self.assertEqual(found.shape, [2, *size, 3])
        self.assertEqual(found.dtype, dtype)
        for one, own in zip(found, image):
          expected = _resize(own, *size, kernel)
          if dtype != np.float32:
            expected = expected.clip(0)
          self.assertAllClose(one, expected, rtol=0, atol=rounding)

  def test_lanczos_as_dlimp(self):
    # dlimp 0.0.1 (ad72ce3a), `resize_image` of this image, with TensorFlow
    # 2.15.1: a pixel, and the checksum of all of them.
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (37, 53, 3), np.uint8)
    encoded = tf.io.encode_png(image)
    for size, pixel, checksum in (
        ((16, 24), [145, 132, 114], 2951452339),
        ((37, 53), [80, 22, 135], 3165400818),
        ((64, 64), [64, 238, 131], 2775762543),
    ):
      found = images.resize_images(tf.constant(image), size, 'lanczos3').numpy()
      self.assertAllEqual(found[5, 7], pixel)
      self.assertEqual(zlib.crc32(found.tobytes()), checksum)
      decoded = images.decode_images(
          {'x': encoded}, ['x'], size=size, method='lanczos3'
      )
      self.assertAllEqual(decoded['x'], found)
      fitted = images.FitImages({'x': size}, method='lanczos3')
      self.assertAllEqual(fitted.transform({'x': encoded})['x'], found)

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
      found = decode(nest, ['float', 'png'], size=(16, 24))
      self.assertEqual(found['float'].shape, [2, 16, 24])
      for one in found['float'].numpy():
        self.assertEqual(zlib.crc32(one.tobytes()), 3197795067)
        self.assertAllClose(one[5, 7], 0.8258003)
      self.assertEqual(found['png'].shape, [3, 16, 24])
      for one in found['png'].numpy()[::2]:
        self.assertEqual(zlib.crc32(one.tobytes()), 1220698227)
        self.assertAllClose(one[5, 7], 0.012591163)
      self.assertAllEqual(found['png'][1], np.zeros([16, 24]))
    last = decode_depth({'d': depth[..., None]}, ['d'], size=(16, 24))
    self.assertAllEqual(last['d'][..., 0], found['float'][0])
    with self.assertRaisesRegex(
        ValueError, 'd must be encoded images or float'
    ):
      decode_depth({'d': tf.zeros([4, 4], tf.uint16)}, ['d'], size=(2, 2))

  def test_unknown_size(self):
    dataset = tf.data.Dataset.from_tensors(_random_images(5, 4, 3)).map(
        lambda image: images.resize_images(
            tf.ensure_shape(
                tf.py_function(lambda i: i, [image], tf.uint8), [None, None, 3]
            ),
            (5, 4),
        )
    )
    self.assertAllEqual(next(iter(dataset)), _random_images(5, 4, 3))
    self.assertEqual(dataset.element_spec.shape, [5, 4, 3])

  def test_to_float(self):
    found = images.images_to_float(tf.constant([0, 51, 255], tf.uint8))
    self.assertAllClose(found, [0, 0.2, 1])
    kept = images.images_to_float(tf.constant([0.25], tf.float64))
    self.assertAllEqual(kept, [0.25])
    self.assertEqual(kept.dtype, tf.float32)


class FitImagesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_BATCHES)
  def test_sizes_and_a_camera_that_is_not_there(self, run):
    own = _random_images(6, 4, 6, 3)
    episode = {**ways.FIVE, 'observation': {'image': own}}
    fit = images.FitImages(
        {'observation/image': (2, 3), 'observation/wrist_image': (5, 4)}
    )
    steps = run(fit, [episode])[0]['steps']
    fitted = steps['observation']
    self.assertCountEqual(fitted, ['image', 'wrist_image'])
    for found, image in zip(fitted['image'], own):
      self.assertAllClose(found, _resize(image, 2, 3), rtol=0, atol=0.51)
    self.assertAllEqual(fitted['wrist_image'], np.zeros([6, 5, 4, 3]))
    self.assertEqual(fitted['wrist_image'].dtype, np.uint8)
    self.assertAllEqual(steps['action'], ways.FIVE['action'])


class VideosTest(tf.test.TestCase, parameterized.TestCase):

  def test_frames_of_shuffled_batches(self):
    whole = np.concatenate(
        [
            episode['steps']['observation']['images']['wrist']
            for episode in rlds2reverb.formats.load(_DATA)
        ]
    )
    references = rlds2reverb.formats.load(_DATA, decode_videos=False)
    frames = references.flat_map(
        lambda episode: tf.data.Dataset.from_tensor_slices(episode['steps'])
    )
    frames = frames.shuffle(18, seed=1).batch(6)
    frames = frames.map(
        lambda steps: images.decode_video_frames(steps, [_FIELD], size=(48, 64))
    )
    self.assertEqual(
        frames.element_spec['observation']['images']['wrist'],
        tf.TensorSpec([None, 48, 64, 3], tf.uint8),
    )
    seen = []
    for steps in frames.as_numpy_iterator():
      self.assertAllEqual(
          steps['observation']['images']['wrist'], whole[steps['index']]
      )
      seen += steps['index'].tolist()
    self.assertEqual(sorted(seen), [*range(18)])
    self.assertNotEqual(seen, [*range(18)])

  def test_sizes_empty_strings_and_leading_dimensions(self):
    path = os.path.join(_DATA, _VIDEOS.format('top'))
    frames = video_frames.read_frames(path, [0.0, 0.3])
    references = video_frames.to_references(path, [0.0, 0.3])
    nest = {'a': tf.constant([[references[0], b''], [b'', references[1]]])}
    found = images.decode_video_frames(nest, ['a'], size=(32, 32))['a']
    self.assertAllEqual(
        found[0, 0], images.resize_images(tf.constant(frames[0]), (32, 32))
    )
    self.assertAllEqual(
        found[1, 1], images.resize_images(tf.constant(frames[1]), (32, 32))
    )
    self.assertAllEqual(found[0, 1], np.zeros((32, 32, 3)))
    empty = images.decode_video_frames(
        {'a': tf.constant([b''])}, ['a'], size=(8, 9)
    )
    self.assertAllEqual(empty['a'], np.zeros((1, 8, 9, 3)))

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, 'a must be references .*int32'):
      images.decode_video_frames(
          {'a': tf.zeros([2], tf.int32)}, ['a'], size=(8, 8)
      )
    paths = [os.path.join(_DATA, _VIDEOS.format(c)) for c in ('top', 'wrist')]
    for references, message in (
        (['a.mp4'], "'a.mp4' is not a reference"),
        (['/nowhere/a.mp4#t=1'], 'There is no video file /nowhere/a.mp4'),
        ([f'{path}#t=0' for path in paths], 'must be of one size'),
        ([f'{paths[0]}#t=99'], 'no frame within half a frame of 99.0000'),
    ):
      dataset = tf.data.Dataset.from_tensors({'a': references}).map(
          lambda nest: images.decode_video_frames(nest, ['a'], size=(8, 8))
      )
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
        list(dataset)


if __name__ == '__main__':
  tf.test.main()
