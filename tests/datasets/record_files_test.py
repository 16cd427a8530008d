"""Tests of the lengths and the order of records in files."""

import json
import os
from unittest import mock

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import record_files
from rlds2reverb.datasets import records


class RecordFilesTest(tf.test.TestCase):

  def _write(self, sizes):
    path = os.path.join(self.create_tempdir().full_path, 'file')
    with tf.io.TFRecordWriter(path) as writer:
      for size in sizes:
        writer.write(b'x' * size)
    return path

  def test_a_damaged_file(self):
    path = self._write([3, 5, 7])
    whole = os.path.getsize(path)
    # The file format adds 16 bytes to each record.
    for size, expected in (
        (whole, [3, 5, 7]),
        (whole - 1, [3, 5]),
        (19 + 10, [3]),
        (0, []),
    ):
      os.truncate(path, size)
      for stop in 9, 2:
        actual = record_files.read_lengths(path, stop)
        self.assertAllEqual(actual, np.array(expected[:stop], np.int64))
    path = self._write([3, 5, 7])
    with open(path, 'r+b') as f:
      f.seek(19)
      f.write(b'\xff' * 8)
    self.assertAllEqual(record_files.read_lengths(path, 9), [3])

  def test_order_equals_interleave_of_tf_data(self):
    rng = np.random.default_rng(0)
    for _ in range(20):
      counts = rng.integers(0, 9, rng.integers(1, 12))
      cycle, block = map(int, rng.integers(1, 5, 2))
      starts = np.cumsum(counts) - counts
      files = tf.data.Dataset.from_tensor_slices((starts, starts + counts))
      order = files.interleave(tf.data.Dataset.range, cycle, block)
      part, actual = records.Order(
          [('', 0, count) for count in counts.tolist()], cycle, block
      ).find()
      self.assertEqual(actual.tolist(), list(order.as_numpy_iterator()))
      self.assertAllEqual(
          part, np.repeat(np.arange(len(counts)), counts)[actual]
      )

  def test_places_in_words_are_found_once_for_many_records(self):
    order = records.Order([('a', 5, 3), ('b', 0, 2)], 2, 1)
    find = records.Order.find
    with mock.patch.object(
        records.Order, 'find', autospec=True, side_effect=find
    ) as find:
      actual = [
          records.describe(json.dumps(order).encode(), index)
          for index in range(5)
      ]
    places = [(5, 'a'), (0, 'b'), (6, 'a'), (1, 'b'), (7, 'a')]
    wanted = [f'record {number} of {path}' for number, path in places]
    self.assertEqual(actual, wanted)
    find.assert_called_once()


if __name__ == '__main__':
  tf.test.main()
