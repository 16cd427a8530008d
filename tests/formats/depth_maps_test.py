"""Tests for depth_maps; lerobot_test.py compares it with LeRobot itself."""

import io

import numpy as np
from PIL import Image
import tensorflow as tf

from rlds2reverb.formats import depth_maps


def _tiff(rows):
  file = io.BytesIO()
  Image.fromarray(rows).save(file, 'TIFF')
  return file.getvalue()


class DepthMapsTest(tf.test.TestCase):

  def test_codes_that_are_too_far_for_uint16(self):
    actual = depth_maps.Codes(0.0, 100.0, 1.0, True).depths('mm')
    self.assertEqual(actual[-1], 65535)

  def test_features(self):
    self.assertFalse(depth_maps.is_depth({'dtype': 'video'}))
    for feature in (
        {'info': {'is_depth_map': True}},
        {'info': {'video.is_depth_map': True}},
        {'video_info': {'video.is_depth_map': True}},
    ):
      self.assertTrue(depth_maps.is_depth(feature))
      self.assertEqual(depth_maps.codes_of(feature), depth_maps.Codes())
    info = {'video.depth_max': 4.0, 'video.use_log': False}
    self.assertEqual(
        depth_maps.codes_of({'info': info}),
        depth_maps.Codes(0.01, 4.0, 3.5, False),
    )

  def test_uint8_and_truncated_tiffs_raise(self):
    rows = np.arange(6, dtype=np.uint16).reshape(2, 3)
    with self.assertRaisesRegex(ValueError, r'LeRobot writes it: it is uint8'):
      depth_maps.decode_tiff(_tiff(rows.astype(np.uint8)), None, 'm')
    for length in 6, 30:
      with self.assertRaisesRegex(ValueError, 'must be a TIFF of uint16'):
        depth_maps.decode_tiff(_tiff(rows)[:length], None, 'm')


if __name__ == '__main__':
  tf.test.main()
