"""Tests of batching records by their bytes."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import slots


def _batch(sizes, **kwargs):
  """Returns the sizes of the records in each batch of records of some sizes."""
  dataset = tf.data.Dataset.from_tensor_slices(
      {
          'record': [b'x' * size for size in sizes],
          'name': list(map(str, sizes)),
      }
  )
  found = []
  for batch in slots.batch_by_bytes(dataset, 'record', **kwargs):
    batch = slots.without_fillers(batch, 'record')
    found.append([int(name) for name in batch['name'].numpy()])
    assert [len(record) for record in batch['record'].numpy()] == found[-1]
  return found


class SlotsTest(parameterized.TestCase, tf.test.TestCase):

  def test_a_large_record_takes_more_slots(self):
    # A slot is for 10 bytes.
    self.assertEqual(
        _batch(
            [1, 0, 29, 3, 99, 5, 5, 5], max_bytes=40, num_slots=4, group_size=1
        ),
        [[1, 0, 29], [3, 99], [], [], [5, 5, 5]],
    )

  def test_the_slots_of_a_group_are_behind_it(self):
    self.assertEqual(
        _batch([25, 1, 1, 1], max_bytes=40, num_slots=4, group_size=2),
        [[25, 1], [1, 1]],
    )

  @parameterized.parameters(1, 3)
  def test_the_bytes_of_a_batch_are_bounded(self, group_size):
    rng = np.random.default_rng(0)
    sizes = rng.choice([0, 3, 40, 700, 5000], 400).tolist()
    max_bytes = 1000
    found = _batch(
        sizes, max_bytes=max_bytes, num_slots=64, group_size=group_size
    )
    self.assertEqual(sum(found, []), sizes)
    for batch in found:
      self.assertLessEqual(sum(batch[:-group_size]), max_bytes)


if __name__ == '__main__':
  tf.test.main()
