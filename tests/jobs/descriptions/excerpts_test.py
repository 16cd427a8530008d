"""Tests of excerpts of episodes."""

import base64

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.jobs.descriptions import excerpts


def _take(steps, images):
  (parts,) = tf.data.Dataset.from_tensors(steps).map(
      lambda steps: excerpts.take_frames(steps, images)
  )
  excerpt = excerpts.Excerpt(
      episode=3,
      num_steps=9,
      num_transitions=8,
      undiscounted_return=1.0,
      is_terminal=False,
      steps=np.arange(9),
      rows=np.zeros([9, 0]),
      images=parts.numpy(),
  )
  return excerpt.frames()


def _decode(jpeg):
  return tf.io.decode_jpeg(base64.b64decode(jpeg)).numpy()


class ExcerptsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters((0, 0), (1, 1), (9, 8), (200, 8), (1001, 8))
  def test_steps_are_spread_from_the_first_to_the_last(self, length, count):
    shades = np.arange(length) * 200 // max(length, 1)
    image = np.broadcast_to(shades[:, None, None, None], [length, 4, 4, 3])
    (frames,) = _take({'image': image.astype(np.uint8)}, [('image',)])
    steps = excerpts.spread_steps(length, excerpts.MAX_FRAMES)
    self.assertLen(steps, count)
    self.assertAllClose(
        [_decode(frame)[0, 0, 0] for frame in frames],
        shades[steps].astype(np.uint8),
        atol=2,
    )
    # Every 5th step of 1001 has its numbers.
    steps = excerpts.spread_steps(length, excerpts.MAX_STEPS)
    self.assertLen(steps, min(length, 200))
    if length:
      self.assertEqual((steps[0], steps[-1]), (0, length - 1))
    if length > 1:
      self.assertLessEqual(np.ptp(np.diff(steps)), 1)

  def test_images_of_every_kind(self):
    colours = np.array([0, 80, 255])
    image = np.broadcast_to(
        colours[:, None, None, None], [3, 300, 200, 3]
    ).astype(np.uint8)
    steps = {
        'rgb': image,
        'rgba': np.concatenate([image, 0 * image[..., :1]], -1),
        'grey': image[..., :1],
        'depth': image[..., :1].astype(np.uint16) * 100,
    }
    spec = {
        name: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype))
        for name, leaf in steps.items()
    }
    shown = excerpts.image_leaves(spec)
    self.assertLen(shown, 3)  # not more
    found = _take(steps, [(name,) for name in steps])
    for name, frames in zip(steps, found):
      for colour, frame in zip(colours, frames):
        decoded = _decode(frame)
        self.assertEqual(decoded.shape, (128, 85, 3))
        if name == 'depth':
          # Depth is scaled to the greatest of each image.
          colour = 255 if colour else 0
        self.assertAllClose(decoded, np.full_like(decoded, colour), atol=2)

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
