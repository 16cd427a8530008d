"""Tests of blocks that are made of packs."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import pack_blocks
from rlds2reverb.episodes import packs as packs_lib
from tests import golden

_EPISODES = [
    golden.make_episode([1.0] * length, terminal=False, base=base)
    for base, length in ((0, 2), (10, 3), (20, 1), (30, 2), (40, 4))
]


def _inspect(episode, outline, unused_lengths):
  """Refuses an episode of three steps, or of whose discount one is 0.5."""
  length = tf.size(outline['is_first']) - 1
  return blocks.Verdict(
      (length != 3) & tf.reduce_all(outline['discount'] != 0.5),
      lambda: tf.strings.format('refused {} of {}', [episode, length]),
  )


def _are_valid(outline, row_splits):
  lengths = row_splits[1:] - row_splits[:-1]
  return tf.reduce_all(lengths != 3) & tf.reduce_all(outline['discount'] != 0.5)


def _blocks(pack_size, episodes=_EPISODES, **kwargs):
  """Returns the episodes, row splits, actions and fault of every block."""
  dataset = pack_blocks.pack_blocks(
      packs_lib.packs_of(golden.packed(episodes, pack_size=pack_size)),
      ('action',),
      **{
          'inspect': _inspect,
          'are_valid': _are_valid,
          'invalid_episodes': 'skip',
          **kwargs,
      },
  )
  found = []
  for block in dataset:
    assert len(block.outline['is_first']) == len(block.steps['action']) + 1
    found.append(
        (
            block.episode.numpy().tolist(),
            block.row_splits.numpy().tolist(),
            block.steps['action'].numpy().tolist(),
            block.fault.numpy().decode(),
        )
    )
  return found


class PackBlocksTest(tf.test.TestCase, parameterized.TestCase):

  def test_packs_of_valid_episodes_stay_whole(self):
    valid = [_EPISODES[place] for place in (0, 2, 3, 4)]
    self.assertEqual(
        _blocks(3, valid),
        [
            ([0, 1, 2], [0, 2, 3, 5], [100, 101, 120, 130, 131], ''),
            ([3], [0, 4], [140, 141, 142, 143], ''),
        ],
    )

  def test_an_invalid_episode_is_left_out(self):
    rest = [
        ([3, 4], [0, 2, 6], [130, 131, 140, 141, 142, 143], ''),
    ]
    for pack_size, expected in (
        (3, [([0], [0, 2], [100, 101], ''), ([2], [0, 1], [120], '')] + rest),
        (
            2,
            [
                ([0], [0, 2], [100, 101], ''),
                ([2, 3], [0, 1, 3], [120, 130, 131], ''),
                ([4], [0, 4], [140, 141, 142, 143], ''),
            ],
        ),
    ):
      with self.subTest(pack_size):
        self.assertEqual(_blocks(pack_size), expected)

  def test_an_invalid_episode_is_marked(self):
    self.assertEqual(
        _blocks(2, invalid_episodes='mark')[:2],
        [
            ([0], [0, 2], [100, 101], ''),
            ([1], [0, 0], [], 'refused 1 of 3'),
        ],
    )

  def test_the_episodes_before_an_invalid_one_come_out(self):
    dataset = pack_blocks.pack_blocks(
        packs_lib.packs_of(golden.packed(_EPISODES, pack_size=5)),
        ('action',),
        inspect=_inspect,
        are_valid=_are_valid,
        invalid_episodes='raise',
    )
    iterator = iter(dataset)
    self.assertAllEqual(next(iterator).steps['action'], [100, 101])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'refused 1 of 3'
    ):
      next(iterator)

  def test_lengths_that_differ(self):
    uneven = dict(_EPISODES[0], action=np.arange(5, dtype=np.int32))

    def inspect(episode, unused_outline, lengths):
      same = tf.reduce_all(lengths.rows == lengths.rows[0])
      return blocks.Verdict(
          same, lambda: tf.strings.format('uneven {}', [episode])
      )

    self.assertEqual(
        _blocks(
            3,
            [_EPISODES[0], uneven, _EPISODES[2]],
            inspect=inspect,
            are_valid=lambda outline, row_splits: row_splits[-1] > 0,
            invalid_episodes='mark',
        ),
        [
            ([0], [0, 2], [100, 101], ''),
            ([1], [0, 0], [], 'uneven 1'),
            ([2], [0, 1], [120], ''),
        ],
    )

  def test_nan_is_looked_for(self):
    episodes = [dict(episode) for episode in _EPISODES[:2]]
    episodes[1]['reward'] = np.float32([0, np.nan, 0])
    seen = []

    def are_valid(outline, row_splits):
      del row_splits
      seen.append(set(outline))
      return tf.reduce_all(outline['nan_field'] == 0)

    def inspect(episode, outline, unused_lengths):
      return blocks.Verdict(
          tf.reduce_all(outline['nan_field'] == 0),
          lambda: tf.strings.format('NaN {}', [episode]),
      )

    dataset = pack_blocks.pack_blocks(
        packs_lib.packs_of(golden.packed(episodes)),
        ('reward',),
        inspect=inspect,
        are_valid=are_valid,
        invalid_episodes='skip',
        find_nan=True,
    )
    (block,) = dataset
    self.assertAllEqual(block.episode, [0])
    self.assertNotIn('nan_field', block.outline)
    self.assertIn('nan_field', seen[0])


if __name__ == '__main__':
  tf.test.main()
