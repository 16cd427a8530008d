"""Tests of which columns share chunks, and which chunks items refer to."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.replay import chunks

_IMAGE = tf.TensorSpec([84, 84, 4], tf.uint8)
_NUMBER = tf.TensorSpec([], tf.float32)
_STRING = tf.TensorSpec([], tf.string)


def _floats(size):
  return tf.TensorSpec([size], tf.float32)


def _bytes(*shape):
  return tf.TensorSpec(shape, tf.uint8)


class DefaultGroupsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('number', _NUMBER, 64),
      ('vector', _floats(512), 4),
      ('image', _IMAGE, 1),
      ('image_of_any_size', _bytes(None, None, 3), 1),
      ('string', _STRING, 2),
      ('small_columns', [_floats(17), _NUMBER, _floats(30)], 42),
      ('many_small_columns', [_floats(255)] * 3, 2),
      ('large_columns', [_floats(256), _bytes(2048)], 2),
  )
  def test_one_group(self, spec, chunk_length):
    columns = tuple(range(len(tf.nest.flatten(spec))))
    self.assertEqual(chunks.default_groups(spec), [(columns, chunk_length)])

  @parameterized.named_parameters(
      ('image', [_NUMBER, _IMAGE, _floats(17)], ((0, 2), 64), ((1,), 1)),
      ('1_KiB', [_floats(256), _floats(255)], ((1,), 8), ((0,), 8)),
      ('string', {'a': _STRING, 'b': _NUMBER}, ((1,), 64), ((0,), 2)),
      (
          'several_images',
          ({'x': _bytes(40, 40), 'y': _NUMBER}, _bytes(32, 32), _NUMBER),
          ((1, 3), 64),
          ((0, 2), 2),
      ),
      ('powers_of_two', [_bytes(1200), _floats(50)], ((1,), 32), ((0,), 4)),
      ('17_frames_a_block', [_bytes(120_000), _NUMBER], ((1,), 16), ((0,), 1)),
      ('1_frame_a_block', [_bytes(2_000_000), _NUMBER], ((1,), 1), ((0,), 1)),
  )
  def test_small_and_large_columns(self, spec, small, large):
    self.assertEqual(chunks.default_groups(spec), [small, large])
    longest = max(small[1], large[1])
    self.assertEqual(longest % min(small[1], large[1]), 0)
    self.assertLessEqual(longest, blocks.default_block_length(spec))

  def test_one_group_of_a_length(self):
    spec = {'image': _IMAGE, 'rest': (_NUMBER, _STRING)}
    self.assertEqual(chunks.one_group(spec, 100), [((0, 1, 2), 100)])
    with self.assertRaisesRegex(ValueError, 'chunk_length must be a positive'):
      chunks.one_group(spec, 0)


class KeptChunksTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 3, 5)
  def test_random_items(self, chunk_length):
    rng = np.random.default_rng(chunk_length)
    kept = chunks.KeptChunks(chunks.ColumnGroup((0,), chunk_length))
    place = {}  # the chunk and row of each frame
    end = 0
    needed = 0
    for _ in range(30):
      piece = int(rng.integers(0, 12))
      begins = np.arange(0, piece, chunk_length)
      keys = rng.integers(0, 2**63, len(begins)).astype(np.uint64)
      for row in range(piece):
        chunk, offset = divmod(row, chunk_length)
        place[end + row] = keys[chunk], offset
      kept.append(keys, end + begins, end + piece)
      end += piece
      self.assertEqual(
          kept.keys.tolist(),
          list(dict.fromkeys(place[frame][0] for frame in range(needed, end)))
          if needed < end
          else [],
      )
      if end - needed < 2:
        continue
      starts = rng.integers(needed, end, 7)
      ends = np.minimum(starts + rng.integers(1, 20, 7), end)
      first, count = kept.spans(starts, ends)
      for each in np.unique(count):
        chosen = np.flatnonzero(count == each)
        slices = kept.slices(first[chosen], each, starts[chosen], ends[chosen])
        for item, rows in zip(chosen, zip(*slices[1:])):
          found = [
              (kept.keys[chunk], row)
              for chunk, offset, length in zip(*rows)
              for row in range(offset, offset + length)
          ]
          self.assertEqual(
              found, [place[frame] for frame in range(starts[item], ends[item])]
          )
      needed = int(rng.integers(needed, end + 1))
      # The chunk that holds the frame stays whole.
      while 0 < needed < end and place[needed][1]:
        needed -= 1
      kept.forget(needed)


if __name__ == '__main__':
  absltest.main()
