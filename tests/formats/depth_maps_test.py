"""Tests for depth_maps; lerobot_test.py holds it against LeRobot itself."""

import struct

import numpy as np
import tensorflow as tf

from rlds2reverb.formats import depth_maps


def _tiff(rows, order, *, compression=1, strips=2):
  """Returns a TIFF file of `[height, width]`, in several strips."""
  height, width = rows.shape
  bits, kind = rows.dtype.itemsize * 8, 3 if rows.dtype.kind == 'f' else 1
  parts = [
      part.astype(rows.dtype.newbyteorder(order)).tobytes()
      for part in np.array_split(rows, strips)
  ]
  begin = 8 + 2 + 12 * 7 + 4
  offsets = begin + 8 * strips + np.cumsum([0, *map(len, parts[:-1])])
  shorts = ((256, width), (257, height), (258, bits), (259, compression))
  entries = [
      struct.pack(order + 'HHIHH', *(tag, 3, 1, value, 0))
      for tag, value in shorts
  ]  # pyformat: disable
  entries.append(struct.pack(order + 'HHII', 273, 4, strips, begin))
  entries.append(
      struct.pack(order + 'HHII', 279, 4, strips, begin + 4 * strips)
  )
  entries.append(struct.pack(order + 'HHIHH', 339, 3, 1, kind, 0))
  return b''.join(
      [
          (b'II' if order == '<' else b'MM') + struct.pack(order + 'HI', 42, 8),
          struct.pack(order + 'H', 7),
          *entries,
          bytes(4),
          struct.pack(f'{order}{strips}I', *offsets),
          struct.pack(f'{order}{strips}I', *map(len, parts)),
          *parts,
      ]
  )


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
    for dtype, order in (
        (np.uint16, '<'),
        (np.uint16, '>'),
        (np.float32, '<'),
        (np.float32, '>'),
    ):
      encoded = _tiff(rows.astype(dtype), order)
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
    with self.assertRaisesRegex(ValueError, 'its compression is .5,'):
      depth_maps.decode_tiff(_tiff(rows, '<', compression=5), None, 'm')
    with self.assertRaisesRegex(ValueError, r'sample format are \(8, 1\)'):
      depth_maps.decode_tiff(_tiff(rows.astype(np.uint8), '<'), None, 'm')
    for length in 6, 30, 110:
      with self.assertRaisesRegex(ValueError, 'must be a TIFF of uint16'):
        depth_maps.decode_tiff(_tiff(rows, '<')[:length], None, 'm')


if __name__ == '__main__':
  tf.test.main()
