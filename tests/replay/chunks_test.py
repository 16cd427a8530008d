"""Tests of which columns share chunks, and which episodes do."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import chunks
from rlds2reverb.replay import items
from rlds2reverb.replay import pieces

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


def _cut(lengths, chunk_length, table=None, share_chunks=True):
  """Returns the cuts of whole episodes that come together."""
  splits = np.cumsum([0, *lengths])
  is_last = np.isin(np.arange(splits[-1]), splits[1:] - 1)
  found = pieces.find_pieces(
      splits, 0, is_last, [table or items.TableItems('table')], 100, 0
  )
  cuts = chunks.cut(found, chunk_length, share_chunks)
  return list(zip(*(column.tolist() for column in cuts)))


class CutTest(parameterized.TestCase):

  def test_short_episodes_share_chunks(self):
    self.assertEqual(
        _cut([3, 2, 3, 1, 10, 4, 4, 5, 8, 9], 8),
        # The first piece, the number of pieces, is_padding, begin and end.
        [
            (0, 3, False, 100, 108),
            (3, 1, False, 108, 109),
            (4, 1, False, 109, 117),
            (4, 1, False, 117, 119),
            (5, 2, False, 119, 127),
            (7, 1, False, 127, 132),
            (8, 1, False, 132, 140),
            (9, 1, False, 140, 148),
            (9, 1, False, 148, 149),
        ],
    )

  def test_padding(self):
    table = items.TableItems('table', windows_lib.Windows(3, end='tile'))
    self.assertEqual(
        _cut([2, 2, 7, 3], 8, table),
        [
            (0, 2, False, 100, 108),
            (2, 1, False, 108, 115),
            (2, 1, True, 115, 117),
            # The only one of its chunk.
            (3, 1, False, 117, 120),
            (3, 1, True, 120, 122),
        ],
    )
    table = items.TableItems('table', windows_lib.Windows(7, end='tile'))
    self.assertEqual(
        _cut([1], 4, table),
        [
            (0, 1, False, 100, 101),
            (0, 1, True, 101, 105),
            (0, 1, True, 105, 107),
        ],
    )

  def test_a_chunk_an_episode(self):
    self.assertEqual(
        _cut([2, 2, 5], 4, share_chunks=False),
        [
            (0, 1, False, 100, 102),
            (1, 1, False, 102, 104),
            (2, 1, False, 104, 108),
            (2, 1, False, 108, 109),
        ],
    )

  def test_parts_of_episodes_do_not_share(self):
    # The end of an episode and a whole one, as no data set has them together.
    step_types = np.array([1, 2, 0, 2])
    found = pieces.find_pieces(
        np.array([0, 2, 4]),
        7,
        step_types == 2,
        [items.TableItems('table')],
        7,
        7,
    )
    cuts = chunks.cut(found, 8, True)
    self.assertEqual(cuts.num_pieces.tolist(), [1, 1])


if __name__ == '__main__':
  absltest.main()
