"""Tests of excerpts of episodes."""

import base64

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.jobs.descriptions import excerpts

_KNOWN = dict(
    episode=3, num_steps=9, undiscounted_return=1.0, is_terminal=False
)


def _take(steps, rows, images):
  (parts,) = tf.data.Dataset.from_tensors((steps, rows)).map(
      lambda steps, rows: excerpts.take(steps, rows, images, tf.constant(True))
  )
  return excerpts.parse(parts.numpy(), images, **_KNOWN)


def _decode(jpeg):
  return tf.io.decode_jpeg(base64.b64decode(jpeg)).numpy()


class ExcerptsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters((0, 0), (1, 1), (9, 8), (200, 8), (1001, 8))
  def test_steps_are_spread_from_the_first_to_the_last(self, length, frames):
    rows = np.arange(length * 2.0).reshape(length, 2)
    image = np.zeros([length, 4, 4, 3], np.uint8)
    found = _take({'image': image}, rows, [('image',)])
    self.assertLen(found.steps, min(length, 200))
    self.assertLen(found.frame_steps, frames)
    self.assertLen(found.frames['image'], frames)
    self.assertAllEqual(found.rows, rows[found.steps])
    self.assertContainsSubset(found.frame_steps, found.steps)
    # Every 5th step of 1001 has its numbers, and frames are of such steps.
    for steps, spacing in (found.steps, 1), (found.frame_steps, 6):
      if length:
        self.assertEqual((steps[0], steps[-1]), (0, length - 1))
        self.assertLen(set(steps), len(steps))
      if len(steps) > 1:
        self.assertLessEqual(np.ptp(np.diff(steps)), spacing)
    self.assertEqual(found.num_steps, 9)

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
        'encoded': np.array(
            [tf.io.encode_png(one).numpy() for one in image], object
        ),
    }
    spec = {
        name: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype))
        for name, leaf in steps.items()
        if name != 'encoded'
    }
    spec['encoded'] = tf.TensorSpec([], tf.string)
    shown = excerpts.image_leaves(spec, [('encoded',)])
    self.assertLen(shown, 3)  # not more
    found = _take(steps, np.zeros([3, 1]), [(name,) for name in steps])
    for name, frames in found.frames.items():
      for colour, frame in zip(colours, frames):
        decoded = _decode(frame)
        self.assertEqual(decoded.shape, (128, 85, 3))
        if name == 'depth':
          # Depth is scaled to the greatest of each image.
          colour = 255 if colour else 0
        self.assertAllClose(decoded, np.full_like(decoded, colour), atol=2)

  def test_nothing_is_taken_of_the_others(self):
    parts = excerpts.take(
        {}, tf.zeros([5, 2], tf.float64), [], tf.constant(False)
    )
    self.assertAllEqual(parts, [b''] * 3)

  def test_the_sample_is_uniform(self):
    counts = np.zeros(12)
    for seed in range(300):
      slots = {}
      for position in range(12):
        slot = int(excerpts.draw_slot(tf.constant(position, tf.int64), 3, seed))
        if slot < 3:
          slots[slot] = position
      self.assertLen(slots, 3)
      counts[list(slots.values())] += 1
    # Each is in a quarter of the samples: 75, with a deviation of 7.5.
    self.assertAllClose(counts, np.full(12, 75.0), atol=30)


if __name__ == '__main__':
  tf.test.main()
