"""Tests of finding the lengths of the records of TFRecord files."""

import os

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import record_places


class RecordPlacesTest(tf.test.TestCase):

  def _write(self, sizes):
    path = os.path.join(self.create_tempdir().full_path, 'file')
    with tf.io.TFRecordWriter(path) as writer:
      for size in sizes:
        writer.write(b'x' * size)
    return path

  def test_read_lengths(self):
    path = self._write([3, 0, 70_000, 1])
    for stop in range(6):
      self.assertAllEqual(
          record_places.read_lengths(path, stop), [3, 0, 70_000, 1][:stop]
      )

  def test_a_damaged_file(self):
    path = self._write([3, 5, 7])
    whole = os.path.getsize(path)
    # A record has 16 bytes besides its own.
    for size, expected in (
        (whole, [3, 5, 7]),
        (whole - 1, [3, 5]),
        (19 + 10, [3]),
        (0, []),
    ):
      os.truncate(path, size)
      found = record_places.read_lengths(path, 9)
      self.assertAllEqual(found, np.array(expected, np.int64))
    path = self._write([3, 5, 7])
    with open(path, 'r+b') as f:
      f.seek(19)
      f.write(b'\xff' * 8)
    self.assertAllEqual(record_places.read_lengths(path, 9), [3])


if __name__ == '__main__':
  tf.test.main()
