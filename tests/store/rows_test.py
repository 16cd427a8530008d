"""Tests of encoding frames to rows of bytes and decoding them."""

import json

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.store import rows
from tests import golden

_BFLOAT16 = tf.bfloat16.as_numpy_dtype
_DTYPES = (
    *(np.float16, np.float32, np.float64, _BFLOAT16, np.int8, np.uint8),
    *(np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.bool_, np.complex64, np.complex128),
)


def _layout_of(frames):
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(
          leaf.shape[1:], tf.string if leaf.dtype == object else leaf.dtype
      ),
      frames,
  )
  return rows.RowLayout.of_spec(spec, '')


def _values(rng):
  words = [b'', b'\0', 'naïve'.encode(), b'x' * 100000, b'end\0']
  return {
      'limits': (
          np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
          np.array([-(2**63), 2**63 - 1, 0, -1, 2**53 + 1]),
          np.array([2**64 - 1, 0, 1, 2, 3], np.uint64),
      ),
      'small': rng.integers(0, 256, [5, 1023]).astype(np.uint8),
      'large': rng.integers(0, 256, [5, 32, 32]).astype(np.uint8),
      'none': (np.zeros([5, 0, 3], np.float32), np.zeros([5, 0], object)),
      'word': np.array(words, object),
      'pair': np.array([words, words[::-1]], object).T,
  }


class RowLayoutTest(parameterized.TestCase, tf.test.TestCase):

  def check(self, frames, expected=None):
    """Stores frames in two parts, and reads them in two ways."""
    expected = frames if expected is None else np.array(expected, object)
    format_ = rows.RowLayout.of_json(
        json.loads(json.dumps(_layout_of(frames).columns))
    )
    writer = rows.StoreWriter(format_)
    leaves = tf.nest.flatten(frames)
    length = len(leaves[0])
    for begin, end in ((0, 1), (1, length)):
      writer.append([leaf[begin:end] for leaf in leaves])
    store = writer.finish({}, {})
    for group, size in zip(store.groups, format_.row_bytes):
      self.assertEqual((group.dtype, group.shape), (np.uint8, (length, size)))
    # A place is a run of one frame; and all frames are a run.
    for starts, count in (
        (np.array([4, 0, 4, 3]) % length, 1),
        (np.array([0, 0]), length),
    ):
      actual = store.with_strings(store.gather(starts, count))
      numbers = starts[:, np.newaxis] + np.arange(count)
      golden.assert_frames_equal(
          self,
          [tf.nest.pack_sequence_as(frames, actual)],
          [tf.nest.map_structure(lambda leaf: leaf[numbers], expected)],
      )
      for leaf in actual:
        if leaf.size and leaf.dtype != object:
          self.assertEqual(leaf.ctypes.data % 64, 0)
          self.assertTrue(leaf.flags.c_contiguous)
    return format_

  def test_every_dtype(self):
    values = np.random.default_rng(0).integers(0, 100, [7, 2, 3])
    for dtype in _DTYPES:
      cast = values.astype(dtype)
      self.check({'scalars': cast[:, 0, 0], 'others': cast})

  def test_values(self):
    frames = _values(np.random.default_rng(0))
    format_ = self.check(frames)
    # A column of 1 KB is stored in separate rows.
    self.assertEqual(format_.row_bytes[1:], [1024])
    self.assertEqual(format_.frame_bytes, sum(format_.row_bytes))
    nest = format_.nest(tf.nest.flatten(frames))
    tf.nest.assert_same_structure(nest, frames)
    # Characters become UTF-8.
    self.check(np.array(['naïve', ''], object), ['naïve'.encode(), b''])


if __name__ == '__main__':
  tf.test.main()
