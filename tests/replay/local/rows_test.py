"""Tests of rows of bytes."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.store import layout
from rlds2reverb.store import references
from tests import golden

_BFLOAT16 = tf.bfloat16.as_numpy_dtype


class _Strings:
  """Strings, one after the other, as a store keeps them."""

  def __init__(self):
    self.content = b''

  def cells_of(self, strings):
    def add(string):
      self.content += string
      return len(self.content) - len(string)

    return references.cells_of(strings, None, add)

  def read(self, leaves):
    content = np.frombuffer(self.content, np.uint8)
    return [
        references.own_strings(content, leaf)
        if leaf.dtype == references.CELL
        else leaf
        for leaf in leaves
    ]


def _spec_of(frames):
  return tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(
          leaf.shape[1:], tf.string if leaf.dtype == object else leaf.dtype
      ),
      frames,
  )


def _layout(spec):
  return layout.RowLayout.of_spec(spec, '')


class RowLayoutTest(parameterized.TestCase, tf.test.TestCase):

  def check_round_trip(self, frames, places):
    """Checks frames that were stored in two parts, and read at `places`."""
    format_ = _layout(_spec_of(frames))
    strings = _Strings()
    length = len(tf.nest.flatten(frames)[0])
    parts = [
        format_.encode(
            [leaf[begin:end] for leaf in tf.nest.flatten(frames)],
            strings.cells_of,
        )
        for begin, end in ((0, 1), (1, length))
    ]
    groups = [np.concatenate(each) for each in zip(*parts)]
    for group, size in zip(groups, format_.row_bytes):
      self.assertEqual((group.dtype, group.shape), (np.uint8, (length, size)))

    # A place is a run of one frame; and all frames are a run.
    runs = (np.ravel(places), 1), (np.array([0, 0]), length)
    for starts, count in runs:
      found = strings.read(format_.read(groups, starts, count))
      rows_ = starts[:, np.newaxis] + np.arange(count)
      golden.assert_frames_equal(
          self,
          [tf.nest.pack_sequence_as(frames, found)],
          [tf.nest.map_structure(lambda leaf: leaf[rows_], frames)],
      )
      for leaf in found:
        if leaf.size and leaf.dtype != object:
          self.assertEqual(leaf.ctypes.data % 64, 0)
          self.assertTrue(leaf.flags.c_contiguous)
    return format_

  @parameterized.parameters(
      np.float16,
      np.float32,
      np.float64,
      _BFLOAT16,
      np.int8,
      np.uint8,
      np.int16,
      np.uint16,
      np.int32,
      np.uint32,
      np.int64,
      np.uint64,
      np.bool_,
      np.complex64,
      np.complex128,
  )
  def test_every_dtype(self, dtype):
    values = np.random.default_rng(0).integers(0, 100, [7, 2, 3])
    self.check_round_trip(
        {
            'scalars': values[:, 0, 0].astype(dtype),
            'others': values.astype(dtype),
        },
        [[6, 0], [3, 3], [1, 5]],
    )

  def test_values_at_the_limits(self):
    self.check_round_trip(
        {
            'floats': np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
            'integers': np.array([-(2**63), 2**63 - 1, 0, -1, 2**53 + 1]),
            'unsigned': np.array([2**64 - 1, 0, 1, 2, 3], np.uint64),
        },
        [4, 3, 2, 1, 0],
    )

  def test_small_columns_share_a_row_and_large_ones_do_not(self):
    rng = np.random.default_rng(0)
    frames = {
        'a': rng.integers(0, 256, [3, 1023], np.uint8),  # One byte less.
        'b': rng.integers(0, 256, [3, 32, 32], np.uint8),
        'c': rng.normal(size=[3, 2]),
        'd': rng.normal(size=[3, 128]),
        'e': (np.array([True, False, True]),),
    }
    format_ = self.check_round_trip(frames, [2, 0])
    self.assertEqual(format_.row_bytes, [1023 + 16 + 1, 1024, 1024])
    self.assertEqual(format_.frame_bytes, 1040 + 1024 + 1024)
    self.assertFalse(format_.has_strings)

  def test_columns_without_elements(self):
    format_ = self.check_round_trip(
        {
            'floats': np.zeros([4, 0, 3], np.float32),
            'strings': np.zeros([4, 0], object),
            'numbers': np.arange(4),
        },
        [[3], [1]],
    )
    self.assertEqual(format_.row_bytes, [8])

  def test_strings(self):
    words = np.array(
        [b'', b'\0', 'naïve'.encode(), b'x' * 100000, b'end\0'], object
    )
    format_ = self.check_round_trip(
        {'word': words, 'pair': np.stack([words, words[::-1]], 1)},
        [[4, 1, 0], [3, 2, 2]],
    )
    self.assertTrue(format_.has_strings)
    self.assertEqual(format_.row_bytes, [3 * references.CELL.itemsize])

  def test_strings_of_characters_are_stored_as_utf8(self):
    format_ = _layout(tf.TensorSpec([], tf.string))
    strings = _Strings()
    format_.encode([np.array(['naïve'], object)], strings.cells_of)
    self.assertEqual(strings.content, 'naïve'.encode())

  @parameterized.parameters([[None, 3]], [None])
  def test_a_shape_that_is_not_known(self, shape):
    spec = {'camera': {'image': tf.TensorSpec(shape, tf.uint8)}}
    with self.assertRaisesRegex(ValueError, 'camera.*image.*fixed'):
      _layout(spec)

  def test_many_runs(self):
    length, count = 50, 3000
    numbers = np.arange(5000)
    frames = {
        'wide': np.stack([numbers + k for k in range(7)], 1).astype(np.float32),
        'narrow': numbers.astype(np.int16),
    }
    format_ = _layout(_spec_of(frames))
    groups = format_.encode(tf.nest.flatten(frames))
    starts = np.random.default_rng(0).integers(0, 5000 - length - 2, count)
    read = lambda: format_.read(groups, starts, length)
    expected = starts[:, np.newaxis] + np.arange(length)
    first = read()
    for leaf, column in zip(first, tf.nest.flatten(frames)):
      self.assertAllEqual(leaf, column[expected])

    # What somebody has, if only a view of it, is nobody else's.
    address_of = lambda array: array.__array_interface__['data'][0]
    address = address_of(first[1])
    view = first[1][:, 0]
    expected_view = view.copy()
    del first, leaf
    starts = starts + 1
    second = read()
    self.assertNotEqual(address_of(second[1]), address)
    self.assertAllEqual(view, expected_view)
    del view
    starts = starts + 1
    third = read()
    self.assertEqual(address_of(third[1]), address)
    self.assertAllEqual(second[1][:, 0], frames['wide'][starts - 1])


if __name__ == '__main__':
  tf.test.main()
