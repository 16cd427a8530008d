"""Tests of data sets as blocks of frames that are laid out."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import sequences
from tests import golden
from tests.replay import encoded

_PAIRS = items.TableItems('table')


def _episodes(lengths=(5, 1, 3)):
  return [
      golden.make_episode([1] * length, terminal=True, base=100 * index)
      for index, length in enumerate(lengths)
  ]


def _rewards(blocks):
  return np.concatenate([block.frames.reward for block in blocks]).tolist()


class FramesTest(parameterized.TestCase):

  @parameterized.parameters(*golden.FORMS)
  def test_frames_of_episodes(self, form):
    episodes = _episodes()
    source = frames.make_frame_source(
        golden.FORMS[form](episodes),
        _PAIRS,
        options=options_lib.ConversionOptions(chunk_length=2),
    )
    self.assertEqual(source.tables, [_PAIRS])
    self.assertFalse(source.of_sequences)
    self.assertEqual(source.chunk_length, 2)
    segments = list(source.segments())
    found = [
        (episode_id, length, step)
        for segment in segments
        for episode_id, length, step in zip(
            segment.episode_ids, segment.length, segment.step
        )
    ]
    self.assertEqual(found, [(0, 5, 0), (1, 1, 0), (2, 3, 0)])
    rewards = sum((episode['reward'].tolist() for episode in episodes), [])
    self.assertEqual(_rewards(segments), rewards)
    # A part of a data set counts on, and is watched.
    seen = []
    part = source._replace(first_episode=7, watch=seen.append)
    ids = sum((segment.episode_ids for segment in part.segments()), [])
    self.assertEqual(ids, [7, 8, 9])
    self.assertEqual(_rewards(seen), rewards)

  def test_parts_of_segments(self):
    rng = np.random.default_rng(0)
    for lengths in ([5000, 3, 4000, 200], [2000] * 5, [1] * 9000):
      episodes = [encoded.episode(rng, length, 1) for length in lengths]
      for blocks in (
          encoded.batched(episodes, 2000),
          encoded.one_by_one(episodes, 999),
      ):
        segments = list(encoded.source(blocks, [_PAIRS]).segments())
        self.assertEqual(
            sum((segment.length.tolist() for segment in segments), []), lengths
        )
        for segment in segments:
          self.assertTrue(
              len(segment.length) == 1 or segment.row_splits[-1] <= 4096
          )
          self.assertFalse(segment.is_open)
        for a, b in zip(
            tf.nest.flatten(encoded.concatenated(episodes)),
            tf.nest.flatten(
                encoded.concatenated([each.frames for each in segments])
            ),
        ):
          self.assertTrue((a == b).all())

  def test_an_error_comes_after_the_whole_episodes_before(self):
    rng = np.random.default_rng(0)
    episodes = [encoded.episode(rng, length) for length in (5, 7, 9)]

    def blocks():
      yield from list(encoded.one_by_one(episodes, 4))[:-1]
      raise ValueError('no more')

    found = []
    with self.assertRaisesRegex(ValueError, 'no more'):
      for segment in encoded.source(blocks(), [_PAIRS]).segments():
        found += segment.length.tolist()
    self.assertEqual(found, [5, 7])

  def test_what_does_not_go_together(self):
    data = golden.stacked(_episodes())
    windows = windows_lib.Windows
    cut = sequences.convert_rlds_to_sequences(data, windows(2))
    options = options_lib.ConversionOptions
    nan = rules_lib.ConversionRules(nan='invalid')
    table = lambda *args, **kwargs: items.TableItems(
        'table', windows(*args, **kwargs)
    )
    for found, tables, settings, message in (
        (cut, table(3), options(), 'priority and nothing else'),
        (cut, _PAIRS, options(chunk_length=2), 'go with RLDS data alone'),
        (cut, _PAIRS, options(rules=nan), 'written as they are'),
        (data, _PAIRS, options(chunk_length=0), 'must be a positive integer'),
        (
            data,
            table(2, end='cross'),
            options(episode_id='name'),
            'depend on the order',
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        frames.make_frame_source(found, tables, settings)

  def test_ids_of_a_field(self):
    for values, dtype, expected in (
        ([b'a', b'\xff'], tf.string, ['a', '\\xff']),
        ([8, 9], tf.uint32, [8, 9]),
    ):
      data = (
          golden.stacked(_episodes((2, 3)))
          .enumerate()
          .map(
              lambda index, episode: {
                  **episode,
                  'name': tf.constant(values, dtype)[index],  # pylint: disable=cell-var-from-loop
              }
          )
      )
      source = frames.make_frame_source(
          data, _PAIRS, options_lib.ConversionOptions(episode_id='name')
      )
      ids = sum((segment.episode_ids for segment in source.segments()), [])
      self.assertEqual(ids, expected)


if __name__ == '__main__':
  absltest.main()
