"""Tests of finding the lengths of the records of TFRecord files."""

import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import record_lengths


def _interleave(files, cycle_length, block_length):
  """Returns the records of files in the order that TensorFlow reads them in."""
  return [
      int(length)
      for length in tf.data.Dataset.range(len(files)).interleave(
          lambda index: tf.data.Dataset.from_tensor_slices(
              tf.ragged.constant(files, tf.int64)[index]
          ),
          cycle_length=cycle_length,
          block_length=block_length,
      )
  ]


class RecordLengthsTest(parameterized.TestCase, tf.test.TestCase):

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
          record_lengths.read_lengths(path, stop), [3, 0, 70_000, 1][:stop]
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
      found = record_lengths.read_lengths(path, 9)
      self.assertAllEqual(found, np.array(expected, np.int64))
    path = self._write([3, 5, 7])
    with open(path, 'r+b') as f:
      f.seek(19)
      f.write(b'\xff' * 8)
    self.assertAllEqual(record_lengths.read_lengths(path, 9), [3])

  def test_most_bytes_of_one_file(self):
    lengths = np.array([1, 5, 7, 1, 6, 6])
    for size, expected in (1, 7), (2, 12), (3, 14), (6, 26), (9, 26):
      self.assertEqual(record_lengths.most_bytes([lengths], size, 16), expected)

  def test_equal_records_make_no_batch_seem_larger(self):
    files = [np.full(100, 10)] * 20
    self.assertEqual(record_lengths.most_bytes(files, 50, 16), 500)

  @parameterized.product(
      num_files=[1, 3, 9], batch_size=[1, 7, 20], cycle_length=[1, 4]
  )
  def test_no_batch_has_more(self, num_files, batch_size, cycle_length):
    rng = np.random.default_rng(batch_size)
    files = [
        np.where(rng.random(size) < 0.1, 1000, rng.integers(0, 9, size))
        for size in rng.integers(1, 40, num_files)
    ]
    most = record_lengths.most_bytes(files, batch_size, cycle_length)
    for block_length in 1, 2, 16:
      stream = _interleave(
          [file.tolist() for file in files], cycle_length, block_length
      )
      batches = [
          sum(stream[start : start + batch_size])
          for start in range(len(stream))
      ]
      self.assertLessEqual(max(batches), most)


if __name__ == '__main__':
  tf.test.main()
