"""Tests of data sets as segments of frames, and of which are refused."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import sequences
from tests import golden
from tests.replay import encoded

_PAIRS = items.TableItems('table')
_EPISODES = [
    golden.make_episode([1] * length, terminal=True, base=100 * length)
    for length in (5, 1, 3)
]


class FramesTest(parameterized.TestCase):

  def test_parts_of_segments(self):
    rng = np.random.default_rng(0)
    for lengths in ([5000, 3, 4000, 200], [1] * 4200):
      episodes = [encoded.episode(rng, length, 1) for length in lengths]
      for blocks in (
          encoded.blocks(episodes, 2000),
          encoded.blocks(episodes, 1, 999),
      ):
        segments = list(encoded.source(blocks, [_PAIRS]).segments())
        actual = np.concatenate([each.length for each in segments])
        self.assertEqual(actual.tolist(), lengths)
        for segment in segments:
          is_one = len(segment.length) == 1
          self.assertTrue(is_one or segment.row_splits[-1] <= 4096)
          self.assertFalse(segment.is_open)
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            encoded.concatenated([each.frames for each in segments]),
            encoded.concatenated(episodes),
        )

  def test_unsuitable_data_sets_and_tables_raise(self):
    data = golden.stacked(_EPISODES)
    windows = windows_lib.Windows
    cut = sequences.convert_rlds_to_sequences(data, windows(2))
    in_batches = sequences.convert_rlds_to_sequences(
        data, windows(2), batched=True
    )
    as_frames = conversion.convert_rlds_to_trajectories
    options = options_lib.ConversionOptions
    nan = options_lib.ConversionRules(nan='invalid')
    table = lambda *args: items.TableItems('table', windows(*args))
    neither = 'before any conversion'
    for found, tables, settings, message in (
        (as_frames(data), _PAIRS, options(), neither),
        (as_frames(data, batched=True), _PAIRS, options(), neither),
        (in_batches, _PAIRS, options(), neither),
        (cut, table(3), options(), 'may only have a priority'),
        (cut, _PAIRS, options(chunk_length=2), 'are for RLDS data'),
        (cut, _PAIRS, options(rules=nan), 'written unchanged'),
        (data, _PAIRS, options(chunk_length=0), 'must be a positive integer'),
        (data, table(2, 1, 'cross'), options(episode_id='name'), 'the order'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        frames.make_frame_source(found, tables, settings)

  @parameterized.parameters(
      ([b'a', b'\xff', b'b'], tf.string, ['a', '\\xff', 'b']),
      ([8, 9, 7], tf.uint32, [8, 9, 7]),
  )
  def test_ids_of_a_field(self, values, dtype, expected):
    values = tf.constant(values, dtype)
    named = lambda index, episode: {**episode, 'name': values[index]}
    data, watched = golden.stacked(_EPISODES).enumerate().map(named), []
    for episode_id, ids in (('name', expected), (None, [7, 8, 9])):
      options = options_lib.ConversionOptions(episode_id=episode_id)
      source = frames.make_frame_source(data, _PAIRS, options)
      source = source._replace(first_episode=7, watch=watched.append)
      [segment] = source.segments()
      self.assertEqual(segment.episode_ids, ids)
      self.assertEqual(segment.length.tolist(), [5, 1, 3])
    rewards = [each['reward'] for each in _EPISODES] * 2
    np.testing.assert_array_equal(
        np.concatenate([block.frames.reward for block in watched]),
        np.concatenate(rewards),
    )


if __name__ == '__main__':
  absltest.main()
