"""Tests of the images of excerpts, and of what stands for all episodes."""

import base64

import numpy as np
import tensorflow as tf

from rlds2reverb.jobs.descriptions import excerpts


class ExcerptsTest(tf.test.TestCase):

  def test_images_of_every_kind(self):
    for colour in (0, 80, 255):
      image = np.full([300, 200, 3], colour, np.uint8)
      for kind, shown in (
          (image, colour),
          (np.concatenate([image, 0 * image[..., :1]], -1), colour),
          (image[..., :1], colour),
          # Depth is scaled to the greatest of each image.
          (image[..., :1].astype(np.uint16) * 100, 255 if colour else 0),
      ):
        jpeg = base64.b64decode(excerpts.to_jpeg(kind))
        decoded = tf.io.decode_jpeg(jpeg).numpy()
        self.assertEqual(decoded.shape, (128, 85, 3))
        self.assertAllClose(decoded, np.full_like(decoded, shown), atol=2)

  def test_every_part_of_the_range_is_stood_for(self):
    rng = np.random.default_rng(0)
    for numbers in (
        rng.normal(size=3000),
        rng.standard_cauchy(size=3000),
        np.sort(rng.exponential(size=3000)),
        rng.integers(0, 9, 3000).astype(float),
        np.zeros(50),
    ):
      numbers[7] = np.nan
      kept = np.zeros(0)
      for block in np.array_split(numbers, 40):
        kept = np.append(kept, block)
        kept = kept[excerpts.spread(kept)]
      finite = np.sort(numbers[np.isfinite(numbers)])
      self.assertLessEqual(len(kept), 2 * excerpts.NUM_BARS + 8)
      kept = np.sort(kept)
      self.assertAllEqual(kept[:3], finite[:3])
      self.assertAllEqual(kept[-3:], finite[-3:])
      edges = np.linspace(finite[0], finite[-1], excerpts.NUM_BARS + 1)
      self.assertAllEqual(
          np.histogram(finite, edges)[0] > 0, np.histogram(kept, edges)[0] > 0
      )
    self.assertEmpty(excerpts.spread(np.array([np.nan, np.inf])))


if __name__ == '__main__':
  tf.test.main()
