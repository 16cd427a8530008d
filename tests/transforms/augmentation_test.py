"""Tests of random changes of images, in TensorFlow and in NumPy."""

import zlib

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.arrays import augmentation as arrays
from rlds2reverb.transforms import images

_SETTINGS = {
    'octo': images.Augmentation.OCTO,
    'openvla': images.Augmentation.OPENVLA,
}
# What `augment_image` of dlimp 0.0.1 (ad72ce3a) makes of `_smooth` and of
# `_noisy`, with TensorFlow 2.15.1 and the settings of Octo and of OpenVLA: the
# seed; then the checksum of each, and a pixel of the first.
_DLIMP = (
    ('octo', (3, 4), 1870385913, 651145800, [60, 224, 20]),
    ('octo', (2**31 - 5, 17), 3092045809, 190273938, [20, 249, 38]),
    ('octo', (0, 0), 2987819055, 716587276, [64, 223, 20]),
    ('openvla', (3, 4), 2982279470, 1255017935, [57, 209, 25]),
    ('openvla', (2**31 - 5, 17), 1032191003, 4205267398, [22, 255, 43]),
    ('openvla', (0, 0), 952357236, 3506226009, [61, 206, 27]),
)


def _smooth():
  y, x = np.mgrid[:37, :53]
  image = np.stack([4 * y + x, 255 - 3 * y, 2 * x + y], -1)
  return image.clip(0, 255).astype(np.uint8)


def _noisy():
  return np.random.default_rng(0).integers(0, 256, (37, 53, 3), np.uint8)


def _augment(image, settings, seed):
  found = images.augment_images({'x': image}, ['x'], settings, seed=seed)
  return found['x'].numpy()


class AugmentImagesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*_DLIMP)
  def test_augmentation_equals_dlimp(self, name, seed, smooth, noisy, pixel):
    settings = _SETTINGS[name]
    actual = _augment(_smooth(), settings, seed)
    self.assertAllEqual(actual[5, 7], pixel)
    self.assertEqual(zlib.crc32(actual.tobytes()), smooth)
    actual = _augment(_noisy(), settings, seed)
    self.assertEqual(zlib.crc32(actual.tobytes()), noisy)

  def test_each_change_equals_numpy(self):
    window = np.stack([_smooth(), _noisy()])[None] / np.float32(255)
    for changes in (
        {},
        {'crop_scale': (0.5, 0.9), 'crop_ratio': (0.7, 1.4)},
        {'brightness': 0.3},
        {'contrast': (0.5, 1.5)},
        {'saturation': (0.2, 1.8)},
        {'hue': 0.3},
    ):
      settings = images.Augmentation(**changes)
      for seed in (5, 6), (-1, 2**40):
        expected = _augment(window, settings, seed)
        self.assertEqual(expected.dtype, np.float32)
        actual = arrays.augment(window, settings, seed)
        self.assertAllClose(actual, expected, rtol=0, atol=2e-5)
        self.assertEqual(bool((expected != window).any()), bool(changes))

  def test_windows_fields_and_frames(self):
    settings = _SETTINGS['octo']
    window = np.stack([_smooth(), 0 * _smooth(), _noisy()])
    frames = tf.data.Dataset.from_tensors({'a': window, 'b': window}).repeat(2)

    def augment(index, frame):
      return images.augment_images(frame, ['a', 'b'], settings, seed=(7, index))

    actual = list(frames.enumerate().map(augment).as_numpy_iterator())
    for index, frame in enumerate(actual):
      for field, seed in (('a', (7, index)), ('b', (8, index + 1))):
        first, black, last = frame[field]
        self.assertAllEqual(first, _augment(_smooth(), settings, seed))
        self.assertAllEqual(last, _augment(_noisy(), settings, seed))
        self.assertAllEqual(black, window[1])  # They stay so.
        in_numpy = arrays.augment(window, settings, seed)
        self.assertAllClose(frame[field], in_numpy, rtol=0, atol=1)
    self.assertNotAllEqual(actual[0]['a'], actual[1]['a'])

  @parameterized.parameters(
      (lambda s: images.Augmentation(contrast=(1.2, 0.8)), 'contrast mu'),
      (lambda s: _augment(np.zeros([4, 4]), s, 0), 'x must be images'),
      (
          lambda s: images.augment_images({}, 'x', s, seed=0),
          r"Write \['x'\]",
      ),
      (
          lambda s: arrays.augment(np.zeros([4, 4, 1]), s, (0, 0)),
          'must be uint8 or floats',
      ),
  )
  def test_bad_arguments(self, call, message):
    with self.assertRaisesRegex(ValueError, message):
      call(images.Augmentation(hue=0.1))


class DropImagesTest(tf.test.TestCase):

  def test_fraction_of_dropped_images_matches_probability(self):
    frame = {name: tf.ones([2, 2, 3], tf.uint8) for name in 'abc'}
    frame['gone'] = tf.zeros([2, 2, 3], tf.uint8)
    names = [*'abc', 'gone']

    def count(index):
      dropped = images.drop_images(frame, names, 0.6, seed=(1, index))
      kept = images.drop_images(frame, names, 1.0, seed=(1, index), keep='b')
      return [
          tf.stack([tf.reduce_max(nest[name]) for name in names])
          for nest in (dropped, kept)
      ]

    data = tf.data.Dataset.range(3000).map(count).batch(3000)
    dropped, kept = data.get_single_element()
    dropped = dropped.numpy().astype(bool)
    self.assertFalse(dropped[:, 3].any())
    self.assertTrue(dropped.any(1).all())
    # One of three is kept; of the others, 0.4.
    self.assertAllClose(dropped[:, :3].mean(0), [0.6] * 3, rtol=0, atol=0.04)
    self.assertAllEqual(kept, [[0, 1, 0, 0]] * 3000)

  def test_probabilities_0_and_1_and_invalid_arguments(self):
    frame = {'a': tf.ones([2]), 'b': tf.ones([2])}
    for probability, total in (0.0, 2), (1.0, 1):
      actual = images.drop_images(frame, ['a', 'b'], probability, seed=3)
      self.assertAllEqual(actual['a'] + actual['b'], [total] * 2)
    with self.assertRaisesRegex(ValueError, 'keep must be one of'):
      images.drop_images(frame, ['a'], 0.5, seed=3, keep='b')
    with self.assertRaisesRegex(ValueError, 'probability must be'):
      images.drop_images(frame, ['a'], 1.5, seed=3)


if __name__ == '__main__':
  tf.test.main()
