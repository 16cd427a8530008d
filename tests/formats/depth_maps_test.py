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

  def test_codes(self):
    linear = depth_maps.Codes(1.0, 5.095, 0.0, False)
    # A millimetre a code.
    self.assertAllEqual(linear.depths('mm'), 1000 + np.arange(4096))
    self.assertEqual(linear.depths('mm').dtype, np.uint16)
    self.assertAllClose(linear.depths('m'), 1 + np.arange(4096) / 1000)
    self.assertEqual(linear.depths('m').dtype, np.float32)
    depths = depth_maps.Codes().depths('m')
    self.assertAllClose(depths[[0, -1]], [0.01, 10.0], rtol=1e-5)
    # Even in the logarithm of the depth plus 3.5.
    steps = np.diff(np.log(depths.astype(np.float64) + 3.5))
    self.assertAllClose(steps, np.full(4095, np.log(13.5 / 3.51) / 4095), 1e-2)
    far = depth_maps.Codes(0.0, 100.0, 1.0, True).depths('mm')
    self.assertEqual(far[-1], 65535)

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

  def test_tiff(self):
    rows = np.arange(5 * 3).reshape(5, 3)
    for dtype in np.uint16, np.float32:
      encoded = _tiff(rows.astype(dtype))
      self.assertTrue(depth_maps.is_tiff(encoded))
      for stored_unit in None, 'mm':
        found = depth_maps.decode_tiff(encoded, stored_unit, 'mm')
        self.assertEqual(found.dtype, dtype)
        self.assertAllEqual(found, rows[..., None])
      found = depth_maps.decode_tiff(encoded, 'mm', 'm')
      self.assertEqual(found.dtype, np.float32)
      self.assertAllClose(found, rows[..., None] / 1000)
      found = depth_maps.decode_tiff(encoded, 'm', 'mm')
      self.assertAllClose(found, rows[..., None] * 1000)

  def test_other_tiffs(self):
    rows = np.arange(6, dtype=np.uint16).reshape(2, 3)
    with self.assertRaisesRegex(ValueError, r'LeRobot writes it: it is uint8'):
      depth_maps.decode_tiff(_tiff(rows.astype(np.uint8)), None, 'm')
    for length in 6, 30:
      with self.assertRaisesRegex(ValueError, 'must be a TIFF of uint16'):
        depth_maps.decode_tiff(_tiff(rows)[:length], None, 'm')


if __name__ == '__main__':
  tf.test.main()
