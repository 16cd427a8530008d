"""Tests for video_frames, on videos that PyAV writes here."""

import fractions
import os

import av
import numpy as np
import tensorflow as tf

from rlds2reverb.formats import video_frames

_FPS = 30
_LENGTH = 100
_SIZE = (48, 64)


class VideoFramesTest(tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._path = os.path.join(tf.compat.v1.test.get_temp_dir(), 'a.mp4')
    with av.open(cls._path, 'w') as container:
      # With frames that refer to later ones, and key frames far apart.
      stream = container.add_stream(
          'libx264', _FPS, options={'g': '40', 'bf': '3'}
      )
      stream.height, stream.width = _SIZE
      stream.pix_fmt = 'yuv420p'
      stream.time_base = fractions.Fraction(1, _FPS)
      for index in range(_LENGTH):
        frame = av.VideoFrame.from_ndarray(
            np.full((*_SIZE, 3), 2 * index, np.uint8), format='rgb24'
        )
        frame.pts = index
        container.mux(stream.encode(frame))
      container.mux(stream.encode())
    with av.open(cls._path) as container:
      frames = container.decode(video=0)
      cls._frames = np.stack([f.to_ndarray(format='rgb24') for f in frames])

  def test_any_order_and_repeated(self):
    self.assertLen(self._frames, _LENGTH)
    indices = np.random.default_rng(0).integers(0, _LENGTH, 30)
    times = indices / _FPS
    actual = video_frames.read_frames(self._path, times)
    self.assertAllEqual(actual, self._frames[indices])

  def test_nearest_within_half_a_frame(self):
    indices = np.array([0, 7, 50, _LENGTH - 1])
    for shift in (-0.4, 0.4):
      times = np.maximum(indices + shift, 0) / _FPS
      actual = video_frames.read_frames(self._path, times, _FPS)
      self.assertAllEqual(actual, self._frames[indices])
    with self.assertRaisesRegex(
        ValueError, 'no frame within half a frame of 3.3200 s, at 30 .*3.3000'
    ):
      video_frames.read_frames(self._path, [(_LENGTH - 0.4) / _FPS])
    with self.assertRaisesRegex(ValueError, 'of -1.0000 s'):
      video_frames.read_frames(self._path, [-1.0])

  def test_column(self):
    column = video_frames.column(self._path, np.arange(4, 9) / _FPS, _FPS)
    self.assertEqual(column.shape, (5, *_SIZE, 3))
    self.assertLen(column, 5)
    self.assertAllEqual(column[:], self._frames[4:9])
    self.assertAllEqual(column[1:3], self._frames[5:7])
    empty = video_frames.column(self._path, np.zeros(0), _FPS)
    self.assertEqual(empty[:].shape, (0, *_SIZE, 3))


if __name__ == '__main__':
  tf.test.main()
